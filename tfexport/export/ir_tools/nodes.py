"""Nodes, initializers and graphs of onnx_ir: made, named, compared, and parsed from text."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import parser

Attributes = Mapping[str, int | list[int] | ir.DataType | ir.TensorProtocol]


def new_node(
    operator: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    attributes: Attributes | None = None,
    *,
    output: str | None = None,
    domain: str = "",
) -> ir.Node:
    """A node that is not yet part of a graph.

    Args:
        operator: the name of the operator, without its domain.
        inputs: the inputs; None for an omitted one.
        name: the name of the node.
        attributes: the attributes, by name.
        output: the output's name; the node's by default.
        domain: the domain of the operator.
    """
    value = ir.val(name if output is None else output)
    return ir.node(operator, inputs, attributes, domain=domain, outputs=[value], name=name)


def append_node(
    graph: ir.Graph,
    operator: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    attributes: Attributes | None = None,
) -> ir.Value:
    """Append a standard operator to a graph and return its output, which has the node's name."""
    node = new_node(operator, inputs, name, attributes)
    graph.append(node)
    return node.outputs[0]


# Operators outside the ONNX standard, as ``domain::name``. A placeholder operator in an exported
# graph is replaced by other nodes before the graph is saved.


MICROSOFT = "com.microsoft"  # onnxruntime's docs/ContribOperators.md
MULTI_HEAD_ATTENTION = f"{MICROSOFT}::MultiHeadAttention"
GROUP_QUERY_ATTENTION = f"{MICROSOFT}::GroupQueryAttention"

PLACEHOLDERS = "tfexport"
BEST_TOKEN = f"{PLACEHOLDERS}::Best"  # states (R, 1, E) to the argmax of the logits (R, 1)
SEARCH_LOOP = f"{PLACEHOLDERS}::Search"  # the loop over the steps of a search


def is_operator(node: ir.Node, operator: str) -> bool:
    """Whether a node's operator is ``domain::name``."""
    return f"{node.domain}::{node.op_type}" == operator


Array = NDArray[Any]


def array_of(value: ir.Value) -> Array:
    """The values of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add an initializer to a graph.

    An initializer of that name with equal values is reused. If its values differ, a number is added
    to the name.
    """
    wanted, number = name, 1
    while (existing := graph.initializers.get(name)) is not None:
        if existing.const_value is not None and _is_same(existing.const_value, array):
            return existing
        name, number = f"{wanted}.{number}", number + 1
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def share_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Reuse an initializer with equal values under any name, or add one."""
    for value in graph.initializers.values():
        if value.const_value is not None and _is_same(value.const_value, array):
            return value
    return add_initializer(graph, name, array)


def rename_initializer(value: ir.Value, name: str) -> None:
    """Rename an initializer and its tensor."""
    assert value.const_value is not None
    value.name = value.const_value.name = name


def content_key(array: Array) -> str:
    """A hash of type, shape and values."""
    key = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    key.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return key.hexdigest()


def value_key(value: ir.Value) -> str:
    """``content_key`` of an initializer."""
    return content_key(array_of(value))


def _is_same(tensor: ir.TensorProtocol, array: Array) -> bool:
    if tensor.nbytes != array.nbytes:
        return False
    return content_key(tensor.numpy()) == content_key(array)


# Graphs in ONNX's text form. onnxscript's GraphBuilder was tried for the scores: equal results at
# no better speed, but 95 ms instead of 8 to build them, and constants that move to the outermost
# graph, which changes files. It has a public GraphBuilder only from 0.7, while 0.5 is allowed.
# Source: ONNX, docs/Syntax.md.


def parse_graph(text: str, opset: int, domains: Mapping[str, int] | None = None) -> ir.Graph:
    """A graph from its text form; see ``parse_model``."""
    return ir.from_proto(parse_model(text, opset, domains)).graph


def parse_model(text: str, opset: int, domains: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """A model from the text form of its graph.

    Args:
        text: ``name (inputs) => (outputs) { nodes }``.
        opset: the opset version of the standard operators.
        domains: the other operator domains that it uses, with their versions.
    """
    versions = {"": opset, **(domains or {})}
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in versions.items())
    model: onnx.ModelProto = parser.parse_model(
        f"<ir_version: 10, opset_import: [{imports}]> {text}"
    )
    return model


def take_nodes(
    part: ir.Graph, given: Iterable[ir.Value], prefix: str
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Remove all nodes from a graph, to insert them into another one.

    Args:
        part: the graph, which is empty afterwards.
        given: values that replace its inputs.
        prefix: added to all names, so that they differ from those of the other graph.

    Returns:
        Its nodes and its outputs.
    """
    for used, value in zip(part.inputs, given, strict=True):
        ir.convenience.replace_all_uses_with(used, value)
    prefix_names(part, prefix)
    outputs, nodes = list(part.outputs), list(part)
    part.outputs.clear()
    part.remove(nodes)
    return nodes, outputs


def prefix_names(graph: ir.Graph, prefix: str) -> None:
    """Prefix the names of nodes and their outputs, in subgraphs too."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        node.name = f"{prefix}{node.name or node.outputs[0].name}"
        for output in node.outputs:
            output.name = f"{prefix}{output.name}"
    for inner in graph.subgraphs():
        for value in inner.inputs:
            value.name = f"{prefix}{value.name}"


# Roles of weights (embedding, projection, …) are metadata of their initializers, written when a
# weight is created. Passes that treat weights differently read the role, and never infer it from
# names, sizes or operators.


EMBEDDING = "embedding"  # a table of a vocabulary, rows by token id
POSITIONS = "positions"  # a table of positions
PROJECTION = "projection"  # onto the vocabulary
MATRIX = "matrix"  # any other weight
_PARAMETER, _ROLE, _TRANSPOSED = "tfexport.parameter", "tfexport.role", "tfexport.transposed"
_READS_TABLE = "tfexport.reads_whole_table"


@dataclass(frozen=True)
class Role:
    """The role of one initializer.

    Attributes:
        parameter: the name of the parameter in the model.
        kind: one of the roles above.
        transposed: it is the parameter's transpose.
    """

    parameter: str
    kind: str = MATRIX
    transposed: bool = False


def write_role(value: ir.Value, role: Role) -> None:
    """Write a role to the metadata of an initializer."""
    value.metadata_props[_PARAMETER] = role.parameter
    value.metadata_props[_ROLE] = role.kind
    if role.transposed:
        value.metadata_props[_TRANSPOSED] = "true"


def read_role(value: ir.Value) -> Role | None:
    """The role of an initializer; None for constants."""
    found = value.metadata_props
    if _PARAMETER not in found:
        return None
    return Role(found[_PARAMETER], found.get(_ROLE, MATRIX), _TRANSPOSED in found)


def mark_table_reader(node: ir.Node) -> None:
    """Mark a node that reads a complete table, which must stay float32 for the nodes after it."""
    node.metadata_props[_READS_TABLE] = "true"


def reads_table(node: ir.Node) -> bool:
    """Whether a node was marked by ``mark_table_reader``."""
    return _READS_TABLE in node.metadata_props
