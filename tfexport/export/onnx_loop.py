"""The whole greedy loop in one graph: three exported modules, joined by a Loop node.

All logic is in ``graphs.EncoderGraph``, ``LoopStart`` and ``LoopStep``; here is only the glue. The
loop's invariants and all weights are values of the outer graph, so its body holds no initializers.
"""

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.graphs import LoopStart, LoopStep
from tfexport.export.onnx_export import cache_shape, export_encoder, export_graph_module
from tfexport.export.weights import add_initializer, content_key
from tfexport.model_src.transformer import Transformer

_START, _BODY = "start/", "step/"


def export_generate(
    model: Transformer, opset: int, encoder: ir.Model | None = None, attention: bool = False
) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``.

    Args:
        model: with weights.
        opset: of the standard operators.
        encoder: what ``export_encoder`` made of the same model, if that was done already.
        attention: also give the cross-attention weights.
    """
    config, cache = model.config, cache_shape(model.config)
    joined = export_encoder(model, opset) if encoder is None else encoder.clone()
    start = export_graph_module(LoopStart(model), graph_io.loop_start(cache), opset)
    step = export_graph_module(
        LoopStep(model, attention), graph_io.loop_step(cache, attention), opset
    )
    _hidden, *cross = joined.graph.outputs
    bias, begin, *state = _append(joined.graph, start.graph)
    limit = None if config.positions == "none" else config.max_positions
    _add_loop(joined.graph, step.graph, [*cross, bias], begin, state, limit)
    _name_outputs(joined.graph, graph_io.generate_graph(cache if attention else None))
    joined.opset_imports.update(step.opset_imports)
    return joined


def _append(graph: ir.Graph, start: ir.Graph) -> list[ir.Value]:
    """Move the start's nodes behind the encoder's, on the same attention mask."""
    mask = next(value for value in graph.inputs if value.name == graph_io.ATTENTION_MASK)
    ir.convenience.replace_all_uses_with(start.inputs[0], mask)
    _lift_weights(graph, start, _START)
    _prefix_names(start, _START)
    outputs, nodes = list(start.outputs), list(start)
    start.outputs.clear()
    start.remove(nodes)
    graph.extend(nodes)
    return outputs


def _add_loop(
    graph: ir.Graph,
    body: ir.Graph,
    invariants: list[ir.Value],
    begin: ir.Value,
    state: list[ir.Value],
    limit: int | None,
) -> None:
    inputs = list(body.inputs)
    for used, value in zip(inputs[: len(invariants)], invariants, strict=True):
        ir.convenience.replace_all_uses_with(used, value)
    carried = inputs[len(invariants) :]
    _lift_weights(graph, body, _BODY)
    _prefix_names(body, _BODY)
    for value in carried:
        value.name = f"{_BODY}{value.name}"
    body.inputs.clear()
    body.inputs.extend(
        [
            _value("step/iteration", "INT64", []),
            _value("step/condition", "BOOL", []),
            *carried,
        ]
    )
    body.name = "loop_step"

    max_length = _value(graph_io.MAX_LENGTH, "INT64", [])
    graph.inputs.append(max_length)
    nodes, trips = _trip_count(graph, max_length, limit)
    results = body.outputs[1:]
    loop = ir.Node(
        "", "Loop", [trips, begin, *state], [ir.AttrGraph("body", body)], num_outputs=len(results),
        name="greedy_loop",
    )  # fmt: skip
    for output, value in zip(loop.outputs, results, strict=True):
        output.name, output.type = f"last_{value.name}", value.type
    _, _, score, count, sequences = loop.outputs[:5]
    one = _constant(graph, "one", np.float32(1))
    counted = ir.Node("", "Max", [count, one], num_outputs=1, name="at_least_one")
    counted.outputs[0].name = "counted"
    mean = ir.Node("", "Div", [score, counted.outputs[0]], num_outputs=1, name="mean")
    graph.extend([*nodes, loop, counted, mean])
    graph.outputs.clear()
    graph.outputs.extend([sequences, mean.outputs[0]])
    if len(results) > len(state):
        # What a turn gives besides the state is stacked: (T, B, L, H, S) to (B, L, H, T, S).
        order = ir.AttrInt64s("perm", [1, 2, 3, 0, 4])
        turned = ir.Node("", "Transpose", [loop.outputs[-1]], [order], num_outputs=1, name="turned")
        graph.append(turned)
        graph.outputs.append(turned.outputs[0])


def _name_outputs(graph: ir.Graph, spec: graph_io.GraphSpec) -> None:
    graph.name = spec.name
    for value, tensor in zip(graph.outputs, spec.outputs, strict=True):
        value.name, value.shape = tensor.name, ir.Shape(tensor.axes)
        kind = ir.DataType.INT64 if tensor.dtype == "int64" else ir.DataType.FLOAT
        value.type = ir.TensorType(kind)


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


def _lift_weights(graph: ir.Graph, inner: ir.Graph, prefix: str) -> None:
    """Move a graph's initializers out; equal ones are shared with those that are there."""
    have = {_key(value): value for value in graph.initializers.values()}
    for value in list(inner.initializers.values()):
        inner.initializers.pop(value.name or "")
        key = _key(value)
        if key in have:
            ir.convenience.replace_all_uses_with(value, have[key])
            continue
        value.name = f"{prefix}{value.name}"
        assert value.const_value is not None
        value.const_value.name = value.name
        graph.register_initializer(value)
        have[key] = value


def _prefix_names(inner: ir.Graph, prefix: str) -> None:
    # Generated names of two graphs collide, and a body may not shadow outer names.
    for node in inner:
        node.name = f"{prefix}{node.name}"
        for output in node.outputs:
            output.name = f"{prefix}{output.name}"


def _value(name: str, dtype: str, shape: list[int]) -> ir.Value:
    kind = ir.TensorType(getattr(ir.DataType, dtype))
    return ir.Value(name=name, shape=ir.Shape(shape), type=kind)


def _constant(graph: ir.Graph, name: str, number: np.generic) -> ir.Value:
    return add_initializer(graph, f"loop/{name}", np.asarray(number))


def _key(value: ir.Value) -> str:
    assert value.const_value is not None
    return content_key(value.const_value.numpy())
