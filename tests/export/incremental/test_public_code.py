"""Shapes of public code: what their own loop gives, the bundle gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import BOS, EOS, PAD, Case, call
from tests.export.incremental.public_modules import IDS, PUBLIC, WORDS, Captioner, case
from tfexport.export import export
from tfexport.runtime import Translator

LENGTH = 10
SIZES = ({"width": 23, "height": 14}, {"width": 40, "height": 33})  # others than are exported


def rows_of(test: Case) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    rows = []
    for sizes in SIZES:
        row = {}
        for each in test.inputs:
            shape = [
                a if isinstance(a, int) else sizes.get(a, sizes["height"]) for a in each.axes[1:]
            ]
            ids = random.integers(3, WORDS, shape) if shape else np.array(sizes["height"] - 3)
            row[each.name] = (
                ids if each.dtype == "int64" else random.normal(size=shape).astype("f4")
            )
        rows.append(row)
    return rows


@torch.no_grad()
def loop(test: Case, model: nn.Module, row: dict[str, Any]) -> tuple[list[int], float]:
    """Greedy tokens by whole prefixes, with the end token, and the sum of log-probabilities."""
    inputs = [torch.from_numpy(array)[None] for array in row.values()]
    tokens, total = list[int](), 0.0
    while len(tokens) < LENGTH and tokens[-1:] != [EOS]:
        result = call(test, model, inputs, torch.tensor([[BOS, *tokens]]))
        logits: Tensor = result["logits"] if isinstance(result, dict) else result
        best = logits[0, -1].log_softmax(-1).max(-1)
        tokens.append(int(best.indices))
        total += float(best.values)
    return tokens, total


@pytest.mark.parametrize("test", PUBLIC, ids=lambda test: f"{test.name}-{test.inputs[0].name}")
@pytest.mark.usefixtures("only_steps")
def test_a_bundle_gives_what_the_forward_gives(test: Case, tmp_path: Path) -> None:
    model = test.make()
    made = export(
        model, tmp_path / "x.bundle", inputs=test.inputs, pad_id=PAD, bos_id=BOS, eos_id=EOS,
        max_length=LENGTH, verify=False, recognise=False, pack=False,
    )  # fmt: skip
    rows = rows_of(test)
    results = Translator(made.path, engine="onnxruntime").generate_from(rows, return_end_token=True)
    for row, result in zip(rows, results, strict=True):
        tokens, total = loop(test, model, row)
        best = result.hypotheses[0]
        assert list(best.tokens) == tokens
        assert best.score * len(tokens) == pytest.approx(total, abs=1e-3)


def test_what_is_computed_for_all_places_is_named(tmp_path: Path) -> None:
    (padded,) = (each for each in PUBLIC if each.name == "Padded")
    made = export(
        padded.make(), tmp_path / "x.bundle", inputs=padded.inputs, pad_id=PAD, bos_id=BOS,
        eos_id=EOS, max_length=LENGTH, verify=False, recognise=False, pack=False,
    )  # fmt: skip
    assert made.manifest.module is not None
    assert "public_modules.py" in " ".join(made.manifest.module["found"]["again"])


class OfMaximum(Captioner):
    """The mask is as long as the longest row, not as the tensor."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        lengths = (source != PAD).sum(1)
        longest = lengths.max()
        hidden = torch.arange(longest)[None] >= lengths[:, None]  # type: ignore[call-overload]
        logits: Tensor = self.out(self.states(self.memory(source)[:, :longest], tgt, hidden))
        return logits


@pytest.mark.messages
def test_a_size_from_values_is_refused_with_its_line(tmp_path: Path) -> None:
    test = case(OfMaximum, IDS)
    with pytest.raises(RuntimeError, match="takes a size from the values") as caught:
        export(
            test.make(), tmp_path / "x", inputs=test.inputs, pad_id=PAD, bos_id=BOS, eos_id=EOS,
            max_length=LENGTH,
        )  # fmt: skip
    assert "item at test_public_code.py:" in str(caught.value)
    assert "torch.arange(x.size(1)) < lengths[:, None]" in str(caught.value)
    assert not (tmp_path / "x").exists()
