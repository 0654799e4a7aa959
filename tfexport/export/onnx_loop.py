"""A whole search in one graph: three exported modules, joined by Loop nodes.

All logic is in the modules: ``graphs`` for greedy search, ``shrinking`` for rows that have ended,
``beam`` for beams; here is only the glue. The loops' invariants and all weights are values of
the outer graph; ``weights.sink_weights`` puts the weights where onnxruntime wants them.
"""

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.beam import BeamStart, BeamStep
from tfexport.export.graphs import LoopStart, LoopStep
from tfexport.export.onnx_export import cache_shape, export_encoder, export_graph_module
from tfexport.export.shrinking import SEARCH, shrinking_body
from tfexport.export.weights import add_initializer, content_key
from tfexport.model_src.transformer import Transformer

_START, _BODY, _SHRINK = "start/", "step/", "rows/"


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
    cache = cache_shape(model.config)
    joined = export_encoder(model, opset) if encoder is None else encoder.clone()
    graph = joined.graph
    start = export_graph_module(LoopStart(model), graph_io.loop_start(cache), opset)
    step = export_graph_module(
        LoopStep(model, attention), graph_io.loop_step(cache, attention), opset
    )
    _hidden, *cross = graph.outputs
    bias, begin, *state = _append(graph, start.graph, [_input(graph, graph_io.ATTENTION_MASK)])
    trips = _trip_count(graph, _limit(model))
    stacked: list[ir.Value] = []
    if attention:  # what a turn gives of each row cannot be stacked with fewer rows
        invariants = [*cross, bias, _constant(graph, "none", np.int64(0))]
        loop = _make_loop(graph, step.graph, invariants, [trips, begin, *state])
        graph.append(loop)
        _, _, score, count, sequences = loop.outputs[:5]
        stacked = list(loop.outputs[len(state) :])
    else:
        sequences, score, count = _add_shrinking_loop(
            graph, step.graph, [*cross, bias], [trips, begin, *state], model, opset
        )
    one = _constant(graph, "one", np.float32(1))
    counted = ir.Node("", "Max", [count, one], num_outputs=1, name="at_least_one")
    counted.outputs[0].name = "counted"
    mean = ir.Node("", "Div", [score, counted.outputs[0]], num_outputs=1, name="mean")
    graph.extend([counted, mean])
    outputs = [sequences, mean.outputs[0]]
    for attended in stacked:  # (T, B, L, H, S) to (B, L, H, T, S)
        order = ir.AttrInt64s("perm", [1, 2, 3, 0, 4])
        turned = ir.Node("", "Transpose", [attended], [order], num_outputs=1, name="turned")
        graph.append(turned)
        outputs.append(turned.outputs[0])
    _set_outputs(graph, outputs, graph_io.generate_graph(cache if attention else None))
    joined.opset_imports.update(step.opset_imports)
    return joined


def export_beam(model: Transformer, opset: int, encoder: ir.Model) -> ir.Model:
    """Export ``beam``: see ``graph_io.beam_graph``.

    Args:
        model: with weights, and with ``beam_attention`` in it.
        opset: of the standard operators.
        encoder: what ``export_encoder`` made of the same weights.
    """
    cache, spec = cache_shape(model.config), graph_io.beam_graph()
    joined = encoder.clone()
    graph = joined.graph
    start = export_graph_module(BeamStart(model), graph_io.beam_start(cache), opset)
    step = export_graph_module(BeamStep(model), graph_io.beam_step(cache), opset)
    _hidden, *cross = graph.outputs
    trips = _trip_count(graph, _limit(model))
    beam_size = _value(graph_io.BEAM_SIZE, "INT64", [])
    enough = _value(graph_io.ENOUGH, "INT64", [])
    graph.inputs.extend([beam_size, enough])
    shape = ir.Node("", "Reshape", [beam_size, _constant(graph, "flat", [1])],
                    num_outputs=1, name="beam_shape")  # fmt: skip
    zero = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.int64)))
    zeros = ir.Node("", "ConstantOfShape", shape.outputs, [zero], num_outputs=1, name="beam_zeros")
    shape.outputs[0].name, zeros.outputs[0].name = "beam_shape", "beam_zeros"
    graph.extend([shape, zeros])
    mask = _input(graph, graph_io.ATTENTION_MASK)
    bias, *state = _append(graph, start.graph, [mask, zeros.outputs[0]])
    begin = _constant(graph, "begin", np.bool_(True))
    loop = _make_loop(graph, step.graph, [*cross, bias, enough], [trips, begin, *state])
    graph.append(loop)
    _set_outputs(graph, list(loop.outputs[len(state) :]), spec)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _append(graph: ir.Graph, start: ir.Graph, given: list[ir.Value]) -> list[ir.Value]:
    """Move the start's nodes behind the graph's own, with these values as its inputs."""
    for used, value in zip(start.inputs, given, strict=True):
        ir.convenience.replace_all_uses_with(used, value)
    _lift_weights(graph, start, _START)
    _prefix_names(start, _START)
    outputs, nodes = list(start.outputs), list(start)
    start.outputs.clear()
    start.remove(nodes)
    graph.extend(nodes)
    return outputs


