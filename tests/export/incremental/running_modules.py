"""Decoders that run over the target: recurrent, convolutional, of means and of sums."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.export.incremental.own_case import PAD, Case, drawn
from tests.export.incremental.position_modules import CrossAttention, SmallEncoder
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))
SOURCE_BATCH_SECOND = Input("input_ids", "int64", ("source_length", "batch"))
TARGET_BATCH_SECOND = Input("target", "int64", ("target_length", "batch"))


# ---- recurrent -----------------------------------------------------------------------------------


class GRUEncoder(nn.Module):
    def __init__(self, vocab: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, hidden = self.gru(self.embedding(x))
        return output, hidden


class GRUDecoder(nn.Module):
    def __init__(self, hidden_size: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(2 * hidden_size, vocab)

    def forward(self, target: Tensor, hidden: Tensor) -> Tensor:
        embedded = F.relu(self.embedding(target))
        context = hidden.transpose(0, 1).repeat(1, target.size(1), 1)
        output, _ = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return F.log_softmax(self.out(torch.cat((output, context), dim=2)), dim=-1)


class GRUWithoutAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = GRUEncoder(18, 10), GRUDecoder(10, 21)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        _, hidden = self.encoder(src)
        out: Tensor = self.decoder(tgt, hidden)
        return out


class LSTMWithAttention(nn.Module):
    """The source in both directions, general attention after two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(19, 8), nn.Embedding(20, 8)
        self.encoder = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(8, 12, num_layers=2, dropout=0.2, batch_first=True)
        self.w_a = nn.Linear(12, 12, bias=False)
        self.w_c = nn.Linear(24, 12, bias=False)
        self.output = nn.Linear(12, 20)

    def bridge(self, state: Tensor) -> Tensor:
        return torch.cat([state[0::2], state[1::2]], dim=2)

    def forward(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, Tensor]:
        memory, (h, c) = self.encoder(self.src_embed(src))
        output, _ = self.decoder(self.tgt_embed(tgt), (self.bridge(h), self.bridge(c)))
        scores = torch.bmm(output, self.w_a(memory).transpose(1, 2))
        weights = F.softmax(scores, dim=2)
        context = torch.bmm(weights, memory)
        attentional = torch.tanh(self.w_c(torch.cat([context, output], dim=2)))
        return self.output(attentional), weights


class PlainRNN(nn.Module):
    """Batch second; the mean of the source's words is in every input."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(22, 8, padding_idx=PAD)
        self.tgt_embed = nn.Embedding(17, 8)
        self.rnn = nn.RNN(16, 10, num_layers=2)
        self.fc = nn.Linear(10, 17)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keep = (src != PAD).unsqueeze(-1).float()
        mean = (self.src_embed(src) * keep).sum(0) / keep.sum(0).clamp(min=1)
        embedded = self.tgt_embed(tgt)
        context = mean.unsqueeze(0).expand(tgt.size(0), -1, -1)
        output, _ = self.rnn(torch.cat([embedded, context], dim=-1))
        logits = self.fc(output)
        out: Tensor = logits.view(-1, 17)
        return out


class AttentionThenGRU(nn.Module):
    """A recurrent layer over what causal attention gives: a cache and a carried state."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(20, 12), CrossAttention(12, 2)
        self.embed, self.positions = nn.Embedding(18, 12), nn.Embedding(64, 12)
        self.attn = nn.MultiheadAttention(12, 3, batch_first=True)
        self.gru = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 18)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        t = tgt.size(1)
        x = self.embed(tgt) + self.positions(torch.arange(t))
        mask = torch.ones(t, t).triu(1).bool()
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        x = x + self.gru(x)[0]
        out: Tensor = self.out(x + self.cross(x, self.encoder(src), src != PAD))
        return out


