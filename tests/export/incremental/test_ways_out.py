"""What a refusal says is to be done: done, it gives a bundle that is equal to the forward."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.export.incremental.own_case import BOS, EOS, PAD, TARGET, Case, drawn, greedy
from tests.export.incremental.refused_modules import (
    SOURCE,
    Base,
    BranchOnLargest,
    DropoutActive,
    FixedTable,
    FixedView,
    LengthByItem,
    LoopOverSteps,
    NotCausal,
    NumpyMask,
    PositionsFromAList,
)
from tests.support.combinations import few_of
from tfexport.errors import ExportError
from tfexport.export import Input, export
from tfexport.export.artifacts.results import ExportResult
from tfexport.runtime import Translator

LENGTH = 10
ROWS = [[5, 9, 12, 4], [7, 3], [11, 6, 8, 16, 10, 13]]
FACTS: dict[str, Any] = {
    "inputs": (SOURCE,), "target": TARGET, "pad_id": PAD, "bos_id": BOS, "eos_id": EOS,
    "max_length": LENGTH, "recognise": False, "pack": False, "verify": False,
}  # fmt: skip


def exported(model: nn.Module, folder: Path, **options: Any) -> ExportResult:
    return export(model, folder / "x.bundle", **{**FACTS, **options})


def refusal(model: nn.Module, folder: Path, **options: Any) -> str:
    with pytest.raises(ExportError) as caught:
        exported(model, folder, **options)
    return str(caught.value)


def check_equal(
    model: nn.Module, folder: Path, rows: Sequence[list[int]] = ROWS, **options: Any
) -> None:
    """Export a module, and compare its tokens with those of a loop over its forward."""
    made = exported(model, folder, **options)
    case = Case("", lambda: model, (SOURCE,), forward=options.get("forward"))
    with Translator(made.path, engine="onnxruntime") as translator:
        given = [{{**FACTS, **options}["inputs"][0].name: np.array(row)} for row in rows]
        results = translator.generate_from(given, min_length=LENGTH, return_end_token=True)
    for row, result in zip(rows, results, strict=True):
        wanted = greedy(case, model, [torch.tensor([row])], LENGTH, banned=[EOS])[0]
        assert list(result.hypotheses[0].tokens[: LENGTH - 1]) == wanted.tolist()[:-1]


class TwoConstants(Base):
    """Positions as lists of numbers, and a tensor of numpy's."""

    def positions(self, tgt: Tensor) -> Tensor:
        batch, length = tgt.shape
        out: Tensor = self.pos(torch.LongTensor([list(range(length))] * batch))
        return out

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        none = torch.tensor(np.zeros(src.size(1), np.float32))
        return super().hidden(src, tgt) + none.sum()


class Mended(Base):
    """What the messages of several modules say, done."""

    def positions(self, tgt: Tensor) -> Tensor:
        batch, length = tgt.shape
        out: Tensor = self.pos(torch.arange(length).expand(batch, length))
        return F.dropout(out, p=0.3, training=self.training)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        future = torch.triu(torch.ones((1, x.size(1), x.size(1))), diagonal=1) == 1
        attended: Tensor = (q @ k.transpose(1, 2)).masked_fill(future, -1e9).softmax(-1) @ v
        causal = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        again: Tensor = F.softmax(q @ k.transpose(1, 2) + causal, dim=-1) @ v
        return x + attended + again

    def hidden(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = super().hidden(src, tgt)
        x = torch.where(tgt[:, :1, None] == BOS, x * 2, x)
        mask = src.ne(PAD)[:, :, None]
        total: Tensor = (self.encoder(src) * mask).sum(1, keepdim=True)
        return x + total / mask.sum(1, keepdim=True)


TWO = (TwoConstants, ("torch.arange(length).expand(batch, length)", "torch.ones, torch.triu"))
REMEDIES = (
    TWO,
    (PositionsFromAList, ("torch.arange(length).expand(batch, length)",)),
    (NumpyMask, ("torch.ones, torch.triu",)),
    (DropoutActive, ("training=self.training",)),
    (NotCausal, ("nn.Transformer.generate_square_subsequent_mask(tgt.size(1))",)),
    (BranchOnLargest, ("torch.where",)),
    (LengthByItem, ("tensors of fixed size with a mask",)),
)


@pytest.mark.messages
@pytest.mark.parametrize(("build", "remedies"), few_of(REMEDIES, TWO))
def test_a_refusal_says_what_to_do(
    build: type[nn.Module], remedies: tuple[str, ...], tmp_path: Path
) -> None:
    message = refusal(drawn(build, 5), tmp_path)
    assert f"{Path(__file__).name}:" in message or "refused_modules.py" in message
    for remedy in remedies:
        assert remedy in message


@pytest.mark.usefixtures("only_steps")
def test_what_messages_say_leads_out(tmp_path: Path) -> None:
    check_equal(drawn(Mended, 5), tmp_path)


class ClassesSecond(Base):
    """The order of axes that ``nn.CrossEntropyLoss`` takes."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt).transpose(1, 2)


class AfterSource(nn.Module):
    """A language model: the target follows the source in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(18, 8), nn.Linear(8, 18)
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rnn(self.embed(torch.cat([src, tgt], dim=1)))[0])
        return logits


