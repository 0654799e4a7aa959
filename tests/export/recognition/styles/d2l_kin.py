"""In the style of d2l, with lengths in place of masks; and of a notebook, each head by itself."""

# mypy: no-warn-return-any

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD
from tests.export.recognition.styles.style import Style, each_layer, trained

# ---- d2l -----------------------------------------------------------------------------------------


def sequence_mask(x: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    maxlen = x.size(1)
    mask = (
        torch.arange((maxlen), dtype=torch.float32, device=x.device)[None, :] < valid_len[:, None]
    )
    x[~mask] = value
    return x


def masked_softmax(x: Tensor, valid_lens: Tensor | None) -> Tensor:
    if valid_lens is None:
        return F.softmax(x, dim=-1)
    shape = x.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    x = sequence_mask(x.reshape(-1, shape[-1]), valid_lens, value=-1e6)
    return F.softmax(x.reshape(shape), dim=-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class MultiHeadAttention(nn.Module):
    def __init__(
        self, num_hiddens: int, num_heads: int, dropout: float, bias: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def transpose_qkv(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], x.shape[1], self.num_heads, -1)
        x = x.permute(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def transpose_output(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, self.num_heads, x.shape[1], x.shape[2])
        x = x.permute(0, 2, 1, 3)
        return x.reshape(x.shape[0], x.shape[1], -1)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None
    ) -> Tensor:
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)
        output = self.attention(queries, keys, values, valid_lens)
        return self.W_o(self.transpose_output(output))


class PositionWiseFFN(nn.Module):
    def __init__(self, ffn_num_hiddens: int, ffn_num_outputs: int) -> None:
        super().__init__()
        self.dense1 = nn.LazyLinear(ffn_num_hiddens)
        self.relu = nn.ReLU()
        self.dense2 = nn.LazyLinear(ffn_num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense2(self.relu(self.dense1(x)))


class AddNorm(nn.Module):
    def __init__(self, norm_shape: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.ln = nn.LayerNorm(norm_shape)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.ln(self.dropout(y) + x)


class PositionalEncoding(nn.Module):
    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 92) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.P = torch.zeros((1, max_len, num_hiddens))
        x = torch.arange(max_len, dtype=torch.float32).reshape(-1, 1) / torch.pow(
            10000, torch.arange(0, num_hiddens, 2, dtype=torch.float32) / num_hiddens
        )
        self.P[:, :, 0::2] = torch.sin(x)
        self.P[:, :, 1::2] = torch.cos(x)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.P[:, : x.shape[1], :].to(x.device)
        return self.dropout(x)


class TransformerEncoderBlock(nn.Module):
    def __init__(self, num_hiddens: int, ffn_num_hiddens: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(num_hiddens, num_heads, 0.1)
        self.addnorm1 = AddNorm(num_hiddens, 0.1)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens)
        self.addnorm2 = AddNorm(num_hiddens, 0.1)

    def forward(self, x: Tensor, valid_lens: Tensor | None) -> Tensor:
        y = self.addnorm1(x, self.attention(x, x, x, valid_lens))
        return self.addnorm2(y, self.ffn(y))


class TransformerDecoderBlock(nn.Module):
    def __init__(self, num_hiddens: int, ffn_num_hiddens: int, num_heads: int) -> None:
        super().__init__()
        self.attention1 = MultiHeadAttention(num_hiddens, num_heads, 0.1)
        self.addnorm1 = AddNorm(num_hiddens, 0.1)
        self.attention2 = MultiHeadAttention(num_hiddens, num_heads, 0.1)
        self.addnorm2 = AddNorm(num_hiddens, 0.1)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens)
        self.addnorm3 = AddNorm(num_hiddens, 0.1)

    def forward(self, x: Tensor, enc_outputs: Tensor, enc_valid_lens: Tensor | None) -> Tensor:
        batch_size, num_steps, _ = x.shape
        dec_valid_lens = torch.arange(1, num_steps + 1, device=x.device).repeat(batch_size, 1)
        y = self.addnorm1(x, self.attention1(x, x, x, dec_valid_lens))
        z = self.addnorm2(y, self.attention2(y, enc_outputs, enc_outputs, enc_valid_lens))
        return self.addnorm3(z, self.ffn(z))


class Coder(nn.Module):
    def __init__(self, vocab_size: int, block: type[nn.Module]) -> None:
        super().__init__()
        self.num_hiddens = 32
        self.embedding = nn.Embedding(vocab_size, 32)
        self.pos_encoding = PositionalEncoding(32, 0.1)
        self.blks = nn.Sequential()
        for i in range(2):
            self.blks.add_module("block" + str(i), block(32, 64 + 14, 4))

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        x = self.pos_encoding(self.embedding(x) * math.sqrt(self.num_hiddens))
        for blk in self.blks:
            x = blk(x, *rest)
        return x


class LazyTransformer(nn.Module):
    """The sizes of its layers are those of the first batch, which its making runs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Coder(51, TransformerEncoderBlock)
        self.decoder = Coder(47, TransformerDecoderBlock)
        self.dense = nn.LazyLinear(47)
        self(torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64))

    def forward(self, enc_x: Tensor, dec_x: Tensor) -> Tensor:
        enc_valid_lens = (enc_x != PAD).type(torch.int32).sum(1)
        enc_outputs = self.encoder(enc_x, enc_valid_lens)
        return self.dense(self.decoder(dec_x, enc_outputs, enc_valid_lens))


# ---- each head a module --------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def rms(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * self.rms(x)).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim_emb: int, dim_out: int) -> None:
        super().__init__()
        self.dim_out = dim_out
        self.Q_net = nn.Linear(dim_emb, dim_out, bias=False)
        self.K_net = nn.Linear(dim_emb, dim_out, bias=False)
        self.V_net = nn.Linear(dim_emb, dim_out, bias=False)

    def forward(self, x_q: Tensor, x_k: Tensor, x_v: Tensor, mask_mat: Tensor) -> Tensor:
        q, k, v = self.Q_net(x_q), self.K_net(x_k), self.V_net(x_v)
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.dim_out)
        s = torch.masked_fill(s, mask_mat, float("-inf"))
        return torch.matmul(F.softmax(s, dim=-1), v).type_as(x_q)


class HeadList(nn.Module):
    def __init__(self, dim_emb: int, dim_head: int, head_num: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList(
            [Attention(dim_emb, dim_head) for _ in range(head_num)]
        )
        self.W_net = nn.Linear(dim_head * head_num, dim_emb, bias=False)

    def forward(self, x_q: Tensor, x_k: Tensor, x_v: Tensor, mask_mat: Tensor) -> Tensor:
        heads = [attention(x_q, x_k, x_v, mask_mat) for attention in self.attention_blocks]
        return self.W_net(torch.concat(heads, dim=-1))


class NotebookLayer(nn.Module):
    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.attention, self.rms_norm1 = HeadList(32, 8, 3), RMSNorm(32)
        if decoder:
            self.cross_attention, self.rms_norm2 = HeadList(32, 8, 3), RMSNorm(32)
        self.net = nn.Sequential(
            nn.Linear(32, 70, bias=False), nn.SiLU(), nn.Linear(70, 32, bias=False)
        )
        self.rms_norm3 = RMSNorm(32)

    def forward(
        self, x: Tensor, mask: Tensor, enc: Tensor | None = None, enc_mask: Tensor | None = None
    ) -> Tensor:
        x = self.rms_norm1(x + self.attention(x, x, x, mask))
        if enc is not None:
            x = self.rms_norm2(x + self.cross_attention(x, enc, enc, enc_mask))
        return self.rms_norm3(x + self.net(x))


class NotebookTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_embedding, self.output_embedding = nn.Embedding(54, 32), nn.Embedding(49, 32)
        self.encoder_blocks = nn.ModuleList([NotebookLayer(False) for _ in range(2)])
        self.decoder_blocks = nn.ModuleList([NotebookLayer(True) for _ in range(3)])
        self.linear = nn.Linear(32, 49)

    def positional_encoding(self, ids: Tensor) -> Tensor:
        pos = torch.arange(ids.size(1), dtype=torch.float32).unsqueeze(1)
        angles = pos / 10000.0 ** (torch.arange(0, 32, 2) / 32)
        return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(1)

    def forward(self, input_seq: Tensor, output_seq: Tensor) -> Tensor:
        hidden_keys = (input_seq == PAD).unsqueeze(1)
        x = self.input_embedding(input_seq) + self.positional_encoding(input_seq)
        for block in self.encoder_blocks:
            x = block(x, hidden_keys)
        steps = torch.arange(output_seq.size(1))
        later = steps.unsqueeze(0) > steps.unsqueeze(1)
        y = self.output_embedding(output_seq) + self.positional_encoding(output_seq)
        for block in self.decoder_blocks:
            y = block(y, later, x, hidden_keys)
        return self.linear(y)


D2L_KIN = (
    Style(
        "d2l",
        lambda: trained(LazyTransformer, 71, 0.4),
        "lengths in place of masks, set to -1e6 by an index; heads in the batch; lazy layers; a "
        "table that is no buffer",
        tables=("encoder.pos_encoding.P", "decoder.pos_encoding.P"),
        changes={
            **each_layer("eps in encoder", "encoder.blks.block{}.addnorm1.ln.eps", 1e-3),
            **each_layer("eps in decoder", "decoder.blks.block{}.addnorm2.ln.eps", 1e-3),
            **each_layer(
                "half the heads in encoder", "encoder.blks.block{}.attention.num_heads", 2
            ),
            **each_layer(
                "half the heads in decoder", "decoder.blks.block{}.attention1.num_heads", 2
            ),
            **each_layer("gelu in encoder", "encoder.blks.block{}.ffn.relu", nn.GELU()),
            **each_layer("no norm in decoder", "decoder.blks.block{}.addnorm3.ln", nn.Identity()),
            "scale of the source": {"encoder.num_hiddens": 1},
            "scale of the target": {"decoder.num_hiddens": 30},
        },
    ),
    Style(
        "notebook",
        lambda: trained(NotebookTransformer, 72, 1.0),
        "each head is a module, three of 8 values; RMS norms after; silu without gate; positions "
        "computed in each call; three decoder layers",
        changes={
            **each_layer("eps in encoder", "encoder_blocks.{}.rms_norm1.eps", 1e-3),
            **each_layer("eps in decoder", "decoder_blocks.{}.rms_norm2.eps", 1e-3, 3),
            **each_layer(
                "scale of one head",
                "decoder_blocks.{}.cross_attention.attention_blocks.1.dim_out",
                4,
                3,
            ),
            **each_layer("gelu in decoder", "decoder_blocks.{}.net.1", nn.GELU(), 3),
        },
    ),
)
