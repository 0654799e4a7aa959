"""Creation of nodes with one output and a name."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

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
        operator: without its domain.
        inputs: None for one that is left out.
        name: of the node.
        attributes: by name.
        output: the output's name; the node's by default.
        domain: of the operator.
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
