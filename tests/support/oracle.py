"""A Transformer by plain formulas, from a config and a state dict, for whatever a config can say.

An oracle for the modules: it shares nothing with them but the names of the weights. Everything is
float64 numpy, one sentence at a time, one head at a time, without a cache.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tfexport.model_src import TransformerConfig

Array = NDArray[Any]


class Oracle:
    def __init__(self, config: TransformerConfig, state: Mapping[str, Tensor]) -> None:
        self.c = config
        self.w: dict[str, Array] = {k: tensor.double().numpy() for k, tensor in state.items()}

    def logits(self, source: Array, target: Array) -> Array:
        """One sentence without padding: ids (S,), ids (T,) to (T, V)."""
        memory = self.encode(source)
        x = self.embed("target", target)
        blocked = np.triu(np.ones((len(target), len(target)), bool), 1)
        for i in range(self.c.num_decoder_layers):
            layer = f"decoder.layers.{0 if self.c.share_decoder_layers else i}"
            x = self.residual(layer, "self_attn", x, x, blocked)
            x = self.residual(layer, "cross_attn", x, memory)
            x = self.residual(layer, "feed_forward", x)
        if self.c.decoder_final_norm:
            x = self.norm("decoder.norm", x)
        return self.linear("output_proj", x) if self.c.has_embeddings else x

    def encode(self, source: Array) -> Array:
        x = self.embed("source", source)
        if self.c.positions_every_layer:
            x = x + self.positions("encoder", len(x))
        for i in range(self.c.num_encoder_layers):
            layer = f"encoder.layers.{0 if self.c.share_encoder_layers else i}"
            if self.c.positions_every_layer:
                x = x + self.positions("encoder", len(x))
            x = self.residual(layer, "self_attn", x, x)
            x = self.residual(layer, "feed_forward", x)
        return self.norm("encoder.norm", x) if self.c.encoder_final_norm else x

    def embed(self, side: str, ids: Array) -> Array:
        if not self.c.has_embeddings:
            return ids
        x: Array = self.w[f"{side}_embedding.tokens.weight"][ids.astype(int)]
        if self.c.scale_embeddings:
            x = x * math.sqrt(self.c.d_model)
        if not self.c.positions_every_layer:
            x = x + self.positions(f"{side}_embedding", len(x))
        return x

    def positions(self, owner: str, length: int) -> Array:
        if self.c.positions == "none":
            return np.zeros((length, self.c.d_model))
        if self.c.positions == "learned":
            learned: Array = self.w[f"{owner}.positions.table"][:length]
            return learned
        table = np.zeros((length, self.c.d_model))
        for position in range(length):
            for column in range(self.c.d_model):
                angle = position / 10000 ** (2 * (column // 2) / self.c.d_model)
                table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
        return table

    def residual(
        self,
        layer: str,
        kind: str,
        x: Array,
        memory: Array | None = None,
        blocked: Array | None = None,
    ) -> Array:
        norm, placement = f"{layer}.{kind}_residual.norm", self.c.norm_placement
        inner = self.norm(norm, x) if placement == "pre" else x
        if memory is None:
            y = self.feed_forward(f"{layer}.{kind}", inner)
        else:
            y = self.attend(f"{layer}.{kind}", inner, inner if memory is x else memory, blocked)
        if placement == "pre":
            return x + y
        return self.norm(norm, x + y) if placement == "post" else x + self.norm(norm, y)

    def attend(self, name: str, x: Array, memory: Array, blocked: Array | None) -> Array:
        q, k, v = (
            self.linear(f"{name}.{part}_proj", y)
            for part, y in (("q", x), ("k", memory), ("v", memory))
        )
        heads = []
        for head in range(self.c.num_heads):
            at = slice(head * self.c.head_dim, (head + 1) * self.c.head_dim)
            scores = q[:, at] @ k[:, at].T / math.sqrt(self.c.head_dim)
            if blocked is not None:
                scores = np.where(blocked, self.c.mask_fill, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
        return self.linear(f"{name}.out_proj", np.concatenate(heads, -1))

    def feed_forward(self, name: str, x: Array) -> Array:
        x = self.linear(f"{name}.up_proj", x)
        if self.c.activation == "relu":
            x = np.maximum(x, 0)
        elif self.c.activation == "silu":
            x = x / (1 + np.exp(-x))
        else:
            x = x * np.vectorize(lambda value: 0.5 * (1 + math.erf(value / math.sqrt(2))))(x)
        return self.linear(f"{name}.down_proj", x)

    def norm(self, name: str, x: Array) -> Array:
        scale, eps = self.w[f"{name}.weight"], self.c.norm_eps
        if self.c.norm == "rms":
            y: Array = scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
            return y
        centred = x - x.mean(-1, keepdims=True)
        if self.c.norm == "annotated":
            y = scale * centred / (x.std(-1, ddof=1, keepdims=True) + eps)
        else:
            y = scale * centred / np.sqrt(x.var(-1, keepdims=True) + eps)
        y = y + self.w.get(f"{name}.bias", np.zeros(1))
        return y

    def linear(self, name: str, x: Array) -> Array:
        y: Array = x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", np.zeros(1))
        return y
