"""Beam search in one graph: the first state and one step from torch, joined by an ONNX Loop.

The loop keeps no finished hypotheses. It records the candidates of every step, and the runtime
backtraces hypotheses from that record: see ``runtime.search.graph_search``.

Axes: B sentences, K beams, R = B * K rows, N = 2 K candidates, V vocabulary.
At most K of the N candidates are end tokens, so at least K others remain for the next step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.fused_attention import reshape_as
from tfexport.export.graphs.loops import (
    LoopInputs,
    add_constant,
    add_trips,
    append_start,
    make_loop,
    set_outputs,
)
from tfexport.export.graphs.step_model import StepModel
from tfexport.export.ir_tools.nodes import append_node
from tfexport.graph_io import BATCH, PAST, GraphSpec, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True)
class BeamState(Generic[T]):
    """The state of beam search between two steps: tensors, graph values, or their specs.

    Attributes:
        token: the last token of each beam, (B, K).
        sums: summed log-probabilities, float64 (B, K); -inf for a beam that holds no hypothesis.
        finished: number of finished hypotheses, (B,).
        past: the model's state, of R rows.
    """

    token: T
    sums: T
    finished: T
    past: tuple[T, ...]

    def pack(self) -> tuple[T, ...]:
        """The values in the order of a graph's inputs and outputs."""
        return (self.token, self.sums, self.finished, *self.past)

    @classmethod
    def unpack(cls, values: Iterable[T]) -> "BeamState[T]":
        """Create the state from the values of a graph, in order."""
        token, sums, finished, *past = values
        return cls(token, sums, finished, tuple(past))


def state_spec(model: StepModel, past: str, prefix: str = "") -> BeamState[TensorSpec]:
    """The state's tensors.

    Args:
        model: the model.
        past: name of the past-length axis.
        prefix: a prefix for the names of the tensors.
    """
    return BeamState(
        token=TensorSpec(f"{prefix}token", "int64", (BATCH, graph_io.BEAMS)),
        sums=TensorSpec(f"{prefix}sums", "float64", (BATCH, graph_io.BEAMS)),
        finished=TensorSpec(f"{prefix}finished", "int64", (BATCH,)),
        past=tuple(
            TensorSpec(tensor.name, tensor.dtype, (graph_io.ROWS, *tensor.axes[1:]))
            for tensor in model.state(past, prefix)
        ),
    )


def start_spec(model: StepModel) -> GraphSpec:
    """The graph from an encoder graph to the first state; see ``BeamStart``."""
    zeros = TensorSpec(graph_io.BEAMS, "int64", (graph_io.BEAMS,))
    state = state_spec(model, "0", prefix="first_")
    return GraphSpec(
        "beam_start", (*model.read_by_start, zeros), (*model.beam_memory.made, *state.pack())
    )


def step_spec(model: StepModel) -> GraphSpec:
    """The graph of one step; see ``BeamStep``."""
    enough = TensorSpec(graph_io.ENOUGH, "int64", ())
    position = TensorSpec("position", "int64", ())
    keep_going = TensorSpec("going", "bool", ())
    before = state_spec(model, PAST).pack()
    after = state_spec(model, f"{PAST} + 1", prefix="next_").pack()
    record = (
        TensorSpec(f"best_{tensor.name}", tensor.dtype, tensor.axes[1:])
        for tensor in graph_io.beam_graph().outputs
    )
    return GraphSpec(
        "beam_step",
        inputs=(*model.beam_memory.tensors, enough, position, *before),
        outputs=(keep_going, *after, *record),
    )


class BeamStart(nn.Module):
    """The memory that is made once, and the first ``BeamState``."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Values of the encoder graph and one zero for every beam (K,), to memory and state."""
        *values, beams = tensors
        made = self.steps.make_memory(values, beams)
        finished = self.steps.source_mask(values).sum(1) * 0
        token = finished.unsqueeze(1) + beams + self.steps.special_ids.decoder_start
        # Only the first beam holds a hypothesis: the empty one.
        first = torch.arange(beams.size(0)) == 0
        sums = torch.where(first, 0.0, -torch.inf).double() + finished.unsqueeze(1)
        past = self.steps.first_past(values, made, sums.float())
        return (*made, *BeamState(token, sums, finished, past).pack())