def _add_shrinking_loop(
    graph: ir.Graph,
    step: ir.Graph,
    invariants: list[ir.Value],
    given: list[ir.Value],
    model: Transformer,
    opset: int,
) -> list[ir.Value]:
    """Append the two loops of ``shrinking``; sequences, scores and counts after them.

    Args:
        graph: the outer graph.
        step: as for ``_make_loop``; its last invariant says with how few rows it ends.
        invariants: the others; a row for each of the batch.
        given: as for ``_make_loop``; the state is that of greedy search.
        model: what is exported.
        opset: of the standard operators.
    """
    assert model.config.pad_id is not None
    trips, begin, token, ended, score, count, sequences, *past = given
    fixed, state = graph_io.loop_values(cache_shape(model.config), graph_io.PAST)
    body = shrinking_body(state, fixed, model.config.pad_id, opset)
    (search,) = [node for node in body if node.op_type == SEARCH]
    remaining, yes, few, *searched = [value for value in search.inputs if value is not None]
    rows = body.inputs[-len(fixed) :]
    loop = _make_loop(graph, step, [*rows, few], [remaining, yes, *searched])
    body.insert_before(search, loop)
    ir.convenience.replace_all_uses_with(search.outputs, loop.outputs)
    for old, new in zip(search.outputs, loop.outputs, strict=True):
        new.name = old.name
    body.remove(search, safe=True)
    _prefix_names(body, _SHRINK)
    for value in body.inputs:
        value.name = f"{_SHRINK}{value.name}"

    height = ir.Node("", "Shape", [score], num_outputs=1, name="height")
    size = ir.Node("", "Squeeze", height.outputs, num_outputs=1, name="size")
    zero, one = _constant(graph, "zero", np.int64(0)), _constant(graph, "step", np.int64(1))
    order = ir.Node("", "Range", [zero, size.outputs[0], one], num_outputs=1, name="order")
    for node in (height, size, order):
        node.outputs[0].name = node.name
    whole = [trips, order.outputs[0], sequences, score, count]
    outer = ir.Node(
        "", "Loop", [trips, begin, *whole, token, ended, score, count, *past, *invariants],
        [ir.AttrGraph("body", body)], num_outputs=len(body.outputs) - 1, name="shrinking_loop",
    )  # fmt: skip
    for output, value in zip(outer.outputs, body.outputs[1:], strict=True):
        output.name, output.type = f"last_{value.name}", value.type
    graph.extend([height, size, order, outer])
    return list(outer.outputs[2:5])


def _make_loop(
    graph: ir.Graph, body: ir.Graph, invariants: list[ir.Value], given: list[ir.Value]
) -> ir.Node:
    """A loop, not yet part of a graph.

    Args:
        graph: takes the body's weights.
        body: takes invariants and state; gives whether to go on, the state, and what is stacked.
        invariants: values around the loop.
        given: how many turns at most, whether to take the first, and the state before it.

    Returns:
        A node that gives the state after the last turn, and what was stacked, along a new first
        axis.
    """
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
    results = body.outputs[1:]
    loop = ir.Node(
        "", "Loop", given, [ir.AttrGraph("body", body)], num_outputs=len(results),
        name="search_loop",
    )  # fmt: skip
    for output, value in zip(loop.outputs, results, strict=True):
        output.name, output.type = f"last_{value.name}", value.type
    return loop


def _set_outputs(graph: ir.Graph, outputs: list[ir.Value], spec: graph_io.GraphSpec) -> None:
    graph.name = spec.name
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    for value, tensor in zip(graph.outputs, spec.outputs, strict=True):
        value.name, value.shape = tensor.name, ir.Shape(tensor.axes)
        kind = ir.DataType.INT64 if tensor.dtype == "int64" else ir.DataType.FLOAT
        value.type = ir.TensorType(kind)


def _limit(model: Transformer) -> int | None:
    """What the position table allows."""
    return None if model.config.positions == "none" else model.config.max_positions


def _input(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.inputs if value.name == name)


def _trip_count(graph: ir.Graph, limit: int | None) -> ir.Value:
    """A new input, max_length, not below 0 and not above the limit."""
    max_length = _value(graph_io.MAX_LENGTH, "INT64", [])
    graph.inputs.append(max_length)
    zero = _constant(graph, "zero", np.int64(0))
    bounds = [("Max", "trips", zero)]
    if limit is not None:
        bounds.append(("Min", "bounded_trips", _constant(graph, "limit", np.int64(limit))))
    count = max_length
    for operator, name, bound in bounds:
        node = ir.Node("", operator, [count, bound], num_outputs=1, name=name)
        node.outputs[0].name = name
        graph.append(node)
        count = node.outputs[0]
    return count


def _lift_weights(graph: ir.Graph, inner: ir.Graph, prefix: str) -> None:
    """Move a graph's initializers out; equal ones are shared with those that are there.

    A table that a projection is tied to is turned outside too, where onnxruntime does it once.
    """
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
    turns = [node for node in inner if node.op_type == "Transpose" and _is_of_weight(node, graph)]
    for node in turns:
        inner.remove(node)
        node.name = f"{prefix}{node.name}"
        node.outputs[0].name = f"{prefix}{node.outputs[0].name}"
        graph.insert_before(graph[0], node)


def _is_of_weight(node: ir.Node, graph: ir.Graph) -> bool:
    value = node.inputs[0]
    return value is not None and value.name in graph.initializers


def _prefix_names(inner: ir.Graph, prefix: str) -> None:
    # Generated names of two graphs collide, and a body may not shadow outer names.
    for node in inner:
        node.name = f"{prefix}{node.name or node.outputs[0].name}"
        for output in node.outputs:
            output.name = f"{prefix}{output.name}"


def _value(name: str, dtype: str, shape: list[int]) -> ir.Value:
    kind = ir.TensorType(getattr(ir.DataType, dtype))
    return ir.Value(name=name, shape=ir.Shape(shape), type=kind)


def _constant(graph: ir.Graph, name: str, value: np.generic | list[int]) -> ir.Value:
    return add_initializer(graph, f"loop/{name}", np.asarray(value))


def _key(value: ir.Value) -> str:
    assert value.const_value is not None
    return content_key(value.const_value.numpy())
