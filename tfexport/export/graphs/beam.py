"""Beam search in one graph: the first state and one step from torch, joined by an ONNX Loop.

The loop keeps no finished hypotheses. It records the candidates of every step, which
``beam_choice`` finds, and the runtime backtraces hypotheses from that record: see
``runtime.search.graph_search``.

Axes: B sentences, K beams, R = B * K rows, V vocabulary.
"""

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.beam_choice import (
    STATE,
    Prepared,
    append_choice,
    append_prepared,
)
from tfexport.export.graphs.loops import (
    LoopInputs,
    add_constant,
    add_trips,
    append_start,
    input_of,
    make_loop,
    set_outputs,
)
from tfexport.export.graphs.step_model import StepModel
from tfexport.export.ir_tools.nodes import append_node
from tfexport.graph_io import BATCH, PAST, GraphSpec, TensorSpec


def _past(model: StepModel, past: str, prefix: str = "") -> tuple[TensorSpec, ...]:
    """The model's state, of R rows."""
    return tuple(
        TensorSpec(tensor.name, tensor.dtype, (graph_io.ROWS, *tensor.axes[1:]))
        for tensor in model.state(past, prefix)
    )


def start_spec(model: StepModel) -> GraphSpec:
    """The graph from an encoder graph to the first state; see ``BeamStart``."""
    zeros = TensorSpec(graph_io.BEAMS, "int64", (graph_io.BEAMS,))
    sums = TensorSpec("first_sums", "float64", (BATCH, graph_io.BEAMS))
    past = _past(model, "0", prefix="first_")
    return GraphSpec(
        "beam_start", (*model.read_by_start, zeros), (*model.beam_memory.made, sums, *past)
    )


def step_spec(model: StepModel) -> GraphSpec:
    """The graph of one step of the model; see ``BeamStep``."""
    position = TensorSpec("position", "int64", ())
    token = TensorSpec("token", "int64", (BATCH, graph_io.BEAMS))
    logits = TensorSpec("step_logits", "float32", (BATCH, graph_io.BEAMS, model.vocab_size))
    return GraphSpec(
        "beam_step",
        inputs=(*model.beam_memory.tensors, position, token, *_past(model, PAST)),
        outputs=(logits, *_past(model, f"{PAST} + 1", prefix="next_")),
    )


class BeamStart(nn.Module):
    """The memory that is made once, and the first sums and state of the model."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Values of the encoder graph and one zero for every beam (K,), to memory and state."""
        *values, beams = tensors
        made = self.steps.make_memory(values, beams)
        zeros = self.steps.source_mask(values).sum(1) * 0
        # Only the first beam holds a hypothesis: the empty one.
        first = torch.arange(beams.size(0)) == 0
        sums = torch.where(first, 0.0, -torch.inf).double() + zeros.unsqueeze(1)
        past = self.steps.first_past(values, made, sums.float())
        return (*made, sums, *past)


class BeamStep(nn.Module):
    """One step of the model: memory, steps taken, tokens (B, K), state -> logits, next state."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Logits are (B, K, V); each row of the state is of the beam that was given."""
        size = len(self.steps.beam_memory.tensors)
        memory, (position, token, *past) = tensors[:size], tensors[size:]
        logits, present = self.steps.step_beams(token, position, past, memory)
        return (logits, *present)


def export_beam(steps: StepModel, opset: int, encoder: ir.Model) -> ir.Model:
    """Export ``beam``: see ``graph_io.beam_graph``.

    Args:
        steps: the model, with weights; a ``Transformer`` has ``beam_attention`` in it.
        opset: the opset version of the standard operators.
        encoder: the encoder graph for the same weights, which is not changed.
    """
    joined = encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(BeamStart(steps), start_spec(steps), opset, steps.sizes)
    step = exporter.export_graph_module(BeamStep(steps), step_spec(steps), opset, steps.sizes)
    kept, read = steps.encoder_values(graph)
    trips = add_trips(graph, steps.longest)
    spec = graph_io.beam_graph(steps.inputs)
    graph.inputs.extend(map(_value, spec.inputs[len(steps.inputs) + 1 :]))  # behind max_length
    zeros = _zeros(graph, steps.vocab_size)
    values = append_start(graph, start.graph, [*read, zeros])
    count = len(steps.beam_memory.made)
    made, sums, past = values[:count], values[count], values[count + 1 :]
    prepared = append_prepared(graph, sums, trips, steps.vocab_size, opset)
    _choose(step.graph, len(steps.beam_memory.tensors), prepared, steps.vocab_size, opset)
    if not steps.beam_memory.kept:
        kept = []
    state = [prepared.token, *prepared.state, *past]
    given = LoopInputs(trips, add_constant(graph, "begin", True), state)
    loop = make_loop(graph, step.graph, [*kept, *made], given, counted=True)
    graph.append(loop.node)
    ended = loop.state[1 + [tensor.name for tensor in STATE].index("steps")]
    set_outputs(graph, [*loop.stacked, ended], spec)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _choose(body: ir.Graph, place: int, prepared: Prepared, size: int, opset: int) -> None:
    """Make the body of the loop of a model's step, whose inputs from ``place`` on change."""
    logits, *present = body.outputs
    position, token, *past = body.inputs[place:]
    state = [_value(tensor, prefix="old_") for tensor in STATE]
    for value in state:
        value.shape = None  # which changes from step to step
    chosen = append_choice(body, [logits, position, *state], prepared, size, opset)
    moved = []
    for value in present:
        rows = append_node(body, "Gather", [value, chosen.order], f"moved_{value.name}")
        rows.type = value.type
        moved.append(rows)
    del body.inputs[place:]
    body.inputs.extend([position, token, *state, *past])
    body.outputs.clear()
    body.outputs.extend([chosen.going, chosen.token, *chosen.state, *moved, *chosen.record])
    for value in (chosen.token, *chosen.state, *chosen.record):
        value.shape = None


def _value(tensor: TensorSpec, prefix: str = "") -> ir.Value:
    kind = ir.DataType.from_numpy(np.dtype(tensor.dtype))
    shape = ir.Shape(tensor.axes)
    return ir.val(f"{prefix}{tensor.name}", type=ir.TensorType(kind), shape=shape)


def _zeros(graph: ir.Graph, vocab_size: int) -> ir.Value:
    """Append nodes that give K zeros, one for each beam (K,)."""
    flat = add_constant(graph, "flat", [1])
    # At most V / 2 + 1 beams: with more, TopK fails, and it does so before memory is allocated.
    most = add_constant(graph, "most_beams", vocab_size // 2 + 1)
    beam_size = input_of(graph, graph_io.BEAM_SIZE)
    bounded = append_node(graph, "Min", [beam_size, most], "bounded_beam_size")
    shape = append_node(graph, "Reshape", [bounded, flat], "beam_shape")
    zero = ir.tensor(np.zeros(1, np.int64))
    return append_node(graph, "ConstantOfShape", [shape], "beam_zeros", {"value": zero})
