"""The formulas of Marian-NMT's Transformer, on a model file's own arrays."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.original import Original
from tfexport.export.reference.toolkits import Affine, ToolkitReference, covers_toolkits

_ATTENTIONS = {"self": "self", "cross": "context"}
_NORMS = {"self": "self_Wo", "cross": "context_Wo", "ff": "ffn_ffn"}
_NEVER = -1e9


class MarianReference(ToolkitReference):
    """Matrices are (in, out); decoding starts from a vector of zeros, the last id here."""

    title = "Marian-NMT's Transformer (reference formulas)"

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """See ``ToolkitReference``."""
        table = self._table(stack)
        none = ids >= len(table)
        x = table[ids.masked_fill(none, 0)].masked_fill(none[..., None], 0.0)
        length, width = x.shape[1:]
        if "Wpos" in self.state:
            x = x + self.state["Wpos"][:length]
        else:
            half = width // 2
            steps = torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1)))
            angle = torch.arange(length)[:, None] * steps
            x = math.sqrt(width) * x + torch.cat([angle.sin(), angle.cos()], 1)
        norm = self._norm(f"{stack}_emb")
        return x if norm is None else self.normalise(x, *norm)

    def _table(self, stack: str) -> Tensor:
        names = (f"{stack}_Wemb", "Wemb")
        return next(self.state[name] for name in names if name in self.state)

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}_l{layer + 1}_{_ATTENTIONS[sublayer]}"
        return [self._dense(name, part) for part in "qkvo"]

    def feed_forward(self, stack: str, layer: int) -> list[Affine]:
        """See ``ToolkitReference``."""
        return [self._dense(f"{stack}_l{layer + 1}_ffn", part) for part in "12"]

    def _dense(self, name: str, part: str) -> Affine:
        bias = self.state.get(f"{name}_b{part}")
        return self.state[f"{name}_W{part}"].T, None if bias is None else bias.flatten()

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if layer is None:
            return self._norm(f"{stack}_top")
        return self._norm(f"{stack}_l{layer + 1}_{_NORMS[sublayer]}")

    def _norm(self, name: str) -> Affine | None:
        for suffix in ("", "_pre"):
            if f"{name}_ln_scale{suffix}" in self.state:
                scale, bias = (self.state[f"{name}_ln_{it}{suffix}"] for it in ("scale", "bias"))
                return scale.flatten(), bias.flatten()
        return None

    def output(self) -> Affine:
        """See ``ToolkitReference``; the last id is no word, and is never said."""
        name = "decoder_ff_logit_out"
        weight = self.state.get(f"{name}_Wt", self._table("decoder"))
        weight = self.state[f"{name}_W"].T if f"{name}_W" in self.state else weight
        bias = self.state.get(f"{name}_b", torch.zeros(len(weight))).flatten()
        return F.pad(weight, (0, 0, 0, 1)), F.pad(bias, (0, 1), value=_NEVER)


ORIGINAL = Original(MarianReference, covers_toolkits)