def _top(x: Tensor, count: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """ONNX's TopK over the last axis: values and indices, ties in the order of the input.

    torch.export cannot derive k from a tensor, so ``count`` (1,) comes with its ``size``.
    """
    shape = [*x.shape[:-1], size]
    values, places = torch.onnx.ops.symbolic_multi_out(
        "TopK", [x, count], {"axis": -1}, dtypes=(x.dtype, torch.int64), shapes=(shape, shape)
    )
    return values, places


class _Candidates(NamedTuple):
    """The top N candidates of each sentence, highest summed log-probability first.

    Attributes:
        tokens: (B, N).
        parents: the indices of the beams that the candidates extend, (B, N).
        log_probs: log-probabilities of the tokens, (B, N).
        totals: summed log-probabilities, float64 (B, N).
    """

    tokens: Tensor
    parents: Tensor
    log_probs: Tensor
    totals: Tensor


class BeamStep(nn.Module):
    """One step: record the top N candidates, and continue the best K that are not end tokens.

    The record of a step is tokens, parents and log-probabilities of the candidates, (B, N) each.
    """

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory, ``enough``, steps taken, state -> keep_going, state, record."""
        size = len(self.steps.beam_memory.tensors)
        memory, (enough, position, *packed) = tensors[:size], tensors[size:]
        state = BeamState.unpack(packed)
        beams = state.token.size(1)
        logits, present = self.steps.step_beams(state.token, position, state.past, memory)
        shape = torch.onnx.ops.symbolic("Shape", [state.token], dtype=torch.int64, shape=[2])
        some, many = shape[1:], 2 * shape[1:]
        best = _rank(logits, state.sums, beams, many)
        ended = best.tokens == self.steps.special_ids.eos
        counted = ended & (best.totals > -torch.inf)
        finished = state.finished + counted[:, :beams].sum(1)

        rank = torch.arange(2 * beams)
        _, kept = _top(torch.where(ended, -2 * beams, 0) - rank, some, beams)
        first_row = torch.arange(state.token.size(0)).unsqueeze(1) * beams
        parents = first_row + best.parents.gather(1, kept)
        # A model without a state has a row of its memory for every beam.
        rows = (*state.past, *memory)[0].size(0)
        order = reshape_as(parents, torch.tensor([-1]), [rows])
        moved = [value.index_select(0, order) for value in present]
        keep_going = (finished < enough).any()
        after = BeamState(
            best.tokens.gather(1, kept), best.totals.gather(1, kept), finished, tuple(moved)
        )
        return (keep_going, *after.pack(), best.tokens, best.parents, best.log_probs)


def _rank(logits: Tensor, sums: Tensor, beams: int, count: Tensor) -> _Candidates:
    """Logits (B, K, V) and sums (B, K) to the top N candidates; ``count`` (1,) holds N.

    Ties are broken by the lower beam index, then by the lower token id.
    """
    _, ids = _top(logits, count, 2 * beams)
    log_probs = logits.log_softmax(-1).gather(-1, ids)
    totals = (sums.unsqueeze(-1) + log_probs).flatten(1)
    best, places = _top(totals, count, 2 * beams)
    return _Candidates(
        parents=places // (2 * beams),
        tokens=ids.flatten(1).gather(1, places),
        log_probs=log_probs.flatten(1).gather(1, places),
        totals=best,
    )


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
    beam_size = ir.val(graph_io.BEAM_SIZE, ir.DataType.INT64, [])
    enough = ir.val(graph_io.ENOUGH, ir.DataType.INT64, [])
    graph.inputs.extend([beam_size, enough])
    zeros = _zeros(graph, beam_size, steps.vocab_size)
    values = append_start(graph, start.graph, [*read, zeros])
    made, state = values[: len(steps.beam_memory.made)], values[len(steps.beam_memory.made) :]
    if not steps.beam_memory.kept:
        kept = []
    given = LoopInputs(trips, add_constant(graph, "begin", True), state)
    loop = make_loop(graph, step.graph, [*kept, *made, enough], given, counted=True)
    graph.append(loop.node)
    set_outputs(graph, loop.stacked, graph_io.beam_graph(steps.inputs))
    joined.opset_imports.update(step.opset_imports)
    return joined


def _zeros(graph: ir.Graph, beam_size: ir.Value, vocab_size: int) -> ir.Value:
    """Append nodes that give K zeros, one for each beam (K,)."""
    flat = add_constant(graph, "flat", [1])
    # At most V / 2 + 1 beams: with more, TopK fails, and it does so before memory is allocated.
    most = add_constant(graph, "most_beams", vocab_size // 2 + 1)
    bounded = append_node(graph, "Min", [beam_size, most], "bounded_beam_size")
    shape = append_node(graph, "Reshape", [bounded, flat], "beam_shape")
    zero = ir.tensor(np.zeros(1, np.int64))
    return append_node(graph, "ConstantOfShape", [shape], "beam_zeros", {"value": zero})
