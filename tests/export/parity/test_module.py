"""Comparison with a user's module: what it is run with, scores of prefixes, and its noise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.combinations import few_of
from tfexport.bundle import SpecialIds
from tfexport.errors import ParityError
from tfexport.export import Input, export
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.parity.eager_run import EagerRun
from tfexport.export.parity.module import EagerUserModule

WORDS = 11
ROWS: Any = [{"source": np.array(ids)} for ids in ([3, 4, 5], [6, 7, 8])]


class Causal(nn.Module):
    """Means of prefixes; the first token alone takes another branch."""

    def __init__(self, gap: float = 0.25) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)
        self.gap, self.calls = gap, 0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        x = self.table(target) + self.table(source).mean(1, keepdim=True)
        counts = torch.arange(1, target.size(1) + 1)[:, None]
        logits: Tensor = self.out(x.cumsum(1) / counts)
        return logits + self.gap if target.size(1) == 1 else logits


def eager(model: Causal) -> EagerUserModule:
    inputs = (Input("source", "int64", ("batch", "length")),)
    own = OwnForward(model.eval(), inputs)
    probe: Any = SimpleNamespace(
        module=SimpleNamespace(
            own=own, encode=lambda tensors: (tensors[0].float(),), start=lambda memory: ()
        ),
        inputs=inputs,
        io=SimpleNamespace(many_tokens=False),
        causal=True,
    )
    return EagerUserModule(probe, SpecialIds(0, 1, 2), 8)


@torch.no_grad()
def test_prefixes_are_scored_as_each_by_itself() -> None:
    model = Causal()
    judge = eager(model)
    # Two rows of two beams. Beams go on, part, and end.
    steps: list[Any] = [
        [[1], [1], [1], [1]],
        [[1, 4], [1, 5], [1, 6], [1, 6]],
        [[1, 4, 7], [1, 4, 8], [1, 6, 3], [1, 6, 9]],
    ]
    prefixes = [torch.tensor(step) for step in steps]
    found = list(judge.score(EagerRun(judge, ROWS, (2, 3)), 2, prefixes))
    calls = model.calls
    for made, step in zip(found, prefixes, strict=True):
        sources = [torch.from_numpy(ROWS[k // 2]["source"])[None] for k in range(4)]
        wanted = [
            model(source, prefix[None])[0, -1] for source, prefix in zip(sources, step, strict=True)
        ]
        torch.testing.assert_close(made, torch.stack(wanted))
    # Of the first row the first token, [1, 5] and two of three tokens; of the second two less one.
    assert calls == 4 + 3


@torch.no_grad()
@pytest.mark.parametrize("gap", [0.0, 0.25])
def test_another_branch_for_the_first_token_is_no_noise(gap: float) -> None:
    judge = eager(Causal(gap))
    tokens = torch.tensor([[1, 4, 7, 9], [1, 6, 3, 5]])
    logits = torch.stack(
        [judge._own_logits(row, of_row) for row, of_row in zip(ROWS, tokens, strict=True)]
    )
    memory = [(torch.from_numpy(row["source"])[None].float(),) for row in ROWS]
    run = EagerRun(judge, ROWS, (2, 3), tokens=tokens[:, 1:].numpy(), logits=logits[:, :3].numpy())
    noise = judge._noise(run, memory, logits[:, :3])
    assert 0 < noise.logits < 1e-5
    assert 0 < noise.log_probs < 1e-5


class Truncated(nn.Module):
    """Its graph reads the first tokens of a source alone, unlike the module."""

    def __init__(self, length: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.out, self.length = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS), length

    def encode(self, input_ids: Tensor) -> Tensor:
        x: Tensor = self.table(input_ids)
        places = torch.arange(input_ids.size(1))[:, None]
        return x * (places < self.length) if torch.compiler.is_exporting() else x

    def decode(self, target: Tensor, memory: Tensor) -> Tensor:
        x = self.table(target)
        weights = (x @ memory.transpose(1, 2)).softmax(-1)
        logits: Tensor = self.out(x + weights @ memory)
        return logits


@pytest.mark.onnxruntime
@pytest.mark.parametrize("length", few_of([6, 60], 60))
def test_a_quick_comparison_has_sources_of_several_lengths(tmp_path: Path, length: int) -> None:
    inputs = [Input("input_ids", "int64", ("batch", "length"))]
    with pytest.raises(ParityError, match="memory: differs"):
        export(
            Truncated(length), tmp_path / "out.bundle", inputs=inputs, pad_id=0, bos_id=1,
            eos_id=2, max_length=9, verify="quick",
        )  # fmt: skip
