"""The RMSNorm Transformer: its modules' names and its mathematics, written for these tests."""

import math

import torch
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt(torch.mean(x * x, -1, keepdim=True) + 1e-5))


class Head(nn.Module):
    def __init__(self, size: int, head: int) -> None:
        super().__init__()
        self.Q_net, self.K_net, self.V_net = (nn.Linear(size, head, bias=False) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, blocked: Tensor | None) -> Tensor:
        q, k, v = self.Q_net(x), self.K_net(memory), self.V_net(memory)
        scores = torch.bmm(q, k.mT) / math.sqrt(q.size(-1))
        if blocked is not None:
            scores = torch.where(blocked, torch.tensor(-math.inf), scores)
        return torch.bmm(scores.softmax(-1), v)


class Attention(nn.Module):
    def __init__(self, size: int, head: int, heads: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList(Head(size, head) for _ in range(heads))
        self.W_net = nn.Linear(head * heads, size, bias=False)

    def forward(self, x: Tensor, memory: Tensor, blocked: Tensor | None = None) -> Tensor:
        parts = [head(x, memory, blocked) for head in self.attention_blocks]
        y: Tensor = self.W_net(torch.cat(parts, -1))
        return y


class FeedForward(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        up, down = nn.Linear(size, 4 * size, bias=False), nn.Linear(4 * size, size, bias=False)
        self.net = nn.Sequential(up, nn.SiLU(), down)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


class EncoderBlock(nn.Module):
    def __init__(self, size: int, head: int, heads: int) -> None:
        super().__init__()
        self.multi_head_attention = Attention(size, head, heads)
        self.rms_norm1, self.rms_norm2 = Norm(size), Norm(size)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rms_norm1(x + self.multi_head_attention(x, x))
        y: Tensor = self.rms_norm2(x + self.feed_forward(x))
        return y


class DecoderBlock(nn.Module):
    def __init__(self, size: int, head: int, heads: int) -> None:
        super().__init__()
        self.masked_multi_head_attention = Attention(size, head, heads)
        self.multi_head_attention = Attention(size, head, heads)
        self.rms_norm1, self.rms_norm2, self.rms_norm3 = Norm(size), Norm(size), Norm(size)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, blocked: Tensor | None, memory: Tensor | None) -> Tensor:
        x = self.rms_norm1(x + self.masked_multi_head_attention(x, x, blocked))
        x = self.rms_norm2(x + self.multi_head_attention(x, x if memory is None else memory))
        y: Tensor = self.rms_norm3(x + self.feed_forward(x))
        return y


def positions(length: int, size: int) -> Tensor:
    table = torch.empty(length, size)
    for position in range(length):
        for i in range(size):
            angle = torch.tensor(position / 10000 ** ((i - i % 2) / size))
            table[position, i] = torch.cos(angle) if i % 2 else torch.sin(angle)
    return table


class RMSNormModel(nn.Module):
    """Probabilities out; the mask, True = blocked, is optional, and so is the source."""

    def __init__(
        self,
        encoders: int = 2,
        decoders: int = 3,
        vocabulary: int = 19,
        size: int = 12,
        head: int = 5,
        heads: int = 3,
    ) -> None:
        super().__init__()
        sizes, self.size = (size, head, heads), size
        self.input_embedding = nn.Embedding(vocabulary, size)
        self.output_embedding = nn.Embedding(vocabulary, size)
        self.encoder_blocks = nn.ModuleList(EncoderBlock(*sizes) for _ in range(encoders))
        self.decoder_blocks = nn.ModuleList(DecoderBlock(*sizes) for _ in range(decoders))
        self.linear = nn.Linear(size, vocabulary)

    def forward(
        self, source: Tensor | None, target: Tensor, blocked: Tensor | None = None
    ) -> Tensor:
        memory = None
        if source is not None:
            memory = self.input_embedding(source) + positions(source.size(1), self.size)
            for encoder in self.encoder_blocks:
                memory = encoder(memory)
        x = self.output_embedding(target) + positions(target.size(1), self.size)
        for decoder in self.decoder_blocks:
            x = decoder(x, blocked, memory)
        return torch.softmax(self.linear(x), -1)


def causal(length: int) -> Tensor:
    """(T, T), True above the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
