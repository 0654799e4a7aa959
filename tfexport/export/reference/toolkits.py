"""The formulas of the toolkits' Transformers, on a checkpoint's own tensors.

``ToolkitReference`` computes what all share; a subclass a toolkit finds its tensors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export.reference.formulas import ACTIVATIONS, attend, causal, sinusoids
from tfexport.export.reference.original import Original
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig

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


_FAIRSEQ_PAD = 1
_FAIRSEQ_NORMS = {
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
            x = x + learned[_FAIRSEQ_PAD + 1 : _FAIRSEQ_PAD + 1 + ids.size(1)]
        elif self.config.positions != "none":
            x = x + _fairseq_sinusoids(ids.size(1), self.config.d_model)
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
        name, old = _FAIRSEQ_NORMS[sublayer]
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


def _fairseq_sinusoids(length: int, d_model: int) -> Tensor:
    """(T, E): rows from the padding id's next on, sines and then cosines."""
    half = d_model // 2
    frequency = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(_FAIRSEQ_PAD + 1, _FAIRSEQ_PAD + 1 + length)[:, None] * frequency
    return F.pad(torch.cat([angle.sin(), angle.cos()], 1), (0, d_model % 2))


FAIRSEQ = Original(FairseqReference, covers_toolkits)


_JOEYNMT_TABLES = {"encoder": "src_embed.lut.weight", "decoder": "trg_embed.lut.weight"}
_JOEYNMT_ATTENTIONS = {
    "encoder": {"self": "src_src_att"},
    "decoder": {"self": "trg_trg_att", "cross": "src_trg_att"},
}
_JOEYNMT_NORMS = {
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
        own = self.state.get(_JOEYNMT_TABLES[stack])
        other = "decoder" if stack == "encoder" else "encoder"
        return self.state[_JOEYNMT_TABLES[other]] if own is None else own

    def projections(self, stack: str, layer: int, sublayer: str) -> list[Affine]:
        """See ``ToolkitReference``."""
        name = f"{stack}.layers.{layer}.{_JOEYNMT_ATTENTIONS[stack][sublayer]}"
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
        return self.affine(f"{stack}.layers.{layer}.{_JOEYNMT_NORMS[stack][sublayer]}")

    def output(self) -> Affine:
        """See ``ToolkitReference``."""
        weight = self.state.get("decoder.output_layer.weight")
        return self._table("decoder") if weight is None else weight, None


JOEYNMT = Original(JoeyReference, covers_toolkits)


_MARIAN_ATTENTIONS = {"self": "self", "cross": "context"}
_MARIAN_NORMS = {"self": "self_Wo", "cross": "context_Wo", "ff": "ffn_ffn"}
_MARIAN_NEVER = -1e9


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
        name = f"{stack}_l{layer + 1}_{_MARIAN_ATTENTIONS[sublayer]}"
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
        return self._norm(f"{stack}_l{layer + 1}_{_MARIAN_NORMS[sublayer]}")

    def _norm(self, name: str) -> Affine | None:
        for suffix in ("", "_pre"):
            if f"{name}_ln_scale{suffix}" in self.state:
                scale, bias = (self.state[f"{name}_ln_{it}{suffix}"] for it in ("scale", "bias"))
                return scale.flatten(), bias.flatten()
        return None

    def output(self) -> Affine:
        """See ``ToolkitReference``; the last id is no word, and is never written."""
        name = "decoder_ff_logit_out"
        weight = self.state.get(f"{name}_Wt", self._table("decoder"))
        weight = self.state[f"{name}_W"].T if f"{name}_W" in self.state else weight
        bias = self.state.get(f"{name}_b", torch.zeros(len(weight))).flatten()
        return F.pad(weight, (0, 0, 0, 1)), F.pad(bias, (0, 1), value=_MARIAN_NEVER)


MARIAN_NMT = Original(MarianReference, covers_toolkits)


_OPENNMT_LAYERS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_OPENNMT_ATTENTIONS = {"self": "self_attn", "cross": "context_attn"}


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
        name = f"{_OPENNMT_LAYERS[stack]}.{layer}.{_OPENNMT_ATTENTIONS[sublayer]}"
        parts = ("linear_query", "linear_keys", "linear_values", "final_linear")
        return [self.affine(f"{name}.{part}") for part in parts]

    def mix(
        self, where: tuple[str, int, str], q: Tensor, k: Tensor, v: Tensor, blocked: Tensor
    ) -> Tensor:
        """See ``ToolkitReference``; self-attention may have one of three relative positions."""
        stack, layer, sublayer = where
        if sublayer != "self" or self.config.relative_positions == "none":
            return super().mix(where, q, k, v, blocked)
        name = f"{_OPENNMT_LAYERS[stack]}.{layer}.self_attn"
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
        """See ``ToolkitReference``; a gated one has a third matrix, next to the first."""
        name = f"{_OPENNMT_LAYERS[stack]}.{layer}.feed_forward"
        names = [it for it in ("w_1", "w_3", "w_2") if f"{name}.{it}.weight" in self.state]
        return [self.affine(f"{name}.{it}") for it in names]

    def norm(self, stack: str, layer: int | None, sublayer: str) -> Affine | None:
        """See ``ToolkitReference``."""
        if sublayer == "last":
            return self.affine(f"{stack}.layer_norm")
        own = {"encoder": {"self": "layer_norm"}, "decoder": {"self": "layer_norm_1"}}[stack]
        names = {"cross": "layer_norm_2", "ff": "feed_forward.layer_norm", **own}
        return self.affine(f"{_OPENNMT_LAYERS[stack]}.{layer}.{names[sublayer]}")

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


OPENNMT_PY = Original(OpenNMTReference, covers_toolkits)


_SOCKEYE_ATTENTIONS = {
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
        name = f"{stack}.layers.{layer}.{_SOCKEYE_ATTENTIONS[stack][sublayer]}"
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
        own = "ff" if sublayer == "ff" else _SOCKEYE_ATTENTIONS[stack][sublayer]
        places = [f"{stack}.layers.{layer}.{it}_{own}.layer_norm" for it in ("pre", "post")]
        return self.affine(next(it for it in places if f"{it}.weight" in self.state))

    def output(self) -> Affine:
        """See ``ToolkitReference``."""
        weight = self.state.get("output_layer.weight")
        bias = self.state.get("output_layer.bias")
        return self._table("decoder") if weight is None else weight, bias


SOCKEYE = Original(SockeyeReference, covers_toolkits)
