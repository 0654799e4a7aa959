"""Modules of other inputs: images, speech, two inputs; and of other memories than one tensor."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, Case, drawn
from tests.export.incremental.position_modules import CrossAttention, SmallEncoder
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))


class Image(nn.Module):
    """A captioner: convolutions, positions in two dimensions, torch's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 12, 3, stride=2, padding=1),
        )
        self.row_embed = nn.Parameter(torch.rand(50, 6))
        self.col_embed = nn.Parameter(torch.rand(50, 6))
        layer = nn.TransformerDecoderLayer(12, 2, 20, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.embed, self.pos = nn.Embedding(21, 12), nn.Embedding(40, 12)
        self.fc = nn.Linear(12, 21)

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        h = self.backbone(images)
        height, width = h.shape[-2:]
        pos = torch.cat(
            [
                self.col_embed[:width].unsqueeze(0).repeat(height, 1, 1),
                self.row_embed[:height].unsqueeze(1).repeat(1, width, 1),
            ],
            dim=-1,
        ).flatten(0, 1)
        memory = h.flatten(2).permute(0, 2, 1) + pos.unsqueeze(0)
        seq_len = captions.size(1)
        tgt = self.embed(captions) + self.pos(torch.arange(seq_len)).unsqueeze(0)
        mask = nn.Transformer.generate_square_subsequent_mask(seq_len)
        out: Tensor = self.fc(self.decoder(tgt, memory, tgt_mask=mask))
        return out


def sinusoids(length: int, channels: int) -> Tensor:
    log_timescale_increment = math.log(10000) / (channels // 2 - 1)
    inv_timescales = torch.exp(-log_timescale_increment * torch.arange(channels // 2))
    scaled_time = torch.arange(length)[:, None] * inv_timescales[None, :]
    return torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=1)


class SpeechAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value, self.out = nn.Linear(n_state, n_state), nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q = self.query(x)
        k = self.key(x if xa is None else xa)
        v = self.value(x if xa is None else xa)
        _, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        w = F.softmax(qk.float(), dim=-1).to(q.dtype)
        out: Tensor = self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))
        return out


class Speech(nn.Module):
    """Frames halved twice, positions of sines, a mask and positions in tables."""

    positional_embedding: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(10, 12, kernel_size=3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(12, 12, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(200, 12))
        self.enc_attn, self.enc_ln = SpeechAttention(12, 2), nn.LayerNorm(12)
        self.token_embedding = nn.Embedding(26, 12)
        self.target_positions = nn.Parameter(torch.randn(48, 12))
        self.attn = nn.ModuleList([SpeechAttention(12, 2) for _ in range(2)])
        self.cross_attn = nn.ModuleList([SpeechAttention(12, 2) for _ in range(2)])
        self.lns = nn.ModuleList([nn.LayerNorm(12) for _ in range(5)])
        mask = torch.empty(48, 48).fill_(-float("inf")).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        x = F.gelu(self.conv1(mel.transpose(1, 2)))
        x = F.gelu(self.conv2(x)).permute(0, 2, 1)
        x = (x + self.positional_embedding[: x.shape[1]]).to(x.dtype)
        xa = x + self.enc_attn(self.enc_ln(x))
        y = self.token_embedding(tokens) + self.target_positions[: tokens.shape[-1]]
        for i in range(2):
            y = y + self.attn[i](self.lns[i](y), mask=self.mask)
            y = y + self.cross_attn[i](self.lns[2 + i](y), xa)
        logits: Tensor = self.lns[4](y) @ torch.transpose(self.token_embedding.weight, 0, 1)
        return logits.float()


class TwoInputs(nn.Module):
    """Ids and the regions of a picture, each attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.vision = SmallEncoder(20, 12), nn.Linear(6, 12)
        self.text_cross, self.vision_cross = CrossAttention(12, 2), CrossAttention(12, 3)
        self.embed, self.pos = nn.Embedding(19, 12), nn.Embedding(64, 12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, 0.0, batch_first=True)
        self.gate = nn.Linear(24, 12)
        self.out = nn.Linear(12, 19)

    def forward(self, input_ids: Tensor, regions: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        x = self.embed(target) + self.pos(torch.arange(length))
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.layer(x, src_mask=mask, is_causal=True)
        text = self.text_cross(x, self.text(input_ids), input_ids != PAD)
        vision = self.vision_cross(x, self.vision(regions).tanh())
        gate = torch.sigmoid(self.gate(torch.cat([text, vision], dim=-1)))
        out: Tensor = self.out(x + gate * text + (1 - gate) * vision)
        return out


class SourceAndLanguage(nn.Module):
    """Ids and one number for each row, which is prefixed to the source and added to the target."""

    def __init__(self) -> None:
        super().__init__()
        self.languages = nn.Embedding(3, 12)
        self.src, self.tgt, self.pos = (nn.Embedding(n, 12) for n in (18, 20, 64))
        self.encoder = nn.TransformerEncoderLayer(12, 3, 18, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(12, 3, 18, batch_first=True, norm_first=True)
        self.out = nn.Linear(12, 20)

    def forward(self, *, src: Tensor, language: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        tag = self.languages(language).unsqueeze(1)
        x = self.src(src) + self.pos(torch.arange(src.size(1)))
        padding = F.pad(src == PAD, (1, 0), value=False)
        memory = self.encoder(torch.cat([tag, x], dim=1), src_key_padding_mask=padding)
        t = tgt.size(1)
        causal = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        y = self.tgt(tgt) + self.pos(torch.arange(t)) + tag
        y = self.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=padding)
        return {"scores": self.out(y), "memory": memory}


def by_keywords(model: nn.Module, src: Tensor, language: Tensor, tgt: Tensor) -> Tensor:
    scores: Tensor = model(src=src, language=language, tgt=tgt)["scores"]
    return scores


class Encoded(NamedTuple):
    sequence: Tensor
    summary: Tensor


class TwoMemories(nn.Module):
    """The source's rows and one vector of it, added to every position and scaling the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.pool = SmallEncoder(19, 8), nn.Linear(8, 8)
        self.embed, self.pos = nn.Embedding(18, 8), nn.Parameter(torch.randn(64, 8))
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
        self.cross = CrossAttention(8, 2)
        self.film = nn.Linear(8, 16)
        self.out = nn.Linear(8, 18)

    def encode(self, src: Tensor) -> Encoded:
        rows = self.encoder(src)
        keep = (src != PAD).unsqueeze(-1)
        largest = rows.masked_fill(~keep, float("-inf")).max(dim=1).values
        return Encoded(rows, torch.tanh(self.pool(largest)))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        encoded = self.encode(src)
        t = tgt.size(-1)
        y = self.embed(tgt) + self.pos[:t] + encoded.summary[:, None]
        future = torch.arange(t)[:, None] < torch.arange(t)
        y = y + self.attn(y, y, y, attn_mask=future)[0]
        y = y + self.cross(y, encoded.sequence, src != PAD)
        scale, shift = self.film(encoded.summary).unsqueeze(1).chunk(2, dim=-1)
        out: Tensor = self.out(y * (1 + scale) + shift)
        return out


class SourceEmbeddingAgain(nn.Module):
    """Attention looks at the encoder's rows and takes the source's own embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 12)
        self.positions = nn.Embedding(64, 12)
        self.encoder = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)
        self.query = nn.Linear(12, 12)
        self.self_attn = nn.Linear(12, 36)
        self.switch = nn.Linear(24, 1)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        embedded = self.embed(src)
        padding = src == PAD
        memory = self.encoder(
            embedded + self.positions(torch.arange(src.size(1))), src_key_padding_mask=padding
        )
        x = self.embed(tgt) + self.positions(torch.arange(tgt.size(1)))
        q, k, v = self.self_attn(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = self.query(x).matmul(memory.transpose(1, 2))
        copied = scores.masked_fill(padding[:, None], -1e9).softmax(-1) @ embedded
        p = torch.sigmoid(self.switch(torch.cat([x, copied], -1)))
        mixed: Tensor = p * x + (1 - p) * copied
        return mixed @ self.embed.weight.t()


INPUT_CASES = (
    Case(
        "image",
        lambda: drawn(Image, 5, 0.7),
        (Input("pixels", "float32", ("batch", 1, 12, 20)),),
    ),
    Case(
        "speech",
        lambda: drawn(Speech, 4, 1.5),
        (Input("input_features", "float32", ("batch", "frames", 10)),),
    ),
    Case(
        "two_inputs",
        lambda: drawn(TwoInputs, 2, 1.5),
        (SOURCE, Input("regions", "float32", ("batch", "region_count", 6))),
        pads_source=True,
    ),
    Case(
        "source_and_language",
        lambda: drawn(SourceAndLanguage, 3),
        (SOURCE, Input("language", "int64", ("batch",), below=3)),
        forward=by_keywords,
        pads_source=True,
    ),
    Case("two_memories", lambda: drawn(TwoMemories, 3), (SOURCE,), pads_source=True),
    Case(
        "source_embedding_again",
        lambda: drawn(SourceEmbeddingAgain, 8),
        (SOURCE,),
        pads_source=True,
    ),
)
