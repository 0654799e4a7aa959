"""The whole greedy loop in one graph: two exported modules, joined by a Loop node.

All logic is in ``graphs.LoopStart`` and ``graphs.LoopStep``; here is only the glue. The loop's
invariants and all weights are values of the outer graph, so its body holds no initializers.
"""

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.graphs import LoopStart, LoopStep
from tfexport.export.onnx_export import export_graph_module
from tfexport.export.weights import content_key
from tfexport.model_src.transformer import Transformer

_BODY = "step/"


def export_generate(model: Transformer, opset: int) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``."""
    config = model.config
    cache = graph_io.CacheShape(config.num_decoder_layers, config.num_heads, config.head_dim)
    start = export_graph_module(LoopStart(model), graph_io.loop_start(cache), opset)
    step = export_graph_module(LoopStep(model), graph_io.loop_step(cache), opset)
    limit = None if config.positions == "none" else config.max_positions
    _join(start, step, 2 * config.num_decoder_layers + 1, limit)
    return start


def _join(outer: ir.Model, inner: ir.Model, invariants: int, limit: int | None) -> None:
    graph, body = outer.graph, inner.graph
    outputs = list(graph.outputs)
    begin, state = outputs[invariants], outputs[invariants + 1 :]
    inputs = list(body.inputs)
    for used, value in zip(inputs[:invariants], outputs[:invariants], strict=True):
        ir.convenience.replace_all_uses_with(used, value)
    _lift_weights(graph, body)
    _prefix_names(body, inputs[invariants:])
    body.inputs.clear()
    body.inputs.extend(
        [
            _value("step/iteration", "INT64", []),
            _value("step/condition", "BOOL", []),
            *inputs[invariants:],
        ]
    )
    body.name = "loop_step"

    max_length = _value(graph_io.MAX_LENGTH, "INT64", [])
    graph.inputs.append(max_length)
    nodes, trips = _trip_count(graph, max_length, limit)
    loop = ir.Node(
        "", "Loop", [trips, begin, *state], [ir.AttrGraph("body", body)], num_outputs=len(state),
        name="greedy_loop",
    )  # fmt: skip
    for output, value in zip(loop.outputs, body.outputs[1:], strict=True):
        output.name, output.type = f"last_{value.name}", value.type
    _, _, score, count, sequences = loop.outputs[:5]
    one = _constant(graph, "one", np.float32(1))
    counted = ir.Node("", "Max", [count, one], num_outputs=1, name="at_least_one")
    counted.outputs[0].name = "counted"
    mean = ir.Node("", "Div", [score, counted.outputs[0]], num_outputs=1, name="mean")
    scores = mean.outputs[0]
    graph.extend([*nodes, loop, counted, mean])
    graph.outputs.clear()
    for value, spec in zip((sequences, scores), graph_io.generate_graph().outputs, strict=True):
        value.name, value.shape = spec.name, ir.Shape(spec.axes)
        value.type = ir.TensorType(
            ir.DataType.INT64 if spec.dtype == "int64" else ir.DataType.FLOAT
        )
        graph.outputs.append(value)
    graph.name = "generate"


def _trip_count(
    graph: ir.Graph, max_length: ir.Value, limit: int | None
) -> tuple[list[ir.Node], ir.Value]:
    """max_length, not below 0 and not above what the position table allows."""
    at_least = ir.Node(
        "", "Max", [max_length, _constant(graph, "zero", np.int64(0))], num_outputs=1, name="trips"
    )
    at_least.outputs[0].name = "trips"
    if limit is None:
        return [at_least], at_least.outputs[0]
    bound = _constant(graph, "limit", np.int64(limit))
    at_most = ir.Node("", "Min", [at_least.outputs[0], bound], num_outputs=1, name="bounded_trips")
    at_most.outputs[0].name = "bounded_trips"
    return [at_least, at_most], at_most.outputs[0]


def _lift_weights(graph: ir.Graph, body: ir.Graph) -> None:
    """Move the body's initializers out; equal ones are shared with those that are there."""
    have = {_key(value): value for value in graph.initializers.values()}
    for value in list(body.initializers.values()):
        body.initializers.pop(value.name or "")
        key = _key(value)
        if key in have:
            ir.convenience.replace_all_uses_with(value, have[key])
            continue
        value.name = f"{_BODY}{value.name}"
        assert value.const_value is not None
        value.const_value.name = value.name
        graph.register_initializer(value)
        have[key] = value


def _prefix_names(body: ir.Graph, state: list[ir.Value]) -> None:
    # Generated names of the two graphs collide, and a body may not shadow outer names.
    for node in body:
        node.name = f"{_BODY}{node.name}"
        for output in node.outputs:
            output.name = f"{_BODY}{output.name}"
    for value in state:
        value.name = f"{_BODY}{value.name}"


def _value(name: str, dtype: str, shape: list[int]) -> ir.Value:
    kind = ir.TensorType(getattr(ir.DataType, dtype))
    return ir.Value(name=name, shape=ir.Shape(shape), type=kind)


def _constant(graph: ir.Graph, name: str, number: np.generic) -> ir.Value:
    tensor = ir.tensor(np.asarray(number), name=f"loop/{name}")
    value = ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape([]))
    value.type = ir.TensorType(tensor.dtype)
    graph.register_initializer(value)
    return value


def _key(value: ir.Value) -> str:
    assert value.const_value is not None
    return content_key(value.const_value.numpy())
