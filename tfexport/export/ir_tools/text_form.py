"""Graphs in ONNX's text form: parsed, and inserted into other graphs.

onnxscript's GraphBuilder was tried on the scores: equal results at no better speed, but 95 ms
instead of 8 to build them, and constants that move to the outermost graph, which changes files. It
has a public GraphBuilder only from 0.7, while 0.5 is allowed, so the text stays.
Source: ONNX, docs/Syntax.md.
"""

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir
from onnx import parser


def parse_graph(text: str, opset: int, domains: Mapping[str, int] | None = None) -> ir.Graph:
    """A graph from its text form; see ``parse_model``."""
    return ir.from_proto(parse_model(text, opset, domains)).graph


def parse_model(text: str, opset: int, domains: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """A model from the text form of its graph.

    Args:
        text: ``name (inputs) => (outputs) { nodes }``.
        opset: of the standard operators.
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
