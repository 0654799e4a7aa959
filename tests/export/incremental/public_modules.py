"""Shapes of public code that were refused, or exported wrongly, in their smallest form.

Axes: B batch, S frames or words of the source, T target, D size of a row.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import PAD, TARGET, Case, drawn
from tfexport.export import Input

WORDS, SIZE, LONGEST = 20, 16, 20
FRAMES = (Input("frames", "float32", ("batch", "num_frames", 6)),)
IMAGE = (Input("image", "float32", ("batch", 1, 16, "width")),)
PICTURE = (Input("picture", "float32", ("batch", 1, "height", "width")),)
IDS = (Input("input_ids", "int64", ("batch", "source_length")),)


class Captioner(nn.Module):
    """Frames to tokens: one layer of torch's decoder, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.words = nn.Linear(6, SIZE), nn.Embedding(WORDS, SIZE)
        self.ids = nn.Embedding(WORDS, SIZE)
        self.table = nn.Parameter(torch.randn(1, LONGEST, SIZE))
        self.layer = nn.TransformerDecoderLayer(SIZE, 2, 32, batch_first=True)
        self.out = nn.Linear(SIZE, WORDS)

    def memory(self, source: Tensor) -> Tensor:
        rows: Tensor = self.see(source) if source.is_floating_point() else self.ids(source)
        return rows

    def causal(self, length: int) -> Tensor:
        return torch.triu(torch.ones(length, length, dtype=torch.bool), 1)

    def states(self, memory: Tensor, tgt: Tensor, hidden: Tensor | None = None) -> Tensor:
        y = self.words(tgt) + self.table[:, : tgt.size(1)]
        mask = self.causal(tgt.size(1))
        states: Tensor = self.layer(y, memory, tgt_mask=mask, memory_key_padding_mask=hidden)
        return states

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        logits: Tensor = self.out(self.states(self.memory(source), tgt))
        return logits


class HeadInForward(Captioner):
    """Helpers have the names of docs/modules.md, and the last layer is in ``forward``."""

    def encode(self, source: Tensor) -> Tensor:
        return self.memory(source)

    def decode(self, tgt: Tensor, memory: Tensor) -> Tensor:
        return self.states(memory, tgt)

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        logits: Tensor = self.out(self.decode(tgt, self.encode(source)))
        return logits


class HelpersRaise(Captioner):
    """Methods that a training never calls."""

    def encode(self, source: Tensor) -> Tensor:
        raise NotImplementedError("not in this release")

    def decode(self, tgt: Tensor, memory: Tensor) -> Tensor:
        raise NotImplementedError("not in this release")

    def start(self, memory: Tensor) -> Tensor:
        raise AssertionError("of a trainer")

    def step(self, *batch: Any) -> Tensor:
        raise AssertionError("of a trainer")


class Padded(Captioner):
    """The target is padded to the length of a position table."""

    def pad(self, tgt: Tensor, more: int) -> Tensor:
        return F.pad(tgt, (0, more))

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        length = tgt.size(1)
        logits = super().forward(source, self.pad(tgt, LONGEST - length))
        return logits[:, :length]


class PaddedByCat(Padded):
    """The same, by ``cat``."""

    def pad(self, tgt: Tensor, more: int) -> Tensor:
        return torch.cat([tgt, tgt.new_zeros(tgt.size(0), more)], 1)


class WrittenIntoRows(Captioner):
    """Rows of the target are written into a tensor of one length."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        length = tgt.size(1)
        rows = torch.zeros(tgt.size(0), LONGEST, SIZE)
        rows[:, :length] = self.words(tgt) + self.table[:, :length]
        states = self.layer(rows, self.memory(source), tgt_mask=self.causal(LONGEST))
        logits: Tensor = self.out(states[:, :length])
        return logits


class LengthsOfSizes(Captioner):
    """Lengths are tensors that are made of sizes, as of complete rows."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        lengths = torch.full((tgt.size(0),), tgt.size(1))
        kept = torch.arange(lengths.max().item())[None] < lengths[:, None]
        y = self.words(tgt) + self.table[:, : tgt.size(1)]
        states = self.layer(
            y, self.memory(source), tgt_mask=self.causal(tgt.size(1)), tgt_key_padding_mask=~kept
        )
        logits: Tensor = self.out(states)
        return logits


class CheckedLengths(Captioner):
    """Lengths of the source are counted, and checked by an ``assert``."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        lengths = (source != PAD).sum(1)
        assert lengths.max().item() <= source.size(1)
        hidden = torch.arange(source.size(1))[None] >= lengths[:, None]
        logits: Tensor = self.out(self.states(self.memory(source), tgt, hidden))
        return logits


class TriangleOut(Captioner):
    """ESPnet's mask: the triangle is written into its own input."""

    def causal(self, length: int) -> Tensor:
        kept = torch.ones(length, length, dtype=torch.bool)
        return ~torch.tril(kept, out=kept)


