"""A ``Transformer`` as a ``StepModel``.

Its greedy step gives hidden states, from which an operator chooses the best token without all
logits; scores are computed after the loop. Its beams are the queries of one cross-attention, so
that the keys and values of a sentence are read once.

Axes: B batch, K beams, R = B * K rows, S source, H heads, D head size, E model width.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs.exporter import cache_shape
from tfexport.export.graphs.fused_attention import reshape_as
from tfexport.export.graphs.loops import input_of
from tfexport.export.graphs.step_model import NO_RULES, GreedyOutputs, GreedyRules, Memory
from tfexport.export.ir_tools.nodes import BEST_TOKEN, mark_table_reader, parse_graph, take_nodes
from tfexport.export.passes.int8_argmax import insert_argmax
from tfexport.graph_io import BATCH, SOURCE, GraphSpec, TensorSpec
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer

# Scores of the sequences of a greedy loop, computed after it and only if ``return_scores``.
#
# A score needs the logits of all tokens at every step, which the loop does not compute. After the
# loop they are computed for many positions at a time, so that the projection is read once for all
# of these.


_MAX_LOGITS = 1 << 22  # computed at a time: 16 MB


def add_scores(
    graph: ir.Graph,
    decoded: GreedyOutputs,
    weights: Sequence[ir.Value],
    opset: int,
    spec: graph_io.GraphSpec,
) -> ir.Value:
    """Append the computation of the scores (B,).

    Args:
        graph: the outer graph, which ends with the loop.
        decoded: the results of the loop.
        weights: weight (V, E) and bias (V,) of the output projection.
        opset: the opset version of the standard operators.
        spec: the spec of the graph; ``return_scores`` becomes an input if the spec has it.
    """
    asked = ir.val(
        graph_io.RETURN_SCORES, const_value=ir.tensor(np.bool_(True), name=graph_io.RETURN_SCORES)
    )
    graph.register_initializer(asked)
    if any(tensor.name == asked.name for tensor in spec.optional_inputs):
        graph.inputs.append(asked)
    _table, bias = weights
    assert bias.const_value is not None
    rows = max(1, _MAX_LOGITS // bias.const_value.size)
    part = parse_graph(_text(rows, decoded.free is not None), opset)
    for node in ir.traversal.RecursiveGraphIterator(part):
        if node.outputs[0].name == "whole_table":
            mark_table_reader(node)
    read = [value for value in decoded if value is not None]
    nodes, (scores,) = take_nodes(part, [asked, *read, *weights], "scores/")
    graph.extend(nodes)
    return scores


def _text(rows: int, some_forced: bool) -> str:
    """The scores as a graph, with the logits of ``rows`` positions at a time."""
    free = "bool[batch, length] free," if some_forced else ""
    return f"""
    score (bool asked, int64[batch, length] sequences, int64[batch] count,
           float[batch, length, width] states, {free} float[vocabulary, width] table,
           float[vocabulary] bias)
        => (float[batch] scores)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        scores = If (asked) <
            then_branch = computed () => (float[batch] mean)
            {{
                whole_table = Identity (table)
                {_COUNTED_POSITIONS}
                {_log_probs_text(rows)}
                {_mean(some_forced)}
            }},
            else_branch = not_asked () => (float[batch] nan)
            {{
                height = Shape (count)
                nan = ConstantOfShape <value = float[1] {{nan}}> (height)
            }}
        >
    }}"""


# The decoder's states and the tokens at the positions that count, without padding.
_COUNTED_POSITIONS = """
                width_shape = Shape <start = 1, end = 2> (sequences)
                width = Squeeze (width_shape, first)
                positions = Range (zero, width, one)
                columns = Unsqueeze (count, second)
                counts_in = Less (positions, columns)
                left = NonZero (counts_in)
                places = Transpose <perm = [1, 0]> (left)
                x = GatherND (states, places)
                tokens = GatherND (sequences, places)"""


def _log_probs_text(rows: int) -> str:
    """The log-probabilities of these tokens, ``rows`` of them in each iteration of a Loop."""
    return f"""
                number = Size (tokens)
                rows = Constant <value = int64 {{{rows}}}> ()
                rows_less_one = Constant <value = int64 {{{rows - 1}}}> ()
                number_up = Add (number, rows_less_one)
                trips = Div (number_up, rows)
                yes = Constant <value = bool {{1}}> ()
                nothing = ConstantOfShape <value = float[1] {{0.0}}> (first)
                log_probs = Loop (trips, yes, nothing) <
                    body = some (int64 trip, bool going, float[done] before)
                        => (bool still_going, float[more] after)
                    {{
                        still_going = Identity (going)
                        start = Mul (trip, rows)
                        end = Add (start, rows)
                        starts = Unsqueeze (start, first)
                        ends = Unsqueeze (end, first)
                        some_x = Slice (x, starts, ends, first)
                        some_tokens = Slice (tokens, starts, ends, first)
                        logits = Gemm <transB = 1> (some_x, whole_table, bias)
                        of_all = LogSoftmax <axis = 1> (logits)
                        token_columns = Unsqueeze (some_tokens, second)
                        chosen = GatherElements <axis = 1> (of_all, token_columns)
                        some_log_probs = Squeeze (chosen, second)
                        after = Concat <axis = 0> (before, some_log_probs)
                    }}
                >"""


def _mean(some_forced: bool) -> str:
    """The mean log-probability of each row, 0 for a row without tokens; forced ones count as 0."""
    summed = "counted" if some_forced else "written"
    counted = "counted = Where (free, written, zeros)" if some_forced else ""
    return f"""
                area = Shape (sequences)
                zeros = ConstantOfShape <value = float[1] {{0.0}}> (area)
                written = ScatterND (zeros, places, log_probs)
                {counted}
                total = ReduceSum <keepdims = 0> ({summed}, second)
                lengths = Max (count, one)
                float_lengths = Cast <to = 1> (lengths)
                mean = Div (total, float_lengths)"""


def best_token(x: Tensor) -> Tensor:
    """States (B, 1, E) to a placeholder of the best token (B, 1); see ``insert_argmax``."""
    best: Tensor = torch.onnx.ops.symbolic(BEST_TOKEN, [x], dtype=torch.int64, shape=[x.size(0), 1])
    return best


Tensors = tuple[TensorSpec, ...]


class TransformerSteps:
    """See ``StepModel``; the memory is the cross-attention cache and its bias."""

    def __init__(self, model: Transformer, rules: GreedyRules = NO_RULES) -> None:
        """Take a model, with weights, and the rules of its greedy search."""
        self.rules = rules
        config = model.config
        assert config.target_vocab_size is not None
        self.model, self.module = model, cast(nn.Module, model)
        self.special_ids, self.longest = config.special_ids, config.longest
        self.vocab_size, self.record_width = config.target_vocab_size, config.d_model
        self.sizes: Sequence[Mapping[str, int]] | None = None
        self.cache = cache_shape(config)
        self.inputs: Tensors = graph_io.SOURCE_INPUTS
        mask = TensorSpec(graph_io.ATTENTION_MASK, "int64", (BATCH, SOURCE))
        self.read_by_start: Tensors = (mask,)
        bias = TensorSpec("cross_bias", "float32", (BATCH, 1, 1, SOURCE))
        self.memory = Memory(self.cache.tensors("cross.{layer}", SOURCE), (bias,))
        self.beam_memory = self.memory
        self._projection: Sequence[ir.Value] = ()

    def state(self, past: str, prefix: str = "") -> tuple[TensorSpec, ...]:
        """See ``StepModel``: self-attention keys and values, (B, H, P, D) each."""
        return self.cache.tensors(f"{prefix}past.{{layer}}", past)

    def encoder_values(self, graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Value]]:
        """See ``StepModel``; the encoder's own states are not read."""
        _hidden, *cross = graph.outputs
        return cross, [input_of(graph, graph_io.ATTENTION_MASK)]

    def source_mask(self, values: Sequence[Tensor]) -> Tensor:
        """See ``StepModel``."""
        (mask,) = values
        return mask

    def make_memory(
        self, values: Sequence[Tensor], beams: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """See ``StepModel``; the bias (B, 1, 1, S), which serves all beams of a sentence."""
        (mask,) = values
        return (bias_from_blocked(blocked_by_padding(mask), self.model.mask_fill),)

    def first_past(
        self, values: Sequence[Tensor], made: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """See ``StepModel``; caches of length 0."""
        (bias,) = made
        return tuple(self.model.decoder.empty_cache(bias if rows is None else rows.flatten()))

    def step(
        self, token: Tensor, count: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """See ``StepModel``; ``x`` are the decoder's hidden states, (B, 1, E)."""
        *cross, bias = memory
        x = self.model.target_embedding(token, past[0].size(2))
        # The newest position may see all others, so the self-attention needs no mask.
        x, present, weights = self.model.decoder(x, torch.zeros(1), list(past), cross, bias)
        return x, present, weights

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``StepModel``; the argmax is a placeholder operator, the record is ``x``."""
        return best_token(x), x

    def step_beams(
        self, token: Tensor, position: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """See ``StepModel``."""
        *cross, bias = memory
        newest = reshape_as(token, torch.tensor([-1, 1]), [past[0].size(0), 1])
        x = self.model.target_embedding(newest, past[0].size(2))
        width = torch.tensor([x.size(2)])
        shape = torch.onnx.ops.symbolic("Shape", [token], dtype=torch.int64, shape=[2])
        x = reshape_as(x, torch.cat([shape, width]), [*token.shape, x.size(2)])
        x, present, _ = self.model.decoder(x, torch.zeros(1), list(past), cross, bias)
        return self.model.output_proj(x), present

    def finish_step(self, graph: ir.Graph, step: ir.Graph, opset: int) -> None:
        """See ``StepModel``: insert the argmax over the output projection."""
        self._projection = self.insert_projection(graph, step, opset)

    def insert_projection(self, graph: ir.Graph, step: ir.Graph, opset: int) -> Sequence[ir.Value]:
        """Insert the argmax; the table (V, E) and bias (V,) of the output projection.

        The bias holds the suppressed tokens of the model's own rules.
        """
        arrays = {
            name: tensor.detach().numpy()
            for name, tensor in self.model.output_proj.named_parameters()
        }
        bias = arrays.get("bias")
        if self.rules.suppress_tokens:
            banned = self.rules.bias(self.vocab_size).numpy()
            bias = banned if bias is None else bias + banned
        return insert_argmax(graph, step, arrays["weight"], bias, opset)

    def add_scores(
        self, graph: ir.Graph, decoded: GreedyOutputs, opset: int, spec: GraphSpec
    ) -> ir.Value:
        """See ``StepModel``; from the hidden states of all steps."""
        return add_scores(graph, decoded, self._projection, opset, spec)
