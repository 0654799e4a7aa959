"""The formulas of JoeyNMT's Transformer, on a checkpoint's own tensors."""

import math

from torch import Tensor

from tfexport.export.reference.formulas import sinusoids
from tfexport.export.reference.original import Original
from tfexport.export.reference.toolkits import Affine, ToolkitReference, covers_toolkits

_TABLES = {"encoder": "src_embed.lut.weight", "decoder": "trg_embed.lut.weight"}
_ATTENTIONS = {
    "encoder": {"self": "src_src_att"},
    "decoder": {"self": "trg_trg_att", "cross": "src_trg_att"},
}
_NORMS = {
    "encoder": {"self": "layer_norm", "ff": "feed_forward.layer_norm"},
    "decoder": {
        "self": "x_layer_norm",
        "cross": "dec_layer_norm",
        "ff": "feed_forward.layer_norm",
    },
}


class JoeyReference(ToolkitReference):
    """A sublayer's input is multiplied by alpha where it is added to the output."""

    title = "JoeyNMT's Transformer (reference formulas)"

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """See ``ToolkitReference``."""
        config = self.config
        scaled = config.scale_embeddings and (stack == "encoder" or config.scale_target_embeddings)
        x = self._table(stack)[ids] * (math.sqrt(config.d_model) if scaled else 1.0)
        positions = self.state.get(f"{stack}.pe.pe")
        if positions is None:
            positions = sinusoids(ids.size(1), config.d_model)
        return x + positions.reshape(-1, config.d_model)[: ids.size(1)]

    def _table(self, stack: str) -> Tensor:
        own = self.state.get(_TABLES[stack])
        other = "decoder" if stack == "encoder" else "encoder"
        return self.state[_TABLES[other]] if own is None else own

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}.layers.{layer}.{_ATTENTIONS[stack][sublayer]}"
        return [self.affine(f"{name}.{part}_layer") for part in ("q", "k", "v", "output")]

    def feed_forward(self, stack: str, layer: int) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}.layers.{layer}.feed_forward.pwff_layer"
        return [self.affine(f"{name}.{i}") for i in (0, 3)]

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if sublayer == "last":
            name = f"{stack}.layer_norm"
            return self.affine(name) if f"{name}.weight" in self.state else None
        return self.affine(f"{stack}.layers.{layer}.{_NORMS[stack][sublayer]}")

    def output(self) -> Affine:
        """See ``ToolkitReference``."""
        weight = self.state.get("decoder.output_layer.weight")
        return self._table("decoder") if weight is None else weight, None


ORIGINAL = Original(JoeyReference, covers_toolkits)
