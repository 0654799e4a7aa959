"""Attention of rows that stand at positions of their own, over buffers that are written in place.

``com.microsoft.GroupQueryAttention`` takes a length for each row, and reads no further than that:
its time depends neither on the buffers' size nor on other rows' lengths.
Source: onnxruntime, docs/ContribOperators.md.

Axes: B rows, H heads, D head size, D' its slot width, M positions of a buffer, E model width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.ir_tools.operators import GROUP_QUERY_ATTENTION
from tfexport.graph_io import slot_width
from tfexport.model_src.attention import Attention
from tfexport.model_src.relative import RelativeBias, RelativePositions, RotaryPositions


class SlotPlaces:
    """Where each row stands, while a step is traced; all attentions of a model share one.

    Attributes:
        positions: (B,) int32, of the new token.
        last_source: (B,) int32, of the last position of the source.
        newest: key and value of that position, (B, 1, H * D') each, of the layers to come.
        cross: the cross-attention's buffers as they came out, of the layers that were.
        bias: (B, H, 1, K), of relative positions that all layers share, or None.
    """

    positions: Tensor
    last_source: Tensor
    newest: list[Tensor]
    cross: list[Tensor]
    bias: Tensor | None = None


class SlotAttention(Attention):
    """``Attention`` of one new token a row, which exists only in the exported graph."""

    places: SlotPlaces

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Attention``; the past is a buffer (B, H, M, D'), and so is what comes out."""
        places = self.places
        queries, keys = (self._rotated(part) for part in (self.q_proj(x), self.k_proj(x)))
        total = _total(places.positions)
        own = bias_at(self.relative, places.positions, past_key.size(2))
        inputs = [
            *(self._widened(part) for part in (queries, keys, self.v_proj(x))),
            past_key, past_value,
            places.positions, total, None, None, None, places.bias if own is None else own,
        ]  # fmt: skip
        context, key, value = torch.onnx.ops.symbolic_multi_out(
            GROUP_QUERY_ATTENTION,
            inputs,
            attrs=self._attributes(),
            dtypes=(x.dtype,) * 3,
            shapes=(self._context_shape(x), past_key.shape, past_value.shape),
            version=1,
        )
        return self._narrowed(context), key, value

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``Attention``; the weights are empty.

        The operator wants a new key, and puts it where the last one of the source stands already.
        """
        places, queries = self.places, self._widened(self.q_proj(query))
        key, value = places.newest.pop(0), places.newest.pop(0)
        last = places.last_source
        context, *buffers = torch.onnx.ops.symbolic_multi_out(
            GROUP_QUERY_ATTENTION,
            [queries, key, value, keys, values, last, _total(last)],
            attrs=self._attributes(),
            dtypes=(query.dtype,) * 3,
            shapes=(self._context_shape(query), keys.shape, values.shape),
            version=1,
        )
        places.cross.extend(buffers)
        return self._narrowed(context), query.new_empty(0)

    def _attributes(self) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads, "kv_num_heads": self.num_heads, "scale": self.scale,
        }  # fmt: skip

    def _context_shape(self, x: Tensor) -> tuple[int, ...]:
        return (x.size(0), 1, self.num_heads * slot_width(self.head_dim))

    def _rotated(self, x: Tensor) -> Tensor:
        """(B, 1, H * D), turned by the row's position if the model does that."""
        if not isinstance(self.relative, RotaryPositions):
            return x
        # One position, so that splitting heads moves nothing.
        heads = x.reshape([x.size(0), self.num_heads, 1, self.head_dim])
        return self.relative.rotate_at(heads, self.places.positions).reshape(x.shape)

    def _widened(self, x: Tensor) -> Tensor:
        """(B, 1, H * D) to (B, 1, H * D')."""
        width = slot_width(self.head_dim)
        if width == self.head_dim:
            return x
        heads = x.reshape([x.size(0), 1, self.num_heads, self.head_dim])
        wide = F.pad(heads, (0, width - self.head_dim))
        return wide.reshape([x.size(0), 1, self.num_heads * width])

    def _narrowed(self, context: Tensor) -> Tensor:
        """(B, 1, H * D') to the output (B, 1, E)."""
        width = slot_width(self.head_dim)
        if width != self.head_dim:
            heads = context.reshape([context.size(0), 1, self.num_heads, width])
            inner = self.num_heads * self.head_dim
            context = heads[:, :, :, : self.head_dim].reshape([context.size(0), 1, inner])
        output: Tensor = self.out_proj(context)
        return output


def bias_at(relative: RelativePositions, positions: Tensor, size: int) -> Tensor | None:
    """The bias (B, H, 1, K) of relative positions for rows at these positions; None without.

    Args:
        relative: positions.
        positions: (B,).
        size: M. For torch.export K is M: a size that is computed from values would need proofs.
    """
    if not isinstance(relative, RelativeBias):
        return None
    first = torch.zeros(1, dtype=torch.int32)
    every = torch.arange(size, device=positions.device)
    keys = torch.onnx.ops.symbolic(
        "Slice", [every, first, _total(positions)], dtype=torch.int64, shape=[size]
    )
    return relative.at(positions, keys)


def _total(last: Tensor) -> Tensor:
    """(1,) int32: the keys of the row with the most, from the last position of each, (B,)."""
    return last.amax(0, keepdim=True) + 1
