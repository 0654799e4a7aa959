"""Operators that are not ONNX's own, by domain and name.

A placeholder stands in an exported graph for nodes that are put in its place later. No file holds
one.
"""

import onnx_ir as ir

MICROSOFT = "com.microsoft"  # onnxruntime's own; its docs/ContribOperators.md
MULTI_HEAD_ATTENTION = f"{MICROSOFT}::MultiHeadAttention"

PLACEHOLDERS = "tfexport"
BEST_TOKEN = f"{PLACEHOLDERS}::Best"  # states (R, 1, E) to the tokens of the highest logits (R, 1)
SEARCH_LOOP = f"{PLACEHOLDERS}::Search"  # the loop over the steps of a search


def is_operator(node: ir.Node, operator: str) -> bool:
    """Whether a node's operator is ``domain::name``."""
    return f"{node.domain}::{node.op_type}" == operator
