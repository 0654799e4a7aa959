"""The formulas of Sockeye's Transformer, on a checkpoint's own tensors."""

import math

from torch import Tensor

from tfexport.export.reference.original import Original
from tfexport.export.reference.toolkits import Affine, ToolkitReference, covers_toolkits

_ATTENTIONS = {
    "encoder": {"self": "self_attention"},
    "decoder": {"self": "autoregr_layer", "cross": "enc_attention"},
}


class SockeyeReference(ToolkitReference):
    """Rows of keys and values alternate, a head at a time; attention has no biases."""

    title = "Sockeye's Transformer (reference formulas)"

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """See ``ToolkitReference``."""
        x = math.sqrt(self.config.d_model) * self._table(stack)[ids]
        return x + self.state[f"{stack}.pos_embedding.weight"][: ids.size(1)]

    def _table(self, stack: str) -> Tensor:
        names = ["embedding_source.embedding.weight", "embedding_target.embedding.weight"]
        names = names if stack == "encoder" else names[::-1]
        return next(self.state[name] for name in names if name in self.state)

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}.layers.{layer}.{_ATTENTIONS[stack][sublayer]}"
        heads = self.config.num_heads if stack == "encoder" else self.config.decoder.num_heads
        width = self.config.d_model
        if sublayer == "cross":
            query, pairs = self.state[f"{name}.ff_q.weight"], self.state[f"{name}.ff_kv.weight"]
        else:
            query, pairs = self.state[f"{name}.ff_in.weight"].split([width, 2 * width])
        of_heads = pairs.reshape(heads, 2 * width // heads, width).chunk(2, dim=1)
        keys, values = (part.reshape(width, width) for part in of_heads)
        last = self.state[f"{name}.ff_out.weight"]
        return [(matrix, None) for matrix in (query, keys, values, last)]

    def feed_forward(self, stack: str, layer: int) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}.layers.{layer}.ff"
        names = [it for it in ("ff1", "linear", "ff2") if f"{name}.{it}.weight" in self.state]
        return [self.affine(f"{name}.{it}") for it in names]

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if layer is None:
            name = f"{stack}.final_process.layer_norm"
            return self.affine(name) if f"{name}.weight" in self.state else None
        own = "ff" if sublayer == "ff" else _ATTENTIONS[stack][sublayer]
        places = [f"{stack}.layers.{layer}.{it}_{own}.layer_norm" for it in ("pre", "post")]
        return self.affine(next(it for it in places if f"{it}.weight" in self.state))

    def output(self) -> Affine:
        """See ``ToolkitReference``."""
        weight = self.state.get("output_layer.weight")
        bias = self.state.get("output_layer.bias")
        return self._table("decoder") if weight is None else weight, bias


ORIGINAL = Original(SockeyeReference, covers_toolkits)