class PackedGRU(nn.Module):
    """Rows of the source are packed by their lengths, which the padding gives."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(20, 8), nn.Embedding(19, 8)
        self.encoder = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(12, 10)
        self.decoder = nn.GRU(8, 10, batch_first=True)
        self.attn, self.out = nn.Linear(12, 10), nn.Linear(30, 19)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = src != PAD
        lengths = mask.sum(dim=1)
        packed = pack_padded_sequence(
            self.src_embed(src), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        packed_outputs, hidden = self.encoder(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=src.size(1))
        hidden = torch.tanh(self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1)))
        embedded = self.tgt_embed(tgt)
        states, _ = self.decoder(embedded, hidden.unsqueeze(0))
        energy = torch.bmm(states, self.attn(outputs).permute(0, 2, 1))
        energy = energy.masked_fill(~mask.unsqueeze(1), -1e10)
        weighted = torch.bmm(F.softmax(energy, dim=2), outputs)
        out: Tensor = self.out(torch.cat((states, weighted, embedded), dim=2))
        return out


# ---- convolutional ------------------------------------------------------------------------------


class ConvolutionalSeq2Seq(nn.Module):
    """Gated convolutions padded on the left, attention to two tensors of the source."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tok_src, self.pos_src = nn.Embedding(19, 8), nn.Embedding(60, 8)
        self.tok_trg, self.pos_trg = nn.Embedding(24, 8), nn.Embedding(60, 8)
        self.src_hid, self.hid_src = nn.Linear(8, 12), nn.Linear(12, 8)
        self.emb2hid, self.hid2emb = nn.Linear(8, 12), nn.Linear(12, 8)
        self.attn_hid2emb, self.attn_emb2hid = nn.Linear(12, 8), nn.Linear(8, 12)
        self.enc_conv = nn.Conv1d(12, 24, kernel_size=3, padding=1)
        self.convs = nn.ModuleList(
            [weight_norm(nn.Conv1d(12, 24, kernel_size=3)) for _ in range(2)]
        )
        self.fc_out = nn.Linear(8, 24)
        self.register_buffer("scale", torch.sqrt(torch.FloatTensor([0.5])))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        pos = torch.arange(0, src.shape[1]).unsqueeze(0).repeat(src.shape[0], 1)
        embedded = self.tok_src(src) + self.pos_src(pos)
        conv_input = self.src_hid(embedded).permute(0, 2, 1)
        conved = F.glu(self.enc_conv(conv_input), dim=1)
        conved = (conved + conv_input) * self.scale
        conved = self.hid_src(conved.permute(0, 2, 1))
        return conved, (conved + embedded) * self.scale

    def attention(
        self, embedded: Tensor, conved: Tensor, enc_conved: Tensor, enc_combined: Tensor
    ) -> Tensor:
        conved_emb = self.attn_hid2emb(conved.permute(0, 2, 1))
        combined = (conved_emb + embedded) * self.scale
        energy = torch.matmul(combined, enc_conved.permute(0, 2, 1))
        weights = F.softmax(energy, dim=2)
        attended: Tensor = self.attn_emb2hid(torch.matmul(weights, enc_combined))
        return (conved + attended.permute(0, 2, 1)) * self.scale

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        enc_conved, enc_combined = self.encode(src)
        batch_size, trg_len = trg.shape
        pos = torch.arange(0, trg_len).unsqueeze(0).repeat(batch_size, 1)
        embedded = self.tok_trg(trg) + self.pos_trg(pos)
        conv_input = self.emb2hid(embedded).permute(0, 2, 1)
        for conv in self.convs:
            padding = torch.zeros(batch_size, conv_input.shape[1], 2).fill_(PAD)
            padded = torch.cat((padding, conv_input), dim=2)
            conved = F.glu(conv(padded), dim=1)
            conved = self.attention(embedded, conved, enc_conved, enc_combined)
            conved = (conved + conv_input) * self.scale
            conv_input = conved
        out: Tensor = self.fc_out(self.hid2emb(conved.permute(0, 2, 1)))
        return out


