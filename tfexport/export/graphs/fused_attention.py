"""Attention as one operator of onnxruntime's own, for graphs that run in onnxruntime alone.

``com.microsoft.MultiHeadAttention`` takes projected queries, keys and values, joins the cache and
attends: what takes a dozen standard operators, and a pass over memory for each.
Source: onnxruntime, docs/ContribOperators.md.
"""

import torch
from torch import Tensor

from tfexport.model_src.attention import Attention

OPERATOR = "com.microsoft::MultiHeadAttention"


class FusedSelfAttention(Attention):
    """``Attention`` for the ONNX exporter; outside of it the operator has no values.

    What attends to a memory keeps to standard operators, which give the weights.
    """

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Attention``."""
        queries = self.q_proj(x)
        batch, heads, past, head_dim = past_key.shape
        present = (batch, heads, past + x.size(1), head_dim)
        mask = _expand(bias, x.size(1))
        inputs = [queries, self.k_proj(x), self.v_proj(x), None, None, mask, past_key, past_value]
        context, key, value = torch.onnx.ops.symbolic_multi_out(
            OPERATOR,
            inputs,
            attrs={"num_heads": self.num_heads, "scale": self.scale},
            dtypes=(queries.dtype,) * 3,
            shapes=(queries.shape, present, present),
            version=1,
        )
        return self.out_proj(context), key, value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """See ``Attention``."""
        queries = self.q_proj(query)
        inputs = [queries, self.k_proj(key), self.v_proj(value), None, None]
        return self._attend(queries, [*inputs, _expand(bias, query.size(1))])

    def _attend(self, queries: Tensor, inputs: list[Tensor | None]) -> Tensor:
        context = torch.onnx.ops.symbolic(
            OPERATOR,
            inputs,
            attrs={"num_heads": self.num_heads, "scale": self.scale},
            dtype=queries.dtype,
            shape=queries.shape,
            version=1,
        )
        output: Tensor = self.out_proj(context)
        return output


class FusedAttention(FusedSelfAttention):
    """The same for what attends to a memory; the operator keeps the weights to itself."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``Attention``; the weights are empty."""
        queries = self.q_proj(query)
        inputs = [queries, keys, values, None, None, _expand(bias, query.size(1))]
        return self._attend(queries, inputs), queries.new_empty(0)


def attention_class(portable: bool, weights: bool) -> type[Attention]:
    """What to build a model of for export.

    Args:
        portable: keep to standard operators.
        weights: the cross-attention weights have to come out.
    """
    if portable:
        return Attention
    return FusedSelfAttention if weights else FusedAttention


def _expand(bias: Tensor, length: int) -> Tensor | None:
    """A bias for the operator, which broadcasts over batch and heads only."""
    if bias.dim() == 1:  # one number for all keys, which softmax does not see
        return None
    return bias if length == 1 else bias.expand(-1, -1, length, -1)
