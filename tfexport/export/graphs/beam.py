"""Beam search in one graph: the first state and one step from torch, joined by an ONNX Loop.

The loop keeps no finished hypotheses. It records the candidates of every step, and the runtime
backtraces hypotheses from that record: see ``runtime.search.backtrace``.

Axes: B sentences, K beams, R = B * K rows, N = 2 K candidates, P past, S source, H heads, D head
size, E model width, V vocabulary. At most K of the N candidates are end tokens, so at least K
others remain for the next step.
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
    SearchStart,
    add_constant,
    add_trips,
    append_start,
    input_of,
    make_loop,
    set_outputs,
    split_cross_cache,
)
from tfexport.export.ir_tools.nodes import append_node
from tfexport.graph_io import BATCH, PAST, SOURCE, CacheShape, GraphSpec, TensorSpec
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer

T = TypeVar("T")


@dataclass(frozen=True)
class BeamState(Generic[T]):
    """The state of beam search between two steps: tensors, graph values, or their specs.

    Attributes:
        token: the last token of each beam, (B, K).
        sums: summed log-probabilities, float64 (B, K); -inf for a beam that holds no hypothesis.
        finished: number of finished hypotheses, (B,).
        past: self-attention keys and values, (R, H, P, D) each.
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
        """From values in that order."""
        token, sums, finished, *past = values
        return cls(token, sums, finished, tuple(past))


def state_spec(cache: CacheShape, past: str, prefix: str = "") -> BeamState[TensorSpec]:
    """The state's tensors.

    Args:
        cache: sizes of the caches.
        past: name of the past-length axis.
        prefix: of the tensors' names.
    """
    return BeamState(
        token=TensorSpec(f"{prefix}token", "int64", (BATCH, graph_io.BEAMS)),
        sums=TensorSpec(f"{prefix}sums", "float64", (BATCH, graph_io.BEAMS)),
        finished=TensorSpec(f"{prefix}finished", "int64", (BATCH,)),
        past=tuple(
            TensorSpec(tensor.name, tensor.dtype, (graph_io.ROWS, *tensor.axes[1:]))
            for tensor in cache.tensors(f"{prefix}past.{{layer}}", past)
        ),
    )


def start_spec(cache: CacheShape) -> GraphSpec:
    """The graph from the source's mask to the first state; see ``BeamStart``."""
    mask = TensorSpec(graph_io.ATTENTION_MASK, "int64", (BATCH, SOURCE))
    zeros = TensorSpec(graph_io.BEAMS, "int64", (graph_io.BEAMS,))
    state = state_spec(cache, "0", prefix="first_")
    return GraphSpec("beam_start", (mask, zeros), (_bias_spec(), *state.pack()))


def step_spec(cache: CacheShape) -> GraphSpec:
    """The graph of one step; see ``BeamStep``."""
    enough = TensorSpec(graph_io.ENOUGH, "int64", ())
    keep_going = TensorSpec("going", "bool", ())
    before = state_spec(cache, PAST).pack()
    after = state_spec(cache, f"{PAST} + 1", prefix="next_").pack()
    record = (
        TensorSpec(f"best_{tensor.name}", tensor.dtype, tensor.axes[1:])
        for tensor in graph_io.beam_graph().outputs
    )
    return GraphSpec(
        "beam_step",
        inputs=(*cache.tensors("cross.{layer}", SOURCE), _bias_spec(), enough, *before),
        outputs=(keep_going, *after, *record),
    )


def _bias_spec() -> TensorSpec:
    return TensorSpec("cross_bias", "float32", (BATCH, 1, 1, SOURCE))


class BeamStart(SearchStart):
    """The cross-attention bias and the first ``BeamState``."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """attention_mask and one zero for every beam (K,), to bias and state."""
        attention_mask, beams = tensors
        bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        finished = attention_mask.sum(1) * 0
        token = finished.unsqueeze(1) + beams + self.bos_id
        # Only the first beam holds a hypothesis: the empty one.
        first = torch.arange(beams.size(0)) == 0
        sums = torch.where(first, 0.0, -torch.inf).double() + finished.unsqueeze(1)
        past = self.decoder.empty_cache(sums.float().flatten())
        return (bias, *BeamState(token, sums, finished, tuple(past)).pack())


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
        parents: indices of the beams that they extend, (B, N).
        log_probs: of these tokens alone, (B, N).
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

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.eos_id = model.config.special_ids.eos

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Invariants, state -> keep_going, state, record."""
        cross, others = split_cross_cache(tensors, self.model.config.num_decoder_layers)
        bias, enough, *packed = others
        state = BeamState.unpack(packed)
        beams, rows = state.token.size(1), state.past[0].size(0)
        newest = reshape_as(state.token, torch.tensor([-1, 1]), [rows, 1])
        x = self.model.target_embedding(newest, state.past[0].size(2))
        width = torch.tensor([x.size(2)])
        shape = torch.onnx.ops.symbolic("Shape", [state.token], dtype=torch.int64, shape=[2])
        x = reshape_as(x, torch.cat([shape, width]), [*state.token.shape, x.size(2)])
        x, present, _ = self.model.decoder(x, torch.zeros(1), list(state.past), cross, bias)
        logits = self.model.output_proj(x)
        some, many = shape[1:], 2 * shape[1:]
        best = _rank(logits, state.sums, beams, many)
        ended = best.tokens == self.eos_id
        counted = ended & (best.totals > -torch.inf)
        finished = state.finished + counted[:, :beams].sum(1)

        rank = torch.arange(2 * beams)
        _, kept = _top(torch.where(ended, -2 * beams, 0) - rank, some, beams)
        first_row = torch.arange(state.token.size(0)).unsqueeze(1) * beams
        order = reshape_as(first_row + best.parents.gather(1, kept), torch.tensor([-1]), [rows])
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


def export_beam(model: Transformer, opset: int, encoder: ir.Model) -> ir.Model:
    """Export ``beam``: see ``graph_io.beam_graph``.

    Args:
        model: with weights, and with ``beam_attention`` in it.
        opset: of the standard operators.
        encoder: the graph of ``export_encoder`` for the same weights.
    """
    cache = exporter.cache_shape(model.config)
    joined = encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(BeamStart(model), start_spec(cache), opset)
    step = exporter.export_graph_module(BeamStep(model), step_spec(cache), opset)
    _hidden, *cross = graph.outputs
    trips = add_trips(graph, model.config.longest)
    beam_size = ir.val(graph_io.BEAM_SIZE, ir.DataType.INT64, [])
    enough = ir.val(graph_io.ENOUGH, ir.DataType.INT64, [])
    graph.inputs.extend([beam_size, enough])
    assert model.config.target_vocab_size is not None
    zeros = _zeros(graph, beam_size, model.config.target_vocab_size)
    mask = input_of(graph, graph_io.ATTENTION_MASK)
    bias, *state = append_start(graph, start.graph, [mask, zeros])
    given = LoopInputs(trips, add_constant(graph, "begin", True), state)
    loop = make_loop(graph, step.graph, [*cross, bias, enough], given)
    graph.append(loop.node)
    set_outputs(graph, loop.stacked, graph_io.beam_graph())
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
