"""CTranslate2 on equal weights: greedy tokens the same, beams as good or better."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers import save_ctranslate2
from tests.conftest import SETTINGS, Once, leave_out_graphs
from tests.support import tutorial
from tfexport import graph_io
from tfexport.export import export
from tfexport.model_src import load_checkpoint
from tfexport.runtime import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LIMIT = 24
Row = list[int]


@pytest.fixture(scope="session")
def folder(once: Once) -> Path:
    """A pre-norm model, random but such that outputs differ, as a bundle and for CTranslate2."""

    def make(path: Path) -> None:
        model = tutorial.make(seed=5, scale=3.0, norm_first=True, d_model=32, num_heads=4)
        with torch.no_grad():
            model.generator.bias[2] += 2.5  # so that rows end at all lengths
        path.mkdir()
        torch.save(model.state_dict(), path / "model.pt")
        settings = {**SETTINGS, "num_heads": 4, "norm_placement": "pre"}
        checkpoint = load_checkpoint(path / "model.pt", config=settings)
        save_ctranslate2(checkpoint, path / "ctranslate2")
        with pytest.MonkeyPatch.context() as patch:
            leave_out_graphs(patch, graph_io.STEP)
            export(path / "model.pt", path / "a.bundle", config=settings, verify=False)

    return once("ctranslate2", make)


@pytest.fixture(scope="session")
def ours(folder: Path) -> Translator:
    return Translator(folder / "a.bundle", threads=1)


@pytest.fixture(scope="session")
def theirs(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder / "ctranslate2"), device="cpu", intra_threads=1)


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    draw = random.Random(3)
    return [[draw.randrange(3, 17) for _ in range(draw.randint(1, 14))] for _ in range(240)]


def run(theirs: Any, rows: list[Row], **options: Any) -> list[tuple[Row, float]]:
    options.setdefault("min_decoding_length", 0)  # its own default is 1
    found = theirs.translate_batch(
        [[f"t{i}" for i in row] for row in rows],
        max_decoding_length=LIMIT,
        return_scores=True,
        **options,
    )
    return [([int(t[1:]) for t in f.hypotheses[0]], float(f.scores[0])) for f in found]


def test_greedy_tokens_and_scores_are_the_same(
    ours: Translator, theirs: Any, rows: list[Row]
) -> None:
    expected = run(theirs, rows, beam_size=1)
    found = [r.hypotheses[0] for r in ours.generate(rows, max_length=LIMIT)]
    assert [made.tokens for made in found] == [tokens for tokens, _ in expected]
    assert [made.score for made in found] == pytest.approx([s for _, s in expected], abs=1e-4)
    assert len({tuple(made.tokens) for made in found}) > 150, "the outputs differ, so they say much"
    assert 20 < sum(made.finished for made in found) < 240


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 4},
        {"beam_size": 4, "length_penalty": 0.6},
        {"beam_size": 3, "patience": 2.0},
        {"beam_size": 4, "no_repeat_ngram_size": 2},
        {"beam_size": 4, "repetition_penalty": 1.3},
    ],
    ids=lambda options: "-".join(options),
)
def test_best_of_a_beam_is_the_same_or_better(
    ours: Translator, theirs: Any, rows: list[Row], options: dict[str, Any]
) -> None:
    expected = run(theirs, rows, length_penalty=options.get("length_penalty", 1.0),
                   **{k: v for k, v in options.items() if k != "length_penalty"})  # fmt: skip
    found = [r.hypotheses[0] for r in ours.generate(rows, max_length=LIMIT, **options)]
    same = 0
    for made, (tokens, score) in zip(found, expected, strict=True):
        same += made.tokens == tokens
        if made.tokens != tokens:
            assert made.score >= score - 1e-4
        else:
            assert made.score == pytest.approx(score, abs=1e-4)
    assert same >= 230, f"{same} of 240 are the same"


def test_constraints_act_alike(ours: Translator, theirs: Any, rows: list[Row]) -> None:
    options: dict[str, Any] = {"min_length": 6}
    expected = run(theirs, rows, beam_size=4, min_decoding_length=6, end_token=["t2"],
                   suppress_sequences=[["t5"], ["t7", "t8"]])  # fmt: skip
    found = ours.generate(rows, max_length=LIMIT, beam_size=4, suppress_tokens=[5],
                          suppress_sequences=[[7, 8]], **options)  # fmt: skip
    same = 0
    for result, (tokens, score) in zip(found, expected, strict=True):
        made = result.hypotheses[0]
        same += made.tokens == tokens
        assert made.tokens == tokens or made.score >= score - 1e-4
    assert same >= 230


def test_scores_of_given_targets_are_the_same(
    ours: Translator, theirs: Any, rows: list[Row]
) -> None:
    draw = random.Random(4)
    targets = [[draw.randrange(3, 19) for _ in range(draw.randint(1, 12))] for _ in rows]
    expected = theirs.score_batch(
        [[f"t{i}" for i in row] for row in rows], [[f"t{i}" for i in row] for row in targets]
    )
    found = ours.score(rows, targets, return_token_scores=True)
    for made, scored in zip(found, expected, strict=True):
        assert made.token_scores == pytest.approx(scored.log_probs, abs=1e-3)