@pytest.mark.usefixtures("only_steps")
@pytest.mark.parametrize(
    "build", few_of([FixedTable, FixedView, ClassesSecond, AfterSource], FixedTable, AfterSource)
)
def test_a_forward_of_other_shapes_is_called_as_its_message_says(
    build: type[nn.Module], tmp_path: Path
) -> None:
    model = drawn(build, 5)
    message = refusal(model, tmp_path)
    call = re.search(r"forward=(lambda .*?)\. docs/", message)
    assert call is not None, message
    check_equal(model, tmp_path, forward=eval(call[1].replace("N", "12"), {"torch": torch}))


class OwnSteps(LoopOverSteps):
    """A loop over the target, and methods of one token each."""

    def encode(self, src: Tensor) -> Tensor:
        memory: Tensor = self.encoder(src)
        return memory

    def start(self, memory: Tensor) -> Tensor:
        return memory.mean(dim=1)

    def step(
        self, token: Tensor, position: Tensor, state: tuple[Tensor], memory: tuple[Tensor]
    ) -> tuple[Tensor, Tensor]:
        (hidden,), (encoded,) = state, memory
        weights = torch.bmm(encoded, hidden.unsqueeze(2)).softmax(dim=1)
        context = (weights * encoded).sum(dim=1)
        hidden = self.cell(torch.cat([self.embed(token[:, 0]), context], dim=1), hidden)
        return self.out(hidden), hidden


@pytest.mark.usefixtures("only_steps")
def test_methods_lead_out_of_a_loop_over_the_target(tmp_path: Path) -> None:
    model = drawn(OwnSteps, 5)
    assert "steps='methods'" in refusal(model, tmp_path)
    check_equal(model, tmp_path, steps="methods")


class ReadsPadding(nn.Module):
    """A decoder that starts from the mean of all states, also of those of padding."""

    def __init__(self, nested: bool = True, masks: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)
        self.embed, self.rnn = nn.Embedding(19, 8), nn.GRU(8, 8, batch_first=True)
        self.out, self.masks = nn.Linear(8, 18), masks

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = src == PAD
        memory = self.encoder(self.embed(src), src_key_padding_mask=padding)
        if self.masks:
            memory = memory.masked_fill(padding[:, :, None], 0)
        states, _ = self.rnn(self.embed(tgt), memory.mean(1)[None].contiguous())
        logits: Tensor = self.out(states)
        return logits


@pytest.mark.usefixtures("only_steps")
def test_states_of_padding_that_training_does_not_give_are_not_read(tmp_path: Path) -> None:
    nine = (Input("ids", "int64", ("batch", 9)),)
    rows = [[*row, *[PAD] * (9 - len(row))] for row in ROWS]
    message = refusal(drawn(ReadsPadding, 5), tmp_path, inputs=nine)
    assert "enable_nested_tensor=False" in message
    assert "memory.masked_fill(padding[:, :, None], 0)" in message
    check_equal(drawn(lambda: ReadsPadding(nested=False), 5), tmp_path, rows, inputs=nine)
    (tmp_path / "masked").mkdir()
    check_equal(drawn(lambda: ReadsPadding(masks=True), 5), tmp_path / "masked", rows, inputs=nine)
