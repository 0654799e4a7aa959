"""Operators outside the ONNX standard, as ``domain::name``.

A placeholder operator in an exported graph is replaced by other nodes before the graph is saved.
"""

import onnx_ir as ir

MICROSOFT = "com.microsoft"  # onnxruntime's docs/ContribOperators.md
MULTI_HEAD_ATTENTION = f"{MICROSOFT}::MultiHeadAttention"
GROUP_QUERY_ATTENTION = f"{MICROSOFT}::GroupQueryAttention"

PLACEHOLDERS = "tfexport"
BEST_TOKEN = f"{PLACEHOLDERS}::Best"  # states (R, 1, E) to the argmax of the logits (R, 1)
SEARCH_LOOP = f"{PLACEHOLDERS}::Search"  # the loop over the steps of a search


def is_operator(node: ir.Node, operator: str) -> bool:
    """Whether a node's operator is ``domain::name``."""
    return f"{node.domain}::{node.op_type}" == operator
