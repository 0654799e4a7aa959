"""Formulas that several references share, without modules."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "silu": F.silu,
}


def linear(state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """X times ``name.weight`` transposed, plus ``name.bias`` if there is one."""
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def attend(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor, fill: float) -> Tensor:
    """softmax(q k^T / sqrt(D), ``fill`` where blocked) v, over the last two axes."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(blocked, fill).softmax(-1) @ v


def sinusoids(length: int, d_model: int) -> Tensor:
    """(T, E): sin and cos of position / 10000^(2i / E), alternating."""
    position = torch.arange(length, dtype=torch.float64)[:, None]  # (T, 1)
    column = torch.arange(d_model, dtype=torch.float64)  # (E,)
    angle = position / 10000.0 ** ((column - column % 2) / d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


def packed_projections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict whose separate query, key and value projections are packed into one.

    ``….q_proj_weight`` and its like, (E, E) each, become ``….in_proj_weight``, (3 * E, E), which is
    all that ``torch.nn.MultiheadAttention`` takes where keys and values are as wide as queries.
    """
    packed = dict(state)
    for kind in ("weight", "bias"):
        for name in [name for name in packed if name.endswith(f".q_proj_{kind}")]:
            stem = name.removesuffix(f"q_proj_{kind}")
            parts = [packed.pop(f"{stem}{part}_proj_{kind}") for part in "qkv"]
            packed[f"{stem}in_proj_{kind}"] = torch.cat(parts)
    return packed


def causal(length: int) -> Tensor:
    """(T, T), True above the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


# The formulas that the Transformers of all toolkits share, without their names of tensors.


Affine = tuple[Tensor, Tensor | None]  # a matrix (out, in) and a bias


class ToolkitReference(ABC):
    """An encoder and a decoder; a subclass finds the tensors of one toolkit.

    Sublayers are called "self", "cross" and "ff", stacks "encoder" and "decoder".
    """

    title = ""
    no_original: str | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.state = {key: tensor.float() for key, tensor in checkpoint.state_dict.items()}

    @abstractmethod
    def embed(self, stack: str, ids: Tensor) -> Tensor:
        """Ids (B, T) to vectors (B, T, E), with positions."""

    @abstractmethod
    def projections(self, stack: str, layer: int, sublayer: str) -> Sequence[Affine]:
        """The projections to queries, keys, values, and of the output of an attention."""

    @abstractmethod
    def feed_forward(self, stack: str, layer: int) -> Sequence[Affine]:
        """The projections up and down; of a gated one the gate, up and down."""

    @abstractmethod
    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """Scale and shift of a sublayer's norm, or of a stack's last ("last"), if there is one."""

    @abstractmethod
    def output(self) -> Affine:
        """The projection to logits."""

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        x = self.embed("encoder", input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        for i in range(self.config.num_encoder_layers):
            x = self._sublayer("encoder", i, "self", x, None, padding)
            x = self._sublayer("encoder", i, "ff", x)
        return self._normed("encoder", None, "last", x)

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        x = self.embed("decoder", decoder_input_ids)
        padding = (attention_mask == 0)[:, None, None, :]
        future = causal(x.size(1))
        for i in range(self.config.num_decoder_layers):
            x = self._sublayer("decoder", i, "self", x, None, future)
            x = self._sublayer("decoder", i, "cross", x, hidden, padding)
            x = self._sublayer("decoder", i, "ff", x)
        x = self._normed("decoder", None, "last", x)
        weight, bias = self.output()
        return F.linear(x[:, -1:] if last_only else x, weight, bias)

    def _sublayer(
        self,
        stack: str,
        layer: int,
        name: str,
        x: Tensor,
        memory: Tensor | None = None,
        blocked: Tensor | None = None,
    ) -> Tensor:
        decoder = self.config.decoder.norm_placement
        placement = decoder if stack == "decoder" else self.config.norm_placement
        y = self._normed(stack, layer, name, x) if placement == "pre" else x
        if blocked is None:
            y = self._feed_forward(stack, layer, y)
        else:
            y = self._attention((stack, layer, name), y, y if memory is None else memory, blocked)
        y = self.config.residual_scale * x + y
        return y if placement == "pre" else self._normed(stack, layer, name, y)

    def _attention(
        self, where: tuple[str, int, str], x: Tensor, memory: Tensor, blocked: Tensor
    ) -> Tensor:
        *parts, last = self.projections(*where)
        heads = self.config.num_heads
        heads = self.config.decoder.num_heads if where[0] == "decoder" else heads
        q, k, v = (
            F.linear(given, *part).unflatten(-1, (heads, -1)).transpose(1, 2)
            for given, part in zip((x, memory, memory), parts, strict=True)
        )
        mixed = self.mix(where, q, k, v, blocked)
        return F.linear(mixed.transpose(1, 2).flatten(2), *last)

    def mix(
        self, where: tuple[str, int, str], q: Tensor, k: Tensor, v: Tensor, blocked: Tensor
    ) -> Tensor:
        """An attention of heads, (B, H, T, D); ``where`` are its stack, layer and sublayer."""
        return attend(q, k, v, blocked, self.config.mask_fill)

    def _feed_forward(self, stack: str, layer: int, x: Tensor) -> Tensor:
        *parts, down = self.feed_forward(stack, layer)
        hidden = ACTIVATIONS[self.config.activation](F.linear(x, *parts[0]))
        if len(parts) > 1:
            hidden = hidden * F.linear(x, *parts[1])
        return F.linear(hidden, *down)

    def _normed(self, stack: str, layer: int | None, sublayer: str, x: Tensor) -> Tensor:
        found = self.norm(stack, layer, sublayer)
        if found is None:
            return x
        return self.normalise(x, *found)

    def normalise(self, x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
        """A LayerNorm, or an RMSNorm where that is what the model has."""
        if self.config.norm == "rms":
            root = (x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
            return scale * x / root
        return F.layer_norm(x, x.shape[-1:], scale, shift, self.config.norm_eps)

    def affine(self, name: str) -> Affine:
        """``name.weight`` and ``name.bias``, if there is one."""
        return self.state[f"{name}.weight"], self.state.get(f"{name}.bias")


def covers_toolkits(config: TransformerConfig) -> bool:
    """Whether the formulas here cover these settings."""
    return (
        config.norm in ("layer", "rms")
        and "res_post" not in (config.norm_placement, config.decoder.norm_placement)
        and config.relative_positions != "buckets"
        and config.scale_scores
        and not (config.share_encoder_layers or config.share_decoder_layers)
        and not config.positions_every_layer
    )
