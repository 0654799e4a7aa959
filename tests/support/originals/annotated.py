"""The Annotated Transformer: its modules' names and its mathematics, written for these tests."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(size))
        self.b_2 = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        spread = torch.std(x, dim=-1, keepdim=True, correction=1) + self.eps
        return self.a_2 * ((x - torch.mean(x, dim=-1, keepdim=True)) / spread) + self.b_2


class Attention(nn.Module):
    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(size, size) for _ in range(4))

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        batch, size = query.size(0), query.size(-1)

        def heads(i: int, x: Tensor) -> Tensor:
            y: Tensor = self.linears[i](x)
            return y.reshape(batch, -1, self.heads, size // self.heads).permute(0, 2, 1, 3)

        q, k, v = heads(0, query), heads(1, memory), heads(2, memory)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(size // self.heads)
        weights = torch.where(mask.unsqueeze(1) == 0, torch.tensor(-1e9), scores).softmax(-1)
        mixed = torch.einsum("bhts,bhsd->bthd", weights, v).reshape(batch, -1, size)
        output: Tensor = self.linears[3](mixed)
        return output


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w_2(self.w_1(x).clamp(min=0))
        return y


class Sublayer(nn.Module):
    def __init__(self, size: int, residual: str) -> None:
        super().__init__()
        self.norm, self.residual = Norm(size), residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.residual == "pre":  # the notebook
            return x + sublayer(self.norm(x))
        y: Tensor = x + self.norm(sublayer(x))  # the walkthrough
        return y


class EncoderLayer(nn.Module):
    def __init__(self, size: int, heads: int, inner: int, residual: str) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = Attention(heads, size), FeedForward(size, inner)
        self.sublayer = nn.ModuleList(Sublayer(size, residual) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, mask))
        x = self.sublayer[1](x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    def __init__(self, size: int, heads: int, inner: int, residual: str) -> None:
        super().__init__()
        self.self_attn, self.src_attn = Attention(heads, size), Attention(heads, size)
        self.feed_forward = FeedForward(size, inner)
        self.sublayer = nn.ModuleList(Sublayer(size, residual) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, tgt_mask))
        x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, src_mask))
        x = self.sublayer[2](x, self.feed_forward)
        return x


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module], size: int) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), Norm(size)

    def forward(self, x: Tensor, *args: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *args)
        x = self.norm(x)
        return x


class Table(nn.Module):
    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.lut, self.size = nn.Embedding(vocabulary, size), size

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.lut(ids) * math.sqrt(self.size)
        return x


class Positions(nn.Module):
    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        position = torch.arange(length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, size, 2) * -(math.log(10000.0) / size))
        table = torch.zeros(length, size)
        table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.pe: Tensor
        self.register_buffer("pe", table.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.size(1)]


class Generator(nn.Module):
    def __init__(self, size: int, vocabulary: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.proj(x)
        return logits.log_softmax(-1)


class Annotated(nn.Module):
    """Masks are 1 = keep: source (B, 1, S), target (B, T, T)."""

    def __init__(
        self,
        source: int = 17,
        target: int = 19,
        layers: int = 2,
        size: int = 16,
        inner: int = 24,
        heads: int = 4,
        length: int = 64,
        residual: str = "pre",
    ) -> None:
        super().__init__()
        sizes = (size, heads, inner, residual)
        self.encoder = Stack([EncoderLayer(*sizes) for _ in range(layers)], size)
        self.decoder = Stack([DecoderLayer(*sizes) for _ in range(layers)], size)
        self.src_embed = nn.Sequential(Table(source, size), Positions(size, length))
        self.tgt_embed = nn.Sequential(Table(target, size), Positions(size, length))
        self.generator = Generator(size, target)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        """Log-probabilities, (B, T, V)."""
        memory = self.encoder(self.src_embed(src), src_mask)
        x = self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)
        log_probs: Tensor = self.generator(x)
        return log_probs


def target_mask(keep: Tensor) -> Tensor:
    """(B, T) padding to the (B, T, T) keep-mask of the notebook: padding and causality merged."""
    length = keep.size(1)
    return (keep.unsqueeze(1) != 0) & torch.tril(torch.ones(1, length, length, dtype=torch.bool))