class Chomped(nn.Module):
    """Dilated convolutions padded on both sides whose end is cut off, and a shift by one token."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(18, 8), CrossAttention(8, 2)
        self.embed = nn.Embedding(19, 8)
        self.convs = nn.ModuleList(
            [nn.Conv1d(8, 8, 3, padding=2 * d, dilation=d, groups=g) for d, g in ((1, 8), (2, 1))]
        )
        self.mix = nn.Linear(16, 8)
        self.out = nn.Linear(8, 19)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        x = self.embed(tgt)
        before = F.pad(x, (0, 0, 1, -1))
        x = self.mix(torch.cat([x, before], dim=-1)).transpose(1, 2)
        x = x + F.silu(self.convs[0](x)[..., : tgt.size(1)])
        x = x + torch.tanh(self.convs[1](x)[:, :, :-4].contiguous())
        y = x.transpose(1, 2)
        out: Tensor = self.out(y + self.cross(y, memory, src != PAD))
        return out


# ---- means and sums over the prefix --------------------------------------------------------------


class AverageAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = SmallEncoder(21, 12)
        self.cross = nn.ModuleList([CrossAttention(12, 2) for _ in range(2)])
        self.embed = nn.Embedding(25, 12)
        self.ffn = nn.ModuleList(
            [nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12)) for _ in range(2)]
        )
        self.gating = nn.ModuleList([nn.Linear(24, 24) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(2)])
        self.out = nn.Linear(12, 25)

    def average(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.size(1) + 1, device=x.device).view(1, -1, 1)
        return x.cumsum(dim=1) / count

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        x = self.embed(tgt)
        for i in range(2):
            average = self.ffn[i](self.average(x))
            gates = torch.sigmoid(self.gating[i](torch.cat((x, average), -1)))
            input_gate, forget_gate = torch.chunk(gates, 2, dim=-1)
            x = self.norms[i](x + input_gate * x + forget_gate * average)
            x = x + self.cross[i](x, memory, src != PAD)
        out: Tensor = self.out(x)
        return out


class AverageByMatrix(AverageAttention):
    def average(self, x: Tensor) -> Tensor:
        inputs_len = x.size(1)
        triangle = torch.tril(torch.ones(inputs_len, inputs_len))
        weights = torch.ones(1, inputs_len) / torch.arange(1, inputs_len + 1)
        mask = triangle * weights.transpose(0, 1)
        return torch.matmul(mask.unsqueeze(0).expand(x.size(0), -1, -1), x)


class LinearAttention(nn.Module):
    """Sums of outer products in place of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(17, 8), CrossAttention(8, 2)
        self.embed = nn.Embedding(22, 8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 22)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src)
        x = self.embed(tgt)
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        kv = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        z = 1 / (torch.einsum("btd,btd->bt", q, k.cumsum(1)) + 1e-6)
        x = x + torch.einsum("btd,btde,bt->bte", q, kv, z) * math.sqrt(2)
        x = x + self.cross(x, memory, src != PAD)
        out: Tensor = self.out(x)
        return out


RUNNING_CASES = (
    Case(
        "gru",
        lambda: drawn(GRUWithoutAttention, 8, 2.0),
        (SOURCE,),
        state=("hidden, (1, B, H)",),
    ),
    Case(
        "lstm_with_attention",
        lambda: drawn(LSTMWithAttention, 3, 3.0),
        (SOURCE,),
        state=("hidden and cell, each (2, B, H)",),
    ),
    Case(
        "rnn",
        lambda: drawn(PlainRNN, 3, 3.0),
        (SOURCE_BATCH_SECOND,),
        TARGET_BATCH_SECOND,
        pads_source=True,
        state=("hidden, (2, B, H)",),
    ),
    Case(
        "attention_then_gru",
        lambda: drawn(AttentionThenGRU, 2, 0.7),
        (SOURCE,),
        pads_source=True,
        state=("keys and values", "hidden, (1, B, H)"),
    ),
    Case(
        "packed_gru",
        lambda: drawn(PackedGRU, 6),
        (SOURCE,),
        pads_source=True,
        state=("hidden, (1, B, H)",),
    ),
    Case(
        "convolutional",
        lambda: drawn(ConvolutionalSeq2Seq, 5),
        (SOURCE,),
        state=("the last two columns of the input of each convolution, or all of them",),
    ),
    Case(
        "chomped",
        lambda: drawn(Chomped, 2, 1.5),
        (SOURCE,),
        pads_source=True,
        state=("the last two and four columns of the convolutions' inputs; the last row of x",),
    ),
    Case(
        "average",
        lambda: drawn(AverageAttention, 1, 1.5),
        (SOURCE,),
        pads_source=True,
        state=("a sum in each layer, (B, 1, E); the number of tokens",),
    ),
    Case(
        "average_by_matrix",
        lambda: drawn(AverageByMatrix, 1, 1.5),
        (SOURCE,),
        pads_source=True,
        state=("the rows of x in each layer, (B, T, E)",),
    ),
    Case(
        "linear_attention",
        lambda: drawn(LinearAttention, 7),
        (SOURCE,),
        pads_source=True,
        state=("a sum of products, (B, E, E), and of keys, (B, E)",),
    ),
)
