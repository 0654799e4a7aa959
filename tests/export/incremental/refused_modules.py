"""Modules that have no cache, or not everywhere: refused, or in part computed again, and said so.

A fault that torch.export itself meets, or that makes what a step gives undefined, is refused. A
tensor whose earlier rows change with later tokens is computed again from what does not change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, TARGET, Case, drawn
from tests.export.incremental.position_modules import CrossAttention, SmallEncoder, rotate_half
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))


@dataclass(frozen=True)
class RefusedCase(Case):
    """A module whose message names the operator and the user's line.

    Attributes:
        kind: whether it is refused, or exported with a part that is computed again.
        operator: in the message, what is at fault.
        line: in the module's source, the line that the message names.
    """

    kind: Literal["refused", "recomputed"] = "refused"
    operator: str = ""
    line: str = ""


def refused(
    build: Callable[[], nn.Module], name: str, operator: str, line: str, **more: Any
) -> RefusedCase:
    return RefusedCase(
        name, lambda: drawn(build, 81), (SOURCE,), TARGET, operator=operator, line=line, **more
    )


class Base(nn.Module):
    """Causal attention to the target, attention to the source."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = SmallEncoder(19, 8), CrossAttention(8, 2)
        self.embed, self.pos = nn.Embedding(18, 8), nn.Embedding(64, 8)
        self.qkv, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)
        self.out = nn.Linear(8, 18)

    def positions(self, tgt: Tensor) -> Tensor:
        out: Tensor = self.pos(torch.arange(tgt.size(1)))
        return out

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2)).masked_fill(future, -1e9)
        attended: Tensor = scores.softmax(-1) @ v
        return x + attended

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = self.attend(self.embed(tgt) + self.positions(tgt))
        out: Tensor = x + self.cross(x, self.encoder(src), src != PAD)
        return out

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(src, tgt))
        return out


class NotCausal(Base):
    """The mask was forgotten."""

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        attended: Tensor = F.softmax(q @ k.transpose(1, 2), dim=-1) @ v
        return x + attended


class RowsMixed(Base):
    """Every row depends on the others of its batch."""

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        return x - x.mean(dim=0, keepdim=True)


class DropoutActive(Base):
    """F.dropout without training=self.training drops in eval mode as well."""

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        return F.dropout(super().hidden(src, tgt), p=0.3)


class DropoutMadeInForward(Base):
    """A layer that forward itself makes is in training mode."""

    def positions(self, tgt: Tensor) -> Tensor:
        dropout = nn.Dropout(0.1)
        out: Tensor = dropout(super().positions(tgt))
        return out


class Probabilities(Base):
    """Neither logits nor their logarithms: sums of them are no scores of sequences."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return F.softmax(super().forward(src, tgt), dim=-1)


class RandomNumbers(Base):
    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        noise = torch.randn_like(x)
        return x + 0.1 * noise


class LoopUntilSmall(Base):
    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        while x.abs().max() > 3:
            x = x / 2
        return x


class BranchOnIds(Base):
    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        if (src == 5).any().item():
            x = torch.tanh(x)
        return x


class LoopOverSteps(nn.Module):
    """Attention before each step of a cell, whose context is part of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.embed = SmallEncoder(19, 8), nn.Embedding(18, 8)
        self.cell = nn.GRUCell(16, 8)
        self.out = nn.Linear(8, 18)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, embedded = self.encoder(src), self.embed(tgt)
        hidden, outputs = memory.mean(dim=1), []
        for t in range(tgt.size(1)):
            weights = torch.bmm(memory, hidden.unsqueeze(2)).softmax(dim=1)
            context = (weights * memory).sum(dim=1)
            hidden = self.cell(torch.cat([embedded[:, t], context], dim=1), hidden)
            outputs.append(self.out(hidden))
        return torch.stack(outputs, dim=1)


class PositionsInLoops(Base):
    """Each number of a table of positions is computed and written by itself."""

    def positions(self, tgt: Tensor) -> Tensor:
        seq_len, dim = tgt.size(1), 8
        table = torch.zeros([seq_len, dim])
        for pos in range(seq_len):
            for i in range(dim):
                table[pos][i] = torch.sin(torch.tensor(pos / (100 ** (i / dim))))
        return table


class FixedTable(Base):
    """A table of positions that is added whole: right for twelve tokens only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 12, 8))

    def attend(self, x: Tensor) -> Tensor:
        x = x + self.table
        return super().attend(x)


class FixedView(Base):
    """The length of the training data, written into a view."""

    def attend(self, x: Tensor) -> Tensor:
        heads = self.norm(x).view(-1, 12, 2, 4).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return x + out.transpose(1, 2).reshape(-1, 12, 8)


class WrittenRowByRow(LoopOverSteps):
    """The logits are written into a tensor of zeros."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, embedded = self.encoder(src), self.embed(tgt)
        hidden, context = memory.mean(dim=1), memory.mean(dim=1)
        outputs = torch.zeros(tgt.size(0), tgt.size(1), 18)
        for i in range(tgt.size(1)):
            hidden = self.cell(torch.cat([embedded[:, i], context], dim=1), hidden)
            outputs[:, i] = self.out(hidden)
        return outputs


class LengthByItem(Base):
    """The longest row of the batch is cut out, as a number of Python."""

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        longest = int(src.ne(PAD).sum(dim=1).max().item())
        x = super().hidden(src, tgt)
        cut: Tensor = self.encoder(src)[:, :longest]
        return x + cut.mean(dim=1, keepdim=True)


