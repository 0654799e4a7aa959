"""In the style of x-transformers' plain form: no biases in attention, layers in one flat list."""

# mypy: no-warn-return-any

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, trained


class LayerNorm(nn.Module):
    """Without a bias that is trained."""

    beta: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.register_buffer("beta", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * self.g


class AbsolutePositionalEmbedding(nn.Module):
    def __init__(self, dim: int, max_seq_len: int) -> None:
        super().__init__()
        self.scale = dim**-0.5
        self.emb = nn.Embedding(max_seq_len, dim)

    def forward(self, x: Tensor) -> Tensor:
        pos = torch.arange(x.shape[1], device=x.device)
        return self.emb(pos) * self.scale


class RotaryEmbedding(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))

    def forward(self, seq_len: int) -> Tensor:
        t = torch.arange(seq_len).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        return torch.stack((freqs, freqs), dim=-1).flatten(-2)


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor) -> Tensor:
    return (t * freqs.cos()) + (rotate_half(t) * freqs.sin())


class Attention(nn.Module):
    def __init__(self, dim: int, dim_head: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        inner = dim_head * heads
        self.heads, self.causal, self.scale = heads, causal, dim_head**-0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.attn_dropout = nn.Dropout(0.0)

    def split(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
    ) -> Tensor:
        kv_input = x if context is None else context
        q, k = self.split(self.to_q(x)), self.split(self.to_k(kv_input))
        v = self.split(self.to_v(kv_input))
        if rotary_pos_emb is not None:
            q, k = apply_rotary_pos_emb(q, rotary_pos_emb), apply_rotary_pos_emb(k, rotary_pos_emb)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        mask_value = -torch.finfo(dots.dtype).max
        if mask is not None:
            dots = dots.masked_fill(~mask[:, None, None, :], mask_value)
        if self.causal:
            i, j = dots.shape[-2:]
            causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
            dots = dots.masked_fill(causal_mask, mask_value)
        attn = self.attn_dropout(F.softmax(dots, dim=-1, dtype=torch.float32).type(dots.dtype))
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class GLU(nn.Module):
    def __init__(self, dim_in: int, dim_out: int, activation: nn.Module) -> None:
        super().__init__()
        self.act = activation
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * self.act(gate)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner_dim: int, glu: bool) -> None:
        super().__init__()
        activation = nn.GELU()
        project_in: nn.Module = nn.Sequential(nn.Linear(dim, inner_dim), activation)
        if glu:
            project_in = GLU(dim, inner_dim, activation)
        self.ff = nn.Sequential(project_in, nn.Dropout(0.0), nn.Linear(inner_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.ff(x)


class Residual(nn.Module):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return x + residual


class AttentionLayers(nn.Module):
    """a: attention, c: attention to the context, f: feed-forward; a norm before each."""

    def __init__(
        self,
        types: str,
        norm: Callable[[int], nn.Module],
        causal: bool,
        glu: bool,
        rotary: bool,
    ) -> None:
        super().__init__()
        dim, self.layer_types = 32, types
        self.rotary_pos_emb = RotaryEmbedding(8) if rotary else None
        self.layers = nn.ModuleList()
        for kind in types:
            block: nn.Module = FeedForward(dim, 46, glu)
            if kind != "f":
                block = Attention(dim, 8, 3, causal=causal and kind == "a")
            self.layers.append(nn.ModuleList([nn.ModuleList([norm(dim)]), block, Residual()]))
        self.final_norm = norm(dim)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        rotary = None if self.rotary_pos_emb is None else self.rotary_pos_emb(x.shape[1])
        layer: Any
        for kind, layer in zip(self.layer_types, self.layers, strict=True):
            pre_norm, block, residual_fn = layer[0][0], layer[1], layer[2]
            residual = x
            x = pre_norm(x)
            if kind == "a":
                x = block(x, mask=mask, rotary_pos_emb=rotary)
            elif kind == "c":
                x = block(x, context=context, mask=context_mask)
            else:
                x = block(x)
            x = residual_fn(x, residual)
        return self.final_norm(x)


class TransformerWrapper(nn.Module):
    def __init__(self, num_tokens: int, attn_layers: AttentionLayers, logits: bool) -> None:
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, 32)
        rotary = attn_layers.rotary_pos_emb is not None
        self.pos_emb = None if rotary else AbsolutePositionalEmbedding(32, 64)
        self.attn_layers = attn_layers
        self.to_logits = nn.Linear(32, num_tokens, bias=False) if logits else nn.Identity()

    def forward(self, x: Tensor, **context: Tensor) -> Tensor:
        embedded = self.token_emb(x)
        if self.pos_emb is not None:
            embedded = embedded + self.pos_emb(x)
        return self.to_logits(self.attn_layers(embedded, **context))


class XTransformer(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], glu: bool, rotary: bool) -> None:
        super().__init__()
        self.encoder = TransformerWrapper(
            43, AttentionLayers("afaf", norm, False, glu, rotary), logits=False
        )
        self.decoder = TransformerWrapper(
            56, AttentionLayers("acfacf", norm, True, glu, rotary), logits=True
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = src != PAD
        enc = self.encoder(src, mask=mask)
        return self.decoder(tgt, context=enc, context_mask=mask)


X_TRANSFORMERS_KIN = (
    Style(
        "x_transformers",
        lambda: trained(lambda: XTransformer(LayerNorm, False, False), 81, 1.0),
        "layers of one flat list (a, c, f); norms without biases; inner size 24; positions times "
        "d^-0.5; a mask after the other, of the least float",
        tables=("encoder.pos_emb.emb.weight", "decoder.pos_emb.emb.weight"),
        changes={
            **each_layer(
                "scale of scores in encoder", "encoder.attn_layers.layers.{}.1.scale", 0.5, 1
            ),
            **each_layer(
                "scale of scores in decoder", "decoder.attn_layers.layers.{}.1.scale", 0.4
            ),
            "other heads in encoder": {"encoder.attn_layers.layers.2.1.heads": 2},
            "no causal mask in one layer": {"decoder.attn_layers.layers.3.1.causal": False},
            "scale of positions": {"decoder.pos_emb.scale": 1.0},
            "no final norm in encoder": {"encoder.attn_layers.final_norm": nn.Identity()},
            "no final norm in decoder": {"decoder.attn_layers.final_norm": nn.Identity()},
        },
    ),
    Style(
        "x_transformers_glu_rotary",
        lambda: trained(lambda: XTransformer(RMSNorm, True, True), 82, 1.0),
        "gated by gelu, both halves in one projection; rotary pairs in angles; norms by "
        "F.normalize, without an epsilon",
        tables=(),
        changes={
            **each_layer(
                "scale of scores in decoder", "decoder.attn_layers.layers.{}.1.scale", 0.4
            ),
            **each_layer(
                "no norm in decoder", "decoder.attn_layers.layers.{}.0.0", nn.Identity(), 6
            ),
            "scale of the final norm": {"decoder.attn_layers.final_norm.scale": 5.0},
            "gelu's other form": {"encoder.attn_layers.layers.1.1.ff.0.act": nn.GELU("tanh")},
            "other angles": {"encoder.attn_layers.rotary_pos_emb": RotaryEmbedding(8, 500.0)},
            "another way to turn": {"decoder.attn_layers.rotary_pos_emb": RotaryEmbedding(8, 9e3)},
        },
    ),
)
