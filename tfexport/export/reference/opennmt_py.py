"""The formulas of OpenNMT-py's Transformer, on a checkpoint's own tensors."""

import math

import torch
from torch import Tensor

from tfexport.export.reference.formulas import sinusoids
from tfexport.export.reference.original import Original
from tfexport.export.reference.toolkits import Affine, ToolkitReference, covers_toolkits

_LAYERS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_ATTENTIONS = {"self": "self_attn", "cross": "context_attn"}


class OpenNMTReference(ToolkitReference):
    """Pre-norm; vectors are scaled where positions are added."""

    title = "OpenNMT-py's Transformer (reference formulas)"

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """See ``ToolkitReference``."""
        name = "embeddings.make_embedding"
        own = self.state.get(f"{stack}.{name}.emb_luts.0.weight")
        other = "decoder" if stack == "encoder" else "encoder"
        table = self.state[f"{other}.{name}.emb_luts.0.weight"] if own is None else own
        x = table[ids]
        if self.config.positions == "none":
            return x
        positions = self.state.get(f"{stack}.{name}.pe.pe")
        if positions is None:
            positions = self._sinusoids(ids.size(1))
        width = self.config.d_model
        return math.sqrt(width) * x + positions.reshape(-1, width)[: ids.size(1)]

    def _sinusoids(self, length: int) -> Tensor:
        if self.config.positions == "sinusoidal":
            return sinusoids(length, self.config.d_model)
        half = self.config.d_model // 2
        angle = torch.arange(length)[:, None] * torch.exp(
            torch.arange(half) * -(math.log(10000) / (half - 1))
        )
        return torch.cat([angle.sin(), angle.cos()], 1)

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{_LAYERS[stack]}.{layer}.{_ATTENTIONS[sublayer]}"
        parts = ("linear_query", "linear_keys", "linear_values", "final_linear")
        return [self.affine(f"{name}.{part}") for part in parts]

    def mix(
        self, where: tuple[str, int, str], q: Tensor, k: Tensor, v: Tensor, blocked: Tensor
    ) -> Tensor:
        """See ``ToolkitReference``; self-attention may have one of three relative positions."""
        stack, layer, sublayer = where
        if sublayer != "self" or self.config.relative_positions == "none":
            return super().mix(where, q, k, v, blocked)
        name = f"{_LAYERS[stack]}.{layer}.self_attn"
        if self.config.relative_positions == "rotary":
            return super().mix(where, _turned(q), _turned(k), v, blocked)
        size, length = q.size(-1), q.size(2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(size)
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]  # key minus query
        if self.config.relative_positions == "shaw":
            most = self.config.relative_max_distance
            table = self.state[f"{name}.relative_positions_embeddings.weight"]
            vectors = table[distance.clamp(-most, most) + most]
            scores = scores + torch.einsum("bhtd,tkd->bhtk", q, vectors) / math.sqrt(size)
            weights = scores.masked_fill(blocked, self.config.mask_fill).softmax(-1)
            return weights @ v + torch.einsum("bhtk,tkd->bhtd", weights, vectors)
        table = self.state[f"{name}.relative_attention_bias.weight"]
        scores = scores + self._biases(table, distance, stack)
        return scores.masked_fill(blocked, self.config.mask_fill).softmax(-1) @ v

    def _biases(self, table: Tensor, distance: Tensor, stack: str) -> Tensor:
        """(H, T, T), of T5's buckets of distances; an encoder's have half for either direction."""
        count, first = table.size(0), torch.zeros_like(distance)
        if stack == "encoder":
            count //= 2
            first = count * (distance > 0)
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        exact = count // 2
        far = torch.log(distance.float() / exact)
        far = far / math.log(self.config.relative_max_distance / exact) * (count - exact)
        bucket = torch.where(distance < exact, distance, exact + far.clamp(min=0).long())
        return table[first + bucket.clamp(max=count - 1)].permute(2, 0, 1)

    def feed_forward(self, stack: str, layer: int) -> list[Affine]:
        """See ``ToolkitReference``; a gated one has a third matrix, beside the first."""
        name = f"{_LAYERS[stack]}.{layer}.feed_forward"
        names = [it for it in ("w_1", "w_3", "w_2") if f"{name}.{it}.weight" in self.state]
        return [self.affine(f"{name}.{it}") for it in names]

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if sublayer == "last":
            return self.affine(f"{stack}.layer_norm")
        own = {"encoder": {"self": "layer_norm"}, "decoder": {"self": "layer_norm_1"}}[stack]
        names = {"cross": "layer_norm_2", "ff": "feed_forward.layer_norm", **own}
        return self.affine(f"{_LAYERS[stack]}.{layer}.{names[sublayer]}")

    def output(self) -> Affine:
        """See ``ToolkitReference``; version 2 has a list of one projection."""
        index = "0." if "generator.0.weight" in self.state else ""
        weight = self.state.get(f"generator.{index}weight")
        if weight is None:
            weight = self.state["decoder.embeddings.make_embedding.emb_luts.0.weight"]
        return weight, self.state.get(f"generator.{index}bias")


def _turned(x: Tensor) -> Tensor:
    """Queries or keys, neighbours of which are one complex number, turned by their position."""
    size = x.size(-1)
    angle = torch.arange(x.size(2))[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


ORIGINAL = Original(OpenNMTReference, covers_toolkits)
