"""Greedy decoding in one graph: encoder, cache and loop.

``first_state`` and ``take_best`` are plain functions of tensors, so that the ONNX export (tracing)
and TorchScript (scripting) share them.

Axes: B batch, S source, T target, L layers, H heads, E width of the records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.batch_compaction import CompactionSpec, add_compacting_loop
from tfexport.export.graphs.greedy_rules import force_tokens
from tfexport.export.graphs.greedy_state import GreedyState, start_spec, step_spec
from tfexport.export.graphs.loops import (
    LoopInputs,
    add_constant,
    add_trips,
    append_start,
    make_loop,
    set_outputs,
)
from tfexport.export.graphs.step_model import Decoded, StepModel
from tfexport.export.ir_tools.nodes import append_node
from tfexport.export.ir_tools.operators import PLACEHOLDERS
from tfexport.graph_io import BATCH, SOURCE, CacheShape, TensorSpec


def first_state(attention_mask: Tensor, bos_id: int) -> tuple[Tensor, Tensor]:
    """Source mask (B, S), 1 = keep, to the first ``token`` (B, 1) and ``ended`` (B,)."""
    kept = (attention_mask != 0).sum(1)
    # A row without source tokens has ended before the first step.
    return torch.full_like(kept.unsqueeze(1), bos_id), kept == 0


def take_best(best: Tensor, ended: Tensor, eos_id: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """The next ``token`` and ``ended``, from the argmax (B, 1) of a step.

    Rows that have ended get padding.
    """
    token = torch.where(ended.unsqueeze(1), pad_id, best)
    return token, ended | (best[:, 0] == eos_id)


class LoopStart(nn.Module):
    """The memory that is made once, whether to take the first step, and the first state."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values of the encoder graph -> memory, whether to take the first step, state."""
        made = self.steps.make_memory(values)
        start = self.steps.special_ids.decoder_start
        token, ended = first_state(self.steps.source_mask(values), start)
        past = self.steps.first_past(values, made)
        begin = ~ended.all()
        state = GreedyState(token, ended, ended.long() * 0, token[:, :0], past)
        return (*made, begin, *state.pack())


class LoopStep(nn.Module):
    """One step; ``keep_going`` while more than ``min_active_rows`` rows have not ended.

    Besides the state, the outputs are records, from which scores are computed after the loop, and
    with ``output_attentions`` the cross-attention weights of the step, (B, L, H, S).
    """

    def __init__(self, steps: StepModel, output_attentions: bool = False) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps
        self.output_attentions = output_attentions

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory, ``min_active_rows``, state -> keep_going, state, records, attention weights."""
        size, ids = len(self.steps.memory.tensors), self.steps.special_ids
        memory, (min_active_rows, *packed) = tensors[:size], tensors[size:]
        state = GreedyState.unpack(packed)
        x, present, weights = self.steps.step(state.token, state.count, state.past, memory)
        best, record = self.steps.choose(x)
        if self.steps.rules.first_token is not None:
            best = torch.where(state.count.unsqueeze(1) == 0, self.steps.rules.first_token, best)
        count = state.count + (~state.ended).long()
        token, ended = take_best(best, state.ended, ids.eos, ids.pad)
        sequences = torch.cat([state.sequences, token], dim=1)
        attentions = [torch.stack([*weights], dim=1)[:, :, :, 0]] if self.output_attentions else []
        keep_going = (~ended).sum() > min_active_rows
        after = GreedyState(token, ended, count, sequences, tuple(present))
        return (keep_going, *after.pack(), record, *attentions)


class _Search(NamedTuple):
    """The parts of a greedy search, before they are joined.

    Attributes:
        graph: the encoder, and the nodes that compute the loop's inputs.
        step: the graph of one step.
        memory: values of the graph that every step reads, one row per row of the batch.
        given: the loop's inputs.
    """

    graph: ir.Graph
    step: ir.Graph
    memory: Sequence[ir.Value]
    given: LoopInputs


def export_generate(
    steps: StepModel,
    opset: int,
    encoder: ir.Model,
    attention: CacheShape | None = None,
    can_skip_scores: bool = False,
) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``.

    Args:
        steps: the model, with weights.
        opset: of the standard operators.
        encoder: the encoder graph of the same model, which is left as it is.
        attention: layers and heads of the cross-attention, to make its weights an output.
        can_skip_scores: add the optional input ``return_scores``. onnxruntime warns about optional
            inputs, so only the graph in a bundle has one.
    """
    joined = encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(LoopStart(steps), start_spec(steps), opset, steps.sizes)
    weights: tuple[TensorSpec, ...] = ()
    if attention is not None:
        shape = (BATCH, attention.num_layers, attention.num_heads, SOURCE)
        weights = (TensorSpec("attended", "float32", shape),)
    step = exporter.export_graph_module(
        LoopStep(steps, bool(weights)), step_spec(steps, weights), opset, steps.sizes
    )
    kept, read = steps.encoder_values(graph)
    values = append_start(graph, start.graph, read)
    made, (begin, *state) = values[: len(steps.memory.made)], values[len(steps.memory.made) :]
    steps.finish_step(graph, step.graph, opset)
    trips = add_trips(graph, steps.longest)
    given = LoopInputs(trips, begin, state)
    search = _Search(graph, step.graph, [*kept, *made], given)
    attentions: list[ir.Value] = []
    if weights:
        decoded, found = _loop_with_attentions(search)
        attentions.append(found)
    else:
        whole = add_compacting_loop(
            graph, step.graph, search.memory, given, CompactionSpec.of(steps, opset)
        )
        decoded = Decoded(whole.sequences, whole.count, whole.states)
    if steps.rules.forces:
        forced, free = force_tokens(
            graph, steps.rules, decoded.sequences, decoded.counts, trips, opset
        )
        decoded = decoded._replace(sequences=forced, free=free)
    whole_spec = graph_io.generate_graph(attention, can_skip_scores, steps.inputs)
    scores = steps.add_scores(graph, decoded, opset, whole_spec)
    set_outputs(graph, [decoded.sequences, scores, *attentions], whole_spec)
    step.opset_imports.pop(PLACEHOLDERS, None)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _loop_with_attentions(search: _Search) -> tuple[Decoded, ir.Value]:
    """Append a loop without batch compaction, as attention weights of fewer rows cannot be stacked.

    Returns:
        The decoded tokens, and the cross-attention weights (B, L, H, T, S).
    """
    graph = search.graph
    invariants = [*search.memory, add_constant(graph, "none", 0)]
    loop = make_loop(graph, search.step, invariants, search.given)
    graph.append(loop.node)
    state = GreedyState.unpack(loop.state)
    states, weights = loop.stacked
    # (T, B, 1, E) to (B, T, E), and (T, B, L, H, S) to (B, L, H, T, S).
    third = add_constant(graph, "third", [2])
    squeezed = append_node(graph, "Squeeze", [states, third], "states_of_steps")
    states = append_node(graph, "Transpose", [squeezed], "states", {"perm": [1, 0, 2]})
    weights = append_node(graph, "Transpose", [weights], "turned", {"perm": [1, 2, 3, 0, 4]})
    return Decoded(state.sequences, state.count, states), weights
