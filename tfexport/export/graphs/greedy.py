"""Greedy decoding in one graph: encoder, cache and loop.

``first_state`` and ``take_best`` are plain functions of tensors, so that the ONNX export (tracing)
and TorchScript (scripting) share them.

Axes: B batch, S source, T target, L layers, H heads, D head size, E model width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import encoder_decoder, exporter
from tfexport.export.graphs.batch_compaction import CompactionSpec, add_compacting_loop
from tfexport.export.graphs.greedy_state import GreedyState, start_spec, step_spec
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
from tfexport.export.graphs.sequence_scores import Decoded, add_scores
from tfexport.export.ir_tools.nodes import append_node
from tfexport.export.ir_tools.operators import BEST_TOKEN, PLACEHOLDERS
from tfexport.export.passes.int8_argmax import insert_argmax
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer


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


class LoopStart(SearchStart):
    """The cross-attention bias, whether to take the first step, and the first ``GreedyState``."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """attention_mask -> cross-attention bias, whether to take the first step, state."""
        (attention_mask,) = tensors
        bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        token, ended = first_state(attention_mask, self.bos_id)
        past = tuple(self.decoder.empty_cache(bias))
        begin = ~ended.all()
        state = GreedyState(token, ended, ended.long() * 0, token[:, :0], past)
        return (bias, begin, *state.pack())


class LoopStep(nn.Module):
    """One step; ``keep_going`` while more than ``min_active_rows`` rows have not ended.

    The argmax is a placeholder operator that ``passes.int8_argmax`` replaces. Besides the state,
    the outputs are the decoder's hidden states (B, 1, E), from which scores are computed after the
    loop, and with ``output_attentions`` the cross-attention weights of the step, (B, L, H, S).
    """

    def __init__(self, model: Transformer, output_attentions: bool = False) -> None:
        super().__init__()
        self.model = model
        self.output_attentions = output_attentions
        ids = model.config.special_ids
        self.eos_id, self.pad_id = ids.eos, ids.pad

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Invariants, state -> keep_going, state, hidden states, attention weights."""
        cross, others = split_cross_cache(tensors, self.model.config.num_decoder_layers)
        bias, min_active_rows, *packed = others
        state = GreedyState.unpack(packed)
        x = self.model.target_embedding(state.token, state.past[0].size(2))
        # The newest position may see all others, so the self-attention needs no mask.
        past = list(state.past)
        x, present, weights = self.model.decoder(x, torch.zeros(1), past, cross, bias)
        best = torch.onnx.ops.symbolic(BEST_TOKEN, [x], dtype=torch.int64, shape=[x.size(0), 1])
        count = state.count + (~state.ended).long()
        token, ended = take_best(best, state.ended, self.eos_id, self.pad_id)
        sequences = torch.cat([state.sequences, token], dim=1)
        attentions = [torch.stack(weights, dim=1)[:, :, :, 0]] if self.output_attentions else []
        keep_going = (~ended).sum() > min_active_rows
        after = GreedyState(token, ended, count, sequences, tuple(present))
        return (keep_going, *after.pack(), x, *attentions)


class _Search(NamedTuple):
    """The parts of a greedy search, before they are joined.

    Attributes:
        graph: the encoder, and the nodes that compute the loop's inputs.
        step: the graph of one step.
        invariants: values of the graph that every step reads, one row per row of the batch.
        given: the loop's inputs.
    """

    graph: ir.Graph
    step: ir.Graph
    invariants: Sequence[ir.Value]
    given: LoopInputs


def export_generate(
    model: Transformer,
    opset: int,
    encoder: ir.Model | None = None,
    output_attentions: bool = False,
    can_skip_scores: bool = False,
) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``.

    Args:
        model: with weights.
        opset: of the standard operators.
        encoder: the graph of ``export_encoder`` for the same model, if it exists already.
        output_attentions: make the cross-attention weights an output.
        can_skip_scores: add the optional input ``return_scores``. onnxruntime warns about optional
            inputs, so only the graph in a bundle has one.
    """
    cache = exporter.cache_shape(model.config)
    joined = encoder_decoder.export_encoder(model, opset) if encoder is None else encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(LoopStart(model), start_spec(cache), opset)
    spec = step_spec(cache, model.config.d_model, output_attentions)
    step = exporter.export_graph_module(LoopStep(model, output_attentions), spec, opset)
    _hidden, *cross = graph.outputs
    mask = input_of(graph, graph_io.ATTENTION_MASK)
    bias, begin, *state = append_start(graph, start.graph, [mask])
    arrays = {
        name: tensor.detach().numpy() for name, tensor in model.output_proj.named_parameters()
    }
    projection = insert_argmax(graph, step.graph, arrays["weight"], arrays.get("bias"), opset)
    given = LoopInputs(add_trips(graph, model.config.longest), begin, state)
    search = _Search(graph, step.graph, [*cross, bias], given)
    attentions: list[ir.Value] = []
    if output_attentions:
        decoded, weights = _loop_with_attentions(search)
        attentions.append(weights)
    else:
        pad_id = model.config.special_ids.pad
        sizes = CompactionSpec(cache, model.config.d_model, pad_id, opset)
        whole = add_compacting_loop(graph, step.graph, search.invariants, given, sizes)
        decoded = Decoded(whole.sequences, whole.count, whole.states)
    whole_spec = graph_io.generate_graph(cache if output_attentions else None, can_skip_scores)
    scores = add_scores(graph, decoded, projection, opset, whole_spec)
    set_outputs(graph, [decoded.sequences, scores, *attentions], whole_spec)
    del step.opset_imports[PLACEHOLDERS]
    joined.opset_imports.update(step.opset_imports)
    return joined


def _loop_with_attentions(search: _Search) -> tuple[Decoded, ir.Value]:
    """Append a loop without batch compaction, as attention weights of fewer rows cannot be stacked.

    Returns:
        The decoded tokens, and the cross-attention weights (B, L, H, T, S).
    """
    graph = search.graph
    invariants = [*search.invariants, add_constant(graph, "none", 0)]
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
