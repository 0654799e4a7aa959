"""A ``Transformer`` as a ``StepModel``.

Its greedy step gives hidden states, from which an operator chooses the best token without all
logits; scores are computed after the loop. Its beams are the queries of one cross-attention, so
that the keys and values of a sentence are read once.

Axes: B batch, K beams, R = B * K rows, S source, H heads, D head size, E model width.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs.exporter import cache_shape
from tfexport.export.graphs.fused_attention import reshape_as
from tfexport.export.graphs.greedy_rules import NO_RULES, GreedyRules
from tfexport.export.graphs.loops import input_of
from tfexport.export.graphs.sequence_scores import add_scores
from tfexport.export.graphs.step_model import Decoded, Memory
from tfexport.export.ir_tools.operators import BEST_TOKEN
from tfexport.export.passes.int8_argmax import insert_argmax
from tfexport.graph_io import BATCH, SOURCE, GraphSpec, TensorSpec
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer

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
        best = torch.onnx.ops.symbolic(BEST_TOKEN, [x], dtype=torch.int64, shape=[x.size(0), 1])
        return best, x

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
        self, graph: ir.Graph, decoded: Decoded, opset: int, spec: GraphSpec
    ) -> ir.Value:
        """See ``StepModel``; from the hidden states of all steps."""
        return add_scores(graph, decoded, self._projection, opset, spec)
