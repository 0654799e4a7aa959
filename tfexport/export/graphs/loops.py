"""A whole search in one graph: three exported modules, joined by Loop nodes.

All logic is in the modules: ``graphs`` for greedy search, ``shrinking`` for rows that have ended,
``beam`` for beams; here is only the glue. The loops' invariants and all weights are values of
the outer graph; ``weights.sink_weights`` puts the weights where onnxruntime wants them.
"""

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.graphs.batch_compaction import SEARCH, shrinking_body
from tfexport.export.graphs.beam import BeamStart, BeamStep
from tfexport.export.graphs.encoder_decoder import LoopStart, LoopStep
from tfexport.export.graphs.exporter import cache_shape, export_encoder, export_graph_module
from tfexport.export.graphs.sequence_scores import add_scores
from tfexport.export.ir_tools.text_form import STAND_INS, prefix_names, take_nodes
from tfexport.export.passes.int8_argmax import put_screening
from tfexport.export.passes.share_weights import add_initializer, content_key
from tfexport.model_src.transformer import Transformer

_START, _BODY, _SHRINK = "start/", "step/", "rows/"


def export_generate(
    model: Transformer,
    opset: int,
    encoder: ir.Model | None = None,
    attention: bool = False,
    can_skip_scores: bool = False,
) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``.

    Args:
        model: with weights.
        opset: of the standard operators.
        encoder: what ``export_encoder`` made of the same model, if that was done already.
        attention: also give the cross-attention weights.
        can_skip_scores: also take ``return_scores``. onnxruntime warns of an input that need not be
            fed, so only a file whose programs are told of it has one.
    """
    cache = cache_shape(model.config)
    joined = export_encoder(model, opset) if encoder is None else encoder.clone()
    graph = joined.graph
    start = export_graph_module(LoopStart(model), graph_io.loop_start(cache), opset)
    spec = graph_io.loop_step(cache, model.config.d_model, attention)
    step = export_graph_module(LoopStep(model, attention), spec, opset)
    _hidden, *cross = graph.outputs
    bias, begin, *state = _append(graph, start.graph, [_input(graph, graph_io.ATTENTION_MASK)])
    arrays = {
        name: tensor.detach().numpy() for name, tensor in model.output_proj.named_parameters()
    }
    projection = put_screening(graph, step.graph, arrays["weight"], arrays.get("bias"), opset)
    trips = _trip_count(graph, model.config.longest)
    attended: list[ir.Value] = []
    if attention:  # what a turn gives of each row cannot be stacked with fewer rows
        invariants = [*cross, bias, _constant(graph, "none", np.int64(0))]
        loop = _make_loop(graph, step.graph, invariants, [trips, begin, *state])
        graph.append(loop)
        _, _, count, sequences = loop.outputs[:4]
        states, weights = loop.outputs[len(state) :]
        # (T, B, 1, E) to (B, T, E), and (T, B, L, H, S) to (B, L, H, T, S).
        flat = _constant(graph, "third", [2])
        squeezed = _add_node(graph, "Squeeze", [states, flat], "states_of_steps")
        states = _add_node(graph, "Transpose", [squeezed], "states", perm=[1, 0, 2])
        attended.append(_add_node(graph, "Transpose", [weights], "turned", perm=[1, 2, 3, 0, 4]))
    else:
        sequences, count, states = _add_shrinking_loop(
            graph, step.graph, [*cross, bias], [trips, begin, *state], model, opset
        )
    found = [sequences, count, states]
    scores = add_scores(graph, found, projection, opset, can_skip_scores)
    outputs = [sequences, scores, *attended]
    _set_outputs(graph, outputs, graph_io.generate_graph(cache if attention else None))
    del step.opset_imports[STAND_INS]
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
    trips = _trip_count(graph, model.config.longest)
    beam_size = _value(graph_io.BEAM_SIZE, "INT64", [])
    enough = _value(graph_io.ENOUGH, "INT64", [])
    graph.inputs.extend([beam_size, enough])
    flat = _constant(graph, "flat", [1])
    # No more beams than a step can rank: with more, TopK fails before their memory is taken.
    assert model.config.target_vocab_size is not None
    most = _constant(graph, "most_beams", np.int64(model.config.target_vocab_size // 2 + 1))
    bounded = _add_node(graph, "Min", [beam_size, most], "bounded_beam_size")
    shape = _add_node(graph, "Reshape", [bounded, flat], "beam_shape")
    zero = ir.tensor(np.zeros(1, np.int64))
    zeros = _add_node(graph, "ConstantOfShape", [shape], "beam_zeros", value=zero)
    mask = _input(graph, graph_io.ATTENTION_MASK)
    bias, *state = _append(graph, start.graph, [mask, zeros])
    begin = _constant(graph, "begin", np.bool_(True))
    loop = _make_loop(graph, step.graph, [*cross, bias, enough], [trips, begin, *state])
    graph.append(loop)
    _set_outputs(graph, list(loop.outputs[len(state) :]), spec)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _append(graph: ir.Graph, start: ir.Graph, given: list[ir.Value]) -> list[ir.Value]:
    """Move the start's nodes behind the graph's own, with these values as its inputs."""
    _lift_weights(graph, start, _START)
    nodes, outputs = take_nodes(start, given, _START)
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
    """Append the two loops of ``shrinking``; sequences, counts and states after them.

    Args:
        graph: the outer graph.
        step: as for ``_make_loop``; its last invariant says with how few rows it ends.
        invariants: the others; a row for each of the batch.
        given: as for ``_make_loop``; the state is that of greedy search.
        model: what is exported.
        opset: of the standard operators.
    """
    assert model.config.pad_id is not None
    trips, begin, token, ended, count, sequences, *past = given
    fixed, state = graph_io.loop_values(cache_shape(model.config), graph_io.PAST)
    width = model.config.d_model
    body = shrinking_body(state, fixed, model.config.pad_id, width, opset)
    (search,) = [node for node in body if node.op_type == SEARCH]
    remaining, yes, few, *searched = [value for value in search.inputs if value is not None]
    rows = body.inputs[-len(fixed) :]
    loop = _make_loop(graph, step, [*rows, few], [remaining, yes, *searched])
    prefix_names(body, _SHRINK)
    body.insert_before(search, loop)
    ir.convenience.replace_all_uses_with(search.outputs, loop.outputs)
    for old, new in zip(search.outputs, loop.outputs, strict=True):
        new.name = old.name
    body.remove(search, safe=True)
    for value in body.inputs:
        value.name = f"{_SHRINK}{value.name}"

    height = _add_node(graph, "Shape", [count], "height")
    size = _add_node(graph, "Squeeze", [height], "size")
    zero, one = _constant(graph, "zero", np.int64(0)), _constant(graph, "one", np.int64(1))
    order = _add_node(graph, "Range", [zero, size, one], "order")
    area = _constant(graph, "no_steps", [0, width])
    state_shape = _add_node(graph, "Concat", [height, area], "state_shape", axis=0)
    states = _add_node(graph, "ConstantOfShape", [state_shape], "no_states")
    whole = [trips, order, sequences, count, states]
    outer = ir.Node(
        "", "Loop", [trips, begin, *whole, token, ended, count, *past, *invariants],
        [ir.AttrGraph("body", body)], num_outputs=len(body.outputs) - 1, name="shrinking_loop",
    )  # fmt: skip
    for output, value in zip(outer.outputs, body.outputs[1:], strict=True):
        output.name, output.type = f"last_{value.name}", value.type
    graph.append(outer)
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
    prefix_names(body, _BODY)
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


def _input(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.inputs if value.name == name)


def _trip_count(graph: ir.Graph, limit: int | None) -> ir.Value:
    """A new input, max_length, not below 0 and not above the limit."""
    max_length = _value(graph_io.MAX_LENGTH, "INT64", [])
    graph.inputs.append(max_length)
    zero = _constant(graph, "zero", np.int64(0))
    trips = _add_node(graph, "Max", [max_length, zero], "trips")
    if limit is None:
        return trips
    bound = _constant(graph, "limit", np.int64(limit))
    return _add_node(graph, "Min", [trips, bound], "bounded_trips")


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


def _value(name: str, dtype: str, shape: list[int]) -> ir.Value:
    kind = ir.TensorType(getattr(ir.DataType, dtype))
    return ir.Value(name=name, shape=ir.Shape(shape), type=kind)


def _add_node(
    graph: ir.Graph,
    operator: str,
    inputs: list[ir.Value],
    name: str,
    **attributes: int | list[int] | ir.TensorProtocol,
) -> ir.Value:
    given = ir.convenience.convert_attributes(attributes)
    node = ir.Node("", operator, inputs, given, num_outputs=1, name=name)
    node.outputs[0].name = name
    graph.append(node)
    return node.outputs[0]


def _constant(graph: ir.Graph, name: str, value: np.generic | list[int]) -> ir.Value:
    return add_initializer(graph, f"loop/{name}", np.asarray(value))


def _key(value: ir.Value) -> str:
    assert value.const_value is not None
    return content_key(value.const_value.numpy())
