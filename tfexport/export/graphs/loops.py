"""Exported graphs joined by ONNX's Loop into the graph of a search.

Loop invariants and all weights are values of the outer graph; ``PlaceWeights`` later moves
weights to the subgraphs where onnxruntime can prepack them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.ir_tools.nodes import (
    add_initializer,
    append_node,
    prefix_names,
    rename_initializer,
    take_nodes,
    value_key,
)
from tfexport.graph_io import TensorSpec

_START, _STEP = "start/", "step/"
_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64", "int32": "int32",
    "int16": "int16", "int8": "int8", "uint8": "uint8", "bool": "bool",
}  # fmt: skip


class LoopInputs(NamedTuple):
    """The inputs of a Loop.

    Attributes:
        trips: the largest number of steps.
        begin: whether to take the first step.
        state: the state before the first step.
    """

    trips: ir.Value
    begin: ir.Value
    state: Sequence[ir.Value]


class LoopNode(NamedTuple):
    """A Loop that is not yet part of a graph.

    Attributes:
        node: the Loop.
        state: the state after the last step.
        stacked: the other outputs of all steps, along a new first axis.
    """

    node: ir.Node
    state: Sequence[ir.Value]
    stacked: Sequence[ir.Value]


def append_start(graph: ir.Graph, start: ir.Graph, given: Sequence[ir.Value]) -> list[ir.Value]:
    """Append the nodes of ``start`` to ``graph``, with ``given`` as their inputs."""
    # torch numbers sizes, so equal names in two graphs are not the same size.
    for node in start:
        for value in node.outputs:
            value.shape = None
    _lift_weights(graph, start, _START)
    nodes, outputs = take_nodes(start, given, _START)
    graph.extend(nodes)
    return outputs


def make_loop(
    graph: ir.Graph,
    step: ir.Graph,
    invariants: Sequence[ir.Value],
    given: LoopInputs,
    counted: bool = False,
) -> LoopNode:
    """A loop over the steps of a search.

    Args:
        graph: the outer graph, which gets the step's weights.
        step: from invariants and state to ``keep_going``, the state, and outputs to be stacked.
        invariants: values of the outer graph.
        given: the loop's inputs.
        counted: the input after the invariants is the number of steps taken.
    """
    inputs = list(step.inputs)
    read, carried = inputs[: len(invariants)], inputs[len(invariants) :]
    ir.convenience.replace_all_uses_with(read, invariants)
    iteration = carried.pop(0) if counted else ir.val("iteration", ir.DataType.INT64, [])
    _lift_weights(graph, step, _STEP)
    prefix_names(step, _STEP)
    for value in carried:
        value.name = f"{_STEP}{value.name}"
    step.inputs.clear()
    iteration.name = f"{_STEP}iteration"
    step.inputs.extend(
        [
            iteration,
            ir.val(f"{_STEP}condition", ir.DataType.BOOL, []),
            *carried,
        ]
    )
    step.name = "loop_step"
    node = loop_over(step, [given.trips, given.begin, *given.state], "search_loop")
    count = len(given.state)
    return LoopNode(node, node.outputs[:count], node.outputs[count:])


def loop_over(body: ir.Graph, inputs: Sequence[ir.Value], name: str) -> ir.Node:
    """A Loop node around a finished body; its outputs are named after the body's."""
    outputs = [ir.val(f"last_{value.name}", type=value.type) for value in body.outputs[1:]]
    return ir.node("Loop", inputs, {"body": body}, outputs=outputs, name=name)


def present_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node that are not omitted."""
    return [value for value in node.inputs if value is not None]


def numbered(name: str, tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Tensors with names without dots, which ONNX text does not take."""
    return [TensorSpec(f"{name}_{i}", t.dtype, t.axes) for i, t in enumerate(tensors)]


def declaration(tensor: TensorSpec, prefix: str = "", rows: str | None = None) -> str:
    """Type and name of one tensor in ONNX text; ``rows`` is another name of its first axis."""
    axes = [str(a) if isinstance(a, int) else f"{prefix}{a}" for a in tensor.axes]
    if rows is not None:
        axes[0] = rows
    shape = f"[{', '.join(axes)}]" if axes else ""
    return f"{_TYPES[tensor.dtype]}{shape} {prefix}{tensor.name}"


def gather_text(tensors: Iterable[TensorSpec], prefix: str, rows: str) -> str:
    """Gather rows of tensors in ONNX text, as ``next_`` and their names."""
    return "\n".join(
        f"next_{t.name} = Gather <axis = 0> ({prefix}{t.name}, {rows})" for t in tensors
    )


def add_trips(graph: ir.Graph, limit: int | None) -> ir.Value:
    """Add the input max_length, and return it clamped to 0 … ``limit``."""
    max_length = ir.val(graph_io.MAX_LENGTH, ir.DataType.INT64, [])
    graph.inputs.append(max_length)
    zero = add_constant(graph, "zero", 0)
    trips = append_node(graph, "Max", [max_length, zero], "trips")
    if limit is None:
        return trips
    bound = add_constant(graph, "limit", limit)
    return append_node(graph, "Min", [trips, bound], "bounded_trips")


def add_constant(graph: ir.Graph, name: str, value: bool | int | list[int]) -> ir.Value:
    """Add an initializer, of int64 unless it is a bool."""
    kind = np.bool_ if isinstance(value, bool) else np.int64
    return add_initializer(graph, f"loop/{name}", np.asarray(value, kind))


def input_of(graph: ir.Graph, name: str) -> ir.Value:
    """A graph's input by name."""
    return next(value for value in graph.inputs if value.name == name)


def set_outputs(graph: ir.Graph, outputs: Sequence[ir.Value], spec: graph_io.GraphSpec) -> None:
    """Make these values the outputs of a graph, with the names and types of its spec."""
    graph.name = spec.name
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    for value, tensor in zip(graph.outputs, spec.outputs, strict=True):
        value.name, value.shape = tensor.name, ir.Shape(tensor.axes)
        kind = ir.DataType.INT64 if tensor.dtype == "int64" else ir.DataType.FLOAT
        value.type = ir.TensorType(kind)


def _lift_weights(graph: ir.Graph, inner: ir.Graph, prefix: str) -> None:
    """Move the initializers of ``inner`` to ``graph``, which keeps one of equal ones."""
    # The Transpose of a tied table moves too: onnxruntime then transposes it once, not every step.
    have = {value_key(value): value for value in graph.initializers.values()}
    for value in list(inner.initializers.values()):
        inner.initializers.pop(value.name or "")
        key = value_key(value)
        if key in have:
            ir.convenience.replace_all_uses_with(value, have[key])
            continue
        rename_initializer(value, f"{prefix}{value.name}")
        graph.register_initializer(value)
        have[key] = value
    for node in [node for node in inner if node.op_type == "Transpose" and _reads(node, graph)]:
        inner.remove(node)
        node.name = f"{prefix}{node.name}"
        node.outputs[0].name = f"{prefix}{node.outputs[0].name}"
        graph.insert_before(graph[0], node)


def _reads(node: ir.Node, graph: ir.Graph) -> bool:
    """Whether a node's first input is an initializer of a graph."""
    value = node.inputs[0]
    return value is not None and graph.initializers.get(value.name or "") is value
