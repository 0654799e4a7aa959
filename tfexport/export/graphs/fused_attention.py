"""Attention as one contrib operator of onnxruntime, and attention for the beams of a step.

``com.microsoft.MultiHeadAttention`` appends to the cache and computes attention in one operator;
standard operators need a dozen, each with its own pass over memory.
Source: onnxruntime, docs/ContribOperators.md.

Axes: B batch, K beams, R = B * K rows, P past, H heads, D head size, E model width.
"""

import torch
from torch import Tensor

from tfexport.export.ir_tools.nodes import MULTI_HEAD_ATTENTION
from tfexport.model_src.attention import Attention


class FusedSelfAttention(Attention):
    """``Attention`` with a fused self-attention, which exists only in the exported graph.

    Cross-attention uses standard operators, which give the attention weights.
    """

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Attention``, which handles what a bias cannot express."""
        if not self.relative.only_bias:
            return super().attend_cached(x, past_key, past_value, bias)
        bias = self.relative(bias, x.size(1), past_key.size(2))
        queries = self.q_proj(x)
        batch, heads, past, head_dim = past_key.shape
        present = (batch, heads, past + x.size(1), head_dim)
        mask = _expand(bias, x.size(1))
        inputs = [queries, self.k_proj(x), self.v_proj(x), None, None, mask, past_key, past_value]
        context, key, value = torch.onnx.ops.symbolic_multi_out(
            MULTI_HEAD_ATTENTION,
            inputs,
            attrs={"num_heads": self.num_heads, "scale": self.scale},
            dtypes=(queries.dtype,) * 3,
            shapes=(queries.shape, present, present),
            version=1,
        )
        return self.out_proj(context), key, value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """See ``Attention``."""
        if not self.relative.only_bias:
            return super().forward(query, key, value, bias)
        bias = self.relative(bias, query.size(1), 0)
        queries = self.q_proj(query)
        inputs = [queries, self.k_proj(key), self.v_proj(value), None, None]
        return self._attend(queries, [*inputs, _expand(bias, query.size(1))])

    def _attend(self, queries: Tensor, inputs: list[Tensor | None]) -> Tensor:
        context = torch.onnx.ops.symbolic(
            MULTI_HEAD_ATTENTION,
            inputs,
            attrs={"num_heads": self.num_heads, "scale": self.scale},
            dtype=queries.dtype,
            shape=queries.shape,
            version=1,
        )
        output: Tensor = self.out_proj(context)
        return output


class FusedAttention(FusedSelfAttention):
    """``FusedSelfAttention``, and fused cross-attention, which gives no weights."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``Attention``; the weights are empty."""
        if not self.relative.only_bias:
            return super().attend(query, keys, values, bias)
        queries = self.q_proj(query)
        inputs = [queries, keys, values, None, None, _expand(bias, query.size(1))]
        return self._attend(queries, inputs), queries.new_empty(0)


def reshape_as(x: Tensor, shape: Tensor, sizes: list[int]) -> Tensor:
    """ONNX's Reshape, with the sizes of the result given instead of inferred.

    For torch.export, R is a separate axis: an input axis cannot be declared as B * K, and
    inferring that product inside the graph takes it very long.
    """
    return torch.onnx.ops.symbolic("Reshape", [x, shape], dtype=x.dtype, shape=sizes)


class _BeamRows(Attention):
    """Self-attention whose T positions are K beams, each with its own past.

    Cross-attention is unchanged: the K beams are its queries, so the keys and values of a sentence
    are read once.
    """

    def new_positions(self, x: Tensor) -> int:
        """See ``Attention``; one of each beam."""
        return 1

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, K, E) and a past (R, H, P, D) to (B, K, E) and a past one longer."""
        width = x.size(2)
        rows = reshape_as(x, torch.tensor([-1, 1, width]), [past_key.size(0), 1, width])
        y, key, value = super().attend_cached(rows, past_key, past_value, bias)
        shape = torch.onnx.ops.symbolic("Shape", [x], dtype=torch.int64, shape=[3])
        return reshape_as(y, shape, [*x.shape]), key, value


class BeamAttention(_BeamRows):
    """``Attention`` of standard operators, for ``BeamStep``."""


class FusedBeamAttention(_BeamRows, FusedAttention):
    """``FusedAttention``, for ``BeamStep``."""


def attention_class(portable: bool, output_attentions: bool) -> type[Attention]:
    """The class of attention to build a model with for export.

    Args:
        portable: use standard operators only.
        output_attentions: the cross-attention weights are an output.
    """
    if portable:
        return Attention
    return FusedSelfAttention if output_attentions else FusedAttention


def beam_attention(portable: bool) -> type[Attention]:
    """The class of attention to build a model with for ``export_beam``.

    Args:
        portable: use standard operators only.
    """
    return BeamAttention if portable else FusedBeamAttention


def _expand(bias: Tensor, length: int) -> Tensor | None:
    """Expand the query axis of a bias; the operator broadcasts only batch and heads."""
    if bias.dim() == 1:  # equal for all keys, so softmax is the same without it
        return None
    return bias if length == 1 else bias.expand(-1, -1, length, -1)
