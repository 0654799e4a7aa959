"""Hugging Face Transformers on equal weights: ``generate`` with the options that both have.

``test_generation`` draws these options, and others, over a folder of the same family.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers import build_marian
from tests.conftest import SETTINGS, Once, leave_out_graphs
from tests.support import tutorial
from tfexport import graph_io
from tfexport.export import export
from tfexport.model_src import load_checkpoint
from tfexport.runtime import Translator

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore"),
]

LIMIT = 20
CONFIG = {**SETTINGS, "num_heads": 4}
Row = list[int]


@pytest.fixture(scope="session")
def folder(once: Once) -> Path:
    """A post-norm model without final norms, which is what Marian is."""

    def make(path: Path) -> None:
        model = tutorial.make(seed=9, scale=3.0, final_norms=False, d_model=32, num_heads=4)
        path.mkdir()
        torch.save(model.state_dict(), path / "model.pt")
        with pytest.MonkeyPatch.context() as patch:
            leave_out_graphs(patch, graph_io.STEP)
            export(path / "model.pt", path / "a.bundle", config=CONFIG, verify=False)

    return once("transformers", make)


@pytest.fixture(scope="session")
def ours(folder: Path) -> Translator:
    return Translator(folder / "a.bundle", threads=1)


@pytest.fixture(scope="session")
def theirs(folder: Path) -> Any:
    return build_marian(load_checkpoint(folder / "model.pt", config=CONFIG))


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    draw = random.Random(3)
    return [[draw.randrange(3, 17) for _ in range(draw.randint(1, 14))] for _ in range(100)]


@torch.no_grad()
def run(theirs: Any, rows: list[Row], **options: Any) -> list[tuple[Row, float | None]]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    made = theirs.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=LIMIT, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    scores = getattr(made, "sequences_scores", None)
    found: list[tuple[Row, float | None]] = []
    for i, row in enumerate(made.sequences[:, 1:].tolist()):
        tokens = row[: row.index(2)] if 2 in row else row
        found.append((tokens, None if scores is None else float(scores[i])))
    return found


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({}, {}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"min_length": 5}, {"min_new_tokens": 5}),
        ({"suppress_tokens": [4, 9]}, {"suppress_tokens": [4, 9]}),
        ({"suppress_sequences": [[4], [5, 6]]}, {"bad_words_ids": [[4], [5, 6]]}),
        ({"end_tokens": [2, 7]}, {"eos_token_id": [2, 7]}),
    ],
    ids=str,
)
def test_greedy_is_the_same(
    ours: Translator, theirs: Any, rows: list[Row], here: dict[str, Any], there: dict[str, Any]
) -> None:
    expected = [tokens for tokens, _ in run(theirs, rows, num_beams=1, **there)]
    if "end_tokens" in here:
        expected = [row[: row.index(7)] if 7 in row else row for row in expected]
    found = ours.generate(rows, max_length=LIMIT, **here)
    assert [result.hypotheses[0].tokens for result in found] == expected


# Bans are left out: in a beam, Transformers bans after log-softmax, so its scores are of another
# kind; see docs/decoding.md.
@pytest.mark.parametrize("options", [{}, {"length_penalty": 0.5}, {"length_penalty": 2.0}], ids=str)
def test_beams_are_the_same_or_better(
    ours: Translator, theirs: Any, rows: list[Row], options: dict[str, Any]
) -> None:
    expected = run(theirs, rows, num_beams=4, early_stopping=True, **options)
    found = ours.generate(rows, max_length=LIMIT, beam_size=4, **options)
    same = 0
    for result, (tokens, score) in zip(found, expected, strict=True):
        made = result.hypotheses[0]
        same += made.tokens == tokens
        assert score is not None
        assert made.tokens == tokens or made.score >= score - 1e-4
    assert same >= 95