class ComplexRotary(Captioner):
    """Rotary positions by complex numbers, in the decoder alone."""

    def states(self, memory: Tensor, tgt: Tensor, hidden: Tensor | None = None) -> Tensor:
        y = self.words(tgt)
        angles = torch.arange(tgt.size(1))[:, None] / 10.0 ** torch.arange(SIZE // 2)
        unit = torch.polar(torch.ones_like(angles), angles)
        turned = torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2)) * unit
        y = torch.view_as_real(turned).flatten(2)
        states: Tensor = self.layer(y, memory, tgt_mask=self.causal(tgt.size(1)))
        return states


class TableKept(Captioner):
    """A position table is kept between calls, and made anew for a longer row."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def states(self, memory: Tensor, tgt: Tensor, hidden: Tensor | None = None) -> Tensor:
        length = tgt.size(1)
        if self.kept is None or self.kept.size(0) < length:
            self.kept = (torch.arange(length)[:, None] / torch.arange(1, SIZE + 1)).sin()
        y = self.words(tgt) + self.kept[:length]
        states: Tensor = self.layer(y, memory, tgt_mask=self.causal(length))
        return states


class NormInForward(Captioner):
    """A layer without weights of its own is made, and moved to a device, in ``forward``."""

    def states(self, memory: Tensor, tgt: Tensor, hidden: Tensor | None = None) -> Tensor:
        states = super().states(memory, tgt, hidden)
        norm = nn.LayerNorm(SIZE).to(states.device)
        out: Tensor = norm(states)
        return out


class Packed(Captioner):
    """A packed LSTM, unpacked to the length of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(SIZE, SIZE // 2, batch_first=True, bidirectional=True)

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return self.of_lengths(source, (source != PAD).sum(1), tgt)

    def of_lengths(self, source: Tensor, lengths: Tensor, tgt: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.ids(source), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        memory, _ = nn.utils.rnn.pad_packed_sequence(
            self.rnn(packed)[0], batch_first=True, total_length=source.size(1)
        )
        hidden = torch.arange(source.size(1)) >= lengths[:, None]
        logits: Tensor = self.out(self.states(memory, tgt, hidden))
        return logits


class PackedByLengths(Packed):
    """The lengths are an input, and none may be 0."""

    def forward(  # type: ignore[override]
        self, source: Tensor, lengths: Tensor, tgt: Tensor
    ) -> Tensor:
        return self.of_lengths(source, lengths, tgt)


class InDict(Captioner):
    """The logits are a value of a dict."""

    def forward(self, source: Tensor, tgt: Tensor) -> Any:
        return {"loss": None, "logits": super().forward(source, tgt)}


class Strided(Captioner):
    """A picture through layers that make its sizes smaller, flattened to rows."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(1, SIZE, 3, padding=1), *layers)
        self.places = nn.Buffer(torch.randn(1, 400, SIZE))

    def memory(self, source: Tensor) -> Tensor:
        rows: Tensor = self.seen(source).flatten(2).transpose(1, 2)
        return rows + self.places[:, : rows.size(1)]


def pooled() -> nn.Module:
    return Strided(nn.MaxPool2d(2, 2), nn.MaxPool2d(2, 2))


def convolved() -> nn.Module:
    halved = nn.Conv2d(SIZE, SIZE, 3, stride=2, padding=1)
    return Strided(halved, nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 2))


class Patches(Captioner):
    """Patches of four by four, of a picture whose sizes are padded to multiples of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, SIZE, 4, stride=4)

    def memory(self, source: Tensor) -> Tensor:
        height, width = source.shape[2:]
        padded = F.pad(source, (0, -width % 4, 0, -height % 4))
        rows: Tensor = self.patch(padded).flatten(2).transpose(1, 2)
        return rows


def case(build: Callable[[], nn.Module], inputs: tuple[Input, ...] = FRAMES) -> Case:
    return Case(build.__name__, lambda: drawn(build, 71), inputs, TARGET)


PUBLIC = (
    case(HeadInForward),
    case(HelpersRaise),
    case(Padded),
    case(PaddedByCat),
    case(WrittenIntoRows),
    case(LengthsOfSizes),
    case(CheckedLengths, IDS),
    case(TriangleOut),
    case(ComplexRotary),
    case(TableKept),
    case(NormInForward),
    case(Packed, IDS),
    case(PackedByLengths, (*IDS, Input("lengths", "int64", ("batch",)))),
    case(InDict),
    case(pooled, IMAGE),
    case(convolved, IMAGE),
    case(pooled, PICTURE),
    case(Patches, PICTURE),
)
