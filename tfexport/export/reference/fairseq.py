"""The formulas of fairseq's Transformer, on a checkpoint's own tensors."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.original import Original
from tfexport.export.reference.toolkits import Affine, ToolkitReference, covers_toolkits

_PAD = 1
_NORMS = {
    "self": ("self_attn_layer_norm", {"encoder": 0, "decoder": 0}),
    "cross": ("encoder_attn_layer_norm", {"decoder": 1}),
    "ff": ("final_layer_norm", {"encoder": 1, "decoder": 2}),
}


class FairseqReference(ToolkitReference):
    """Positions count from the padding id, and a table of sinusoids has its halves apart."""

    title = "fairseq's Transformer (reference formulas)"

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """See ``ToolkitReference``."""
        scale = math.sqrt(self.config.d_model) if self.config.scale_embeddings else 1.0
        x = scale * self._table(stack)[ids]
        learned = self.state.get(f"{stack}.embed_positions.weight")
        if learned is not None:
            x = x + learned[_PAD + 1 : _PAD + 1 + ids.size(1)]
        elif self.config.positions != "none":
            x = x + _sinusoids(ids.size(1), self.config.d_model)
        if f"{stack}.layernorm_embedding.weight" in self.state:
            x = self.normalise(x, *self.affine(f"{stack}.layernorm_embedding"))
        return x

    def _table(self, stack: str) -> Tensor:
        own = self.state.get(f"{stack}.embed_tokens.weight")
        other = "decoder" if stack == "encoder" else "encoder"
        return self.state[f"{other}.embed_tokens.weight"] if own is None else own

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``; versions before 0.7 have three matrices as one."""
        attention = {"self": "self_attn", "cross": "encoder_attn"}[sublayer]
        name = f"{stack}.layers.{layer}.{attention}"
        packed = self.state.get(f"{name}.in_proj_weight")
        if packed is None:
            return [self.affine(f"{name}.{part}_proj") for part in ("q", "k", "v", "out")]
        biases = self.state[f"{name}.in_proj_bias"].chunk(3)
        return [*zip(packed.chunk(3), biases, strict=True), self.affine(f"{name}.out_proj")]

    def feed_forward(self, stack: str, layer: int) -> list[Affine]:
        """See ``ToolkitReference``."""
        return [self.affine(f"{stack}.layers.{layer}.fc{i}") for i in (1, 2)]

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if sublayer == "last":
            final = getattr(self.config, f"{stack}_final_norm")
            return self.affine(f"{stack}.layer_norm") if final else None
        name, old = _NORMS[sublayer]
        found = f"{stack}.layers.{layer}.{name}"
        if f"{found}.weight" not in self.state:
            found = f"{stack}.layers.{layer}.layer_norms.{old[stack]}"
        return self.affine(found)

    def output(self) -> Affine:
        """See ``ToolkitReference``."""
        if "decoder.embed_out" in self.state:
            return self.state["decoder.embed_out"], None
        if "decoder.output_projection.weight" in self.state:
            return self.affine("decoder.output_projection")
        return self._table("decoder"), None


def _sinusoids(length: int, d_model: int) -> Tensor:
    """(T, E): rows from the padding id's next on, sines and then cosines."""
    half = d_model // 2
    frequency = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(_PAD + 1, _PAD + 1 + length)[:, None] * frequency
    return F.pad(torch.cat([angle.sin(), angle.cos()], 1), (0, d_model % 2))


ORIGINAL = Original(FairseqReference, covers_toolkits)
