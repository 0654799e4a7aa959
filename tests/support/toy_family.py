"""A family of models that tfexport does not know: its layout, and its original mathematics."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.formulas import attend, causal, sinusoids
from tfexport.export.reference.original import Original
from tfexport.model_src import Checkpoint, KeyTable, Layout, Transformer, TransformerConfig
from tfexport.model_src.checkpoint.keymap import Shape

CONFIG = TransformerConfig(
    d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=1, d_ff=12, pad_id=0,
    source_vocab_size=9, target_vocab_size=11, norm_placement="pre", max_positions=32,
)  # fmt: skip


@dataclass(frozen=True)
class Transposed:
    """A matrix that is stored as (in, out)."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.T,)

    def original_shape(self, shape: Shape) -> Shape:
        return shape[::-1]


def read_toy_config(values: Mapping[str, Any]) -> Mapping[str, Any]:
    placement = "pre" if values["normalize_before"] else "post"
    return {"num_heads": values["heads"], "pad_id": values["pad"], "norm_placement": placement}


# fmt: off
TOY = Layout(
    name="toy",
    title="the toy family",
    table=KeyTable(
        {
            "{side}/emb": "{side}_embedding.tokens.weight",
            "out/{kind}": "output_proj.{kind}",
            "{stack}/norm/{kind}": "{stack}.norm.{kind}",
            "{stack}/{layer}/{sublayer}/norm/{kind}":
                "{stack}.layers.{layer}.{sublayer}_residual.norm.{kind}",
            "{stack}/{layer}/{sublayer}/{proj}/w":
                ("{stack}.layers.{layer}.{sublayer}.{proj}_proj.weight", Transposed()),
            "{stack}/{layer}/{sublayer}/{proj}/b":
                "{stack}.layers.{layer}.{sublayer}.{proj}_proj.bias",
        },
        {
            "side": {"src": "source", "trg": "target"},
            "kind": {"g": "weight", "b": "bias"},
            "sublayer": {"self": "self_attn", "ctx": "cross_attn", "ffn": "feed_forward"},
            "proj": {"q": "q", "k": "k", "v": "v", "o": "out", "1": "up", "2": "down"},
        },
    ),
    defaults={"scale_embeddings": True, "max_positions": 32},
    required=("num_heads",),
    read_config=read_toy_config,
    model_types=("toy", "toy-2"),
    reference="tests.support.toy_family",
)
# fmt: on
TOY_CONFIG = {"model_type": "toy", "heads": 2, "pad": 0, "normalize_before": True, "layers": 2}


def save_toy(model: Transformer, folder: Path) -> dict[str, Tensor]:
    """Write a model in the toy family's keys, which its own table gives."""
    state = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("positions.table"):
            key, _ = TOY.table.origin_of(name, tuple(tensor.shape))
            state[key] = tensor.T if key.endswith("/w") else tensor
    torch.save(state, folder / "model.pt")
    (folder / "config.json").write_text(json.dumps(TOY_CONFIG))
    return state


class ToyOriginal:
    """The family's formulas: pre-norm, its matrices stored as (in, out)."""

    title = "the toy family (reference formulas)"
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._state = checkpoint.state_dict

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self._embed("src", input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        for i in range(self._config.num_encoder_layers):
            layer = f"encoder/{i}"
            y = self._norm(f"{layer}/self", x)
            x = x + self._attention(f"{layer}/self", y, y, padding)
            x = x + self._feed_forward(layer, self._norm(f"{layer}/ffn", x))
        return self._norm("encoder", x)

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        x = self._embed("trg", decoder_input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        for i in range(self._config.num_decoder_layers):
            layer = f"decoder/{i}"
            y = self._norm(f"{layer}/self", x)
            x = x + self._attention(f"{layer}/self", y, y, causal(x.size(1)))
            x = x + self._attention(f"{layer}/ctx", self._norm(f"{layer}/ctx", x), hidden, padding)
            x = x + self._feed_forward(layer, self._norm(f"{layer}/ffn", x))
        x = self._norm("decoder", x)
        x = x[:, -1:] if last_only else x
        return F.linear(x, self._state["out/g"], self._state.get("out/b"))

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        size = self._config.d_model
        return self._state[f"{side}/emb"][ids] * math.sqrt(size) + sinusoids(ids.size(1), size)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale, shift = self._state[f"{name}/norm/g"], self._state[f"{name}/norm/b"]
        return F.layer_norm(x, x.shape[-1:], scale, shift, self._config.norm_eps)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self._state[f"{name}/w"] + self._state[f"{name}/b"]

    def _attention(self, name: str, x: Tensor, memory: Tensor, blocked: Tensor) -> Tensor:
        q, k, v = (
            self._linear(f"{name}/{part}", given)
            .unflatten(-1, (self._config.num_heads, -1))
            .transpose(1, 2)
            for part, given in (("q", x), ("k", memory), ("v", memory))
        )
        mixed = attend(q, k, v, blocked, self._config.mask_fill)
        return self._linear(f"{name}/o", mixed.transpose(1, 2).flatten(2))

    def _feed_forward(self, layer: str, x: Tensor) -> Tensor:
        return self._linear(f"{layer}/ffn/2", F.relu(self._linear(f"{layer}/ffn/1", x)))


ORIGINAL = Original(ToyOriginal, lambda config: config.norm_placement == "pre")