class NumpyMask(Base):
    """The mask of the Annotated Transformer's first version."""

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        shape = (1, x.size(1), x.size(1))
        future = torch.from_numpy(np.triu(np.ones(shape), k=1)) == 1
        attended: Tensor = (q @ k.transpose(1, 2)).masked_fill(future, -1e9).softmax(-1) @ v
        return x + attended


class BranchOnLargest(Base):
    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        if tgt.max() > 10:
            x = x * 2
        return x


class PositionsFromAList(Base):
    def positions(self, tgt: Tensor) -> Tensor:
        out: Tensor = self.pos(torch.tensor([list(range(tgt.size(1)))]))
        return out


class NormOverTime(Base):
    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        centred = x - x.mean(dim=1, keepdim=True)
        return centred / (centred.pow(2).mean(dim=1, keepdim=True) + 0.1).sqrt()


class NormBeforeAttention(Base):
    """The largest of the whole length divides what keys and values are made of."""

    def attend(self, x: Tensor) -> Tensor:
        x = x / x.abs().amax(dim=1, keepdim=True)
        return super().attend(x)


class LookAhead(Base):
    """A convolution that is padded on both sides reads the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, kernel_size=3, padding=1)

    def attend(self, x: Tensor) -> Tensor:
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return super().attend(x)


class CountedFromTheEnd(Base):
    """Rotary positions that count backwards: causal, but every key turns with every token."""

    def attend(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(1)).flip(0)
        angles = positions[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001]).repeat(2)
        cos, sin = angles.cos(), angles.sin()
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)


class PositionsFromPadding(Base):
    """Positions count the ids that are not PAD: a sum over the prefix, of ids."""

    def positions(self, tgt: Tensor) -> Tensor:
        mask = tgt.ne(PAD).int()
        positions = torch.cumsum(mask, dim=1).type_as(mask) * mask
        out: Tensor = self.pos(positions.long())
        return out


class PositionsFromLength(Base):
    """Positions are parts of the whole length, so that all of them move with every token."""

    def positions(self, tgt: Tensor) -> Tensor:
        steps = torch.arange(tgt.size(1)) / tgt.size(1)
        return torch.sin(steps[:, None] * torch.arange(1, 9))


REFUSED: tuple[RefusedCase, ...] = (
    refused(NotCausal, "not_causal", "softmax", "F.softmax(q @ k.transpose(1, 2), dim=-1)"),
    refused(RowsMixed, "rows_mixed", "mean", "x.mean(dim=0, keepdim=True)"),
    refused(DropoutActive, "dropout_active", "dropout", "F.dropout(super().hidden(src, tgt), p=0"),
    refused(
        DropoutMadeInForward,
        "dropout_made_in_forward",
        "dropout",
        "out: Tensor = dropout(super().positions(tgt))",
    ),
    refused(Probabilities, "probabilities", "softmax", "F.softmax(super().forward(src, tgt), dim"),
    refused(RandomNumbers, "random_numbers", "randn_like", "noise = torch.randn_like(x)"),
    refused(LoopUntilSmall, "loop_until_small", "max", "while x.abs().max() > 3"),
    refused(BranchOnIds, "branch_on_ids", "item", "if (src == 5).any().item()"),
    refused(LoopOverSteps, "loop_over_steps", "range", "for t in range(tgt.size(1))"),
    refused(PositionsInLoops, "positions_in_loops", "range", "for pos in range(seq_len)"),
    refused(WrittenRowByRow, "written_row_by_row", "range", "for i in range(tgt.size(1))"),
    refused(LengthByItem, "length_by_item", "item", "longest = int(src.ne(PAD).sum(dim=1).max()"),
    refused(NumpyMask, "numpy_mask", "triu", "torch.from_numpy(np.triu(np.ones(shape), k=1))"),
    refused(BranchOnLargest, "branch_on_largest", "max", "if tgt.max() > 10"),
    refused(PositionsFromAList, "positions_from_a_list", "range", "list(range(tgt.size(1)))"),
    refused(FixedTable, "fixed_table", "add", "x = x + self.table"),
    refused(FixedView, "fixed_view", "view", "self.norm(x).view(-1, 12, 2, 4)"),
    refused(
        NormOverTime,
        "norm_over_time",
        "mean",
        "centred = x - x.mean(dim=1, keepdim=True)",
        kind="recomputed",
    ),
    refused(
        NormBeforeAttention,
        "norm_before_attention",
        "amax",
        "x = x / x.abs().amax(dim=1, keepdim=True)",
        kind="recomputed",
    ),
    refused(
        LookAhead,
        "look_ahead",
        "conv1d",
        "x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)",
        kind="recomputed",
    ),
    refused(
        CountedFromTheEnd,
        "counted_from_the_end",
        "flip",
        "torch.arange(x.size(1)).flip(0)",
        kind="recomputed",
    ),
    refused(
        PositionsFromPadding,
        "positions_from_padding",
        "cumsum",
        "torch.cumsum(mask, dim=1)",
        kind="recomputed",
    ),
    refused(
        PositionsFromLength,
        "positions_from_length",
        "div",
        "torch.arange(tgt.size(1)) / tgt.size(1)",
        kind="recomputed",
    ),
)
