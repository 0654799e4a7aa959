"""What a config does not express, and decoders whose encoder is none of a Transformer."""

# mypy: no-warn-return-any

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import DECODER, Style, each_layer, trained
from tfexport.export import Input

IMAGES = Input("pixels", "float32", ("batch", 3, 12, 12))
FRAMES = Input("frames", "float32", ("batch", "source_length", 10))


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(x.size(0), x.size(1), heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """With norms of queries and keys, if asked for."""

    def __init__(self, dim: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.o_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.q_norm: nn.Module = nn.RMSNorm(dim // heads, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = nn.RMSNorm(dim // heads, eps=1e-6) if qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, memory: Tensor, keep: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.heads))
        k = self.k_norm(split_heads(self.k_proj(memory), self.heads))
        v = split_heads(self.v_proj(memory), self.heads)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=is_causal)
        return self.o_proj(join_heads(y))


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class Sublayer(nn.Module):
    """x + norm(f(norm(x))) with both norms, x + f(norm(x)) with the first."""

    def __init__(self, f: nn.Module, dim: int, sandwich: bool) -> None:
        super().__init__()
        self.f, self.before = f, nn.LayerNorm(dim)
        self.after: nn.Module = nn.LayerNorm(dim) if sandwich else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor | None = None, **options: object) -> Tensor:
        y = self.before(x)
        if isinstance(self.f, Attention):
            y = self.f(y, y if memory is None else memory, **options)
        else:
            y = self.f(y)
        return x + self.after(y)


class Odd(nn.Module):
    """Pre-norm, learned positions; with one thing that is odd."""

    def __init__(self, sandwich: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(46, 32), nn.Embedding(51, 32)
        self.places = nn.Embedding(64, 32)

        def attention() -> nn.Module:
            return Sublayer(Attention(32, 4, qk_norm), 32, sandwich)

        def feed_forward() -> nn.Module:
            return Sublayer(FeedForward(32, 56), 32, sandwich)

        self.encoder = nn.ModuleList(
            [nn.ModuleList([attention(), feed_forward()]) for _ in range(2)]
        )
        self.decoder = nn.ModuleList(
            [nn.ModuleList([attention(), attention(), feed_forward()]) for _ in range(2)]
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 51)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keep = (src != PAD)[:, None, None, :]
        x = self.source(src) + self.places(torch.arange(src.size(1)))
        layer: Any
        for layer in self.encoder:
            x = layer[1](layer[0](x, keep=keep))
        y = self.target(tgt) + self.places(torch.arange(tgt.size(1)))
        for layer in self.decoder:
            y = layer[2](layer[1](layer[0](y, is_causal=True), x, keep=keep))
        return self.head(self.norm(y))


class Parallel(nn.Module):
    """x + attention(norm(x)) + feed-forward(norm(x)) in the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(44, 32), nn.Embedding(57, 32)
        self.places = nn.Parameter(torch.randn(64, 32) * 0.3)
        self.attn = nn.ModuleList([Attention(32, 2) for _ in range(2)])
        self.mlp = nn.ModuleList([FeedForward(32, 54) for _ in range(2)])
        self.ln = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
        self.decoder = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        Sublayer(Attention(32, 2), 32, False),
                        Sublayer(Attention(32, 2), 32, False),
                        Sublayer(FeedForward(32, 54), 32, False),
                    ]
                )
                for _ in range(2)
            ]
        )
        self.head = nn.Linear(32, 57)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keep = (src != PAD)[:, None, None, :]
        x = self.source(src) + self.places[: src.size(1)]
        for attn, mlp, ln in zip(self.attn, self.mlp, self.ln, strict=True):
            y = ln(x)
            x = x + attn(y, y, keep) + mlp(y)
        z = self.target(tgt) + self.places[: tgt.size(1)]
        layer: Any
        for layer in self.decoder:
            z = layer[2](layer[1](layer[0](z, is_causal=True), x, keep=keep))
        return self.head(z)


# ---- a decoder alone -----------------------------------------------------------------------------


class CaptionDecoder(nn.Module):
    """Post-norm layers over the rows of any memory."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, 32), nn.Embedding(60, 32)
        self.own = nn.ModuleList([Attention(32, 4) for _ in range(2)])
        self.cross = nn.ModuleList([Attention(32, 4) for _ in range(2)])
        self.ff = nn.ModuleList([FeedForward(32, 52) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(32, eps=1e-6) for _ in range(6)])
        self.head = nn.Linear(32, words)

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for i in range(2):
            x = self.norms[3 * i](x + self.own[i](x, x, is_causal=True))
            x = self.norms[3 * i + 1](x + self.cross[i](x, memory))
            x = self.norms[3 * i + 2](x + self.ff[i](x))
        return self.head(x)


class Captions(nn.Module):
    """Convolutions see an image of 12 x 12 pixels as nine regions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 32, 2, stride=2)
        )
        self.decoder = CaptionDecoder(49)

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        regions = self.stem(pixels).flatten(2).transpose(1, 2)
        return self.decoder(ids, regions)


class Speech(nn.Module):
    """A recurrent layer of two directions reads the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = nn.GRU(10, 16, batch_first=True, bidirectional=True)
        self.decoder = CaptionDecoder(54)

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        return self.decoder(ids, self.listener(frames)[0])


_SUBLAYERS = {
    **each_layer("eps in encoder", "encoder.{}.0.before.eps", 1e-3),
    **each_layer("eps in decoder", "decoder.{}.1.before.eps", 1e-3),
    **each_layer("no norm in decoder", "decoder.{}.2.before", nn.Identity()),
}
_CAPTIONS = {
    **each_layer("eps in decoder", "decoder.norms.{}.eps", 1e-3, 6),
    **each_layer("half the heads", "decoder.own.{}.heads", 2),
    **each_layer("half the heads in cross-attention", "decoder.cross.{}.heads", 2),
    **each_layer("no norm", "decoder.norms.{}", nn.Identity(), 6),
}

OTHER_KIN = (
    Style(
        "sandwich",
        lambda: trained(lambda: Odd(sandwich=True), 121, 1.0),
        "a norm before and one after each sublayer",
        expected="each sublayer has two norms",
        tables=("places.weight",),
        changes={
            **_SUBLAYERS,
            **each_layer("one norm in decoder", "decoder.{}.0.after", nn.Identity()),
        },
    ),
    Style(
        "normalised_keys",
        lambda: trained(lambda: Odd(qk_norm=True), 122, 1.0),
        "queries and keys of each head pass a norm",
        expected="queries and keys pass norms",
        tables=("places.weight",),
        changes={
            **_SUBLAYERS,
            **each_layer("queries pass none", "decoder.{}.0.f.q_norm", nn.Identity()),
        },
    ),
    Style(
        "parallel",
        lambda: trained(Parallel, 123, 1.0),
        "attention and feed-forward of the encoder read the same norm, side by side",
        expected=DECODER,  # attention and feed-forward of the encoder are parallel
        tables=("places",),
        changes=each_layer("eps in encoder", "ln.{}.eps", 1e-3),
    ),
    Style(
        "captions",
        lambda: trained(Captions, 124, 1.0),
        "an image of fixed size, seen by convolutions; a post-norm decoder",
        inputs=(IMAGES,),
        expected=DECODER,
        pads_source=False,
        tables=("decoder.places.weight",),
        changes=_CAPTIONS,
    ),
    Style(
        "speech",
        lambda: trained(Speech, 125, 1.0),
        "frames, read by a recurrent layer of two directions; the same decoder",
        inputs=(FRAMES,),
        expected=DECODER,
        pads_source=False,
        tables=("decoder.places.weight",),
        changes=_CAPTIONS,
    ),
)
