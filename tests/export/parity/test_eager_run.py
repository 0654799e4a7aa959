"""Eager PyTorch's side of a comparison: the grid, its rows, and a run over them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import CONFIG
from tests.support import tutorial
from tfexport.export.parity import Comparison, eager_run
from tfexport.export.parity.checkpoint import EagerCheckpoint, grid, random_rows
from tfexport.export.parity.compare import compare_values
from tfexport.export.parity.eager_run import EagerRun, compare_batches, compare_each
from tfexport.export.parity.plan import QUICK, ComparisonPlan
from tfexport.export.parity.search import attention_weights
from tfexport.export.rounding import Weights
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import checkpoint_of


@pytest.fixture
def checkpoint(tutorial_model: tutorial.TutorialModel) -> Checkpoint:
    return checkpoint_of(tutorial_model, CONFIG)


def test_grid_ends_with_the_longest_source(checkpoint: Checkpoint) -> None:
    shapes = list(grid(checkpoint.config))
    assert shapes[-1] == (1, 64)
    assert shapes[:-1] == [(b, s) for s in (1, 7, 33) for b in (1, 2, 8)]
    assert list(grid(checkpoint.config, QUICK)) == [(2, 7)]


@pytest.mark.usefixtures("few_shapes")
def test_real_rows_are_compared_beside_drawn_ones_and_named(checkpoint: Checkpoint) -> None:
    def compare(run: EagerRun) -> Iterator[Comparison]:
        yield compare_values("beam", run.shape, run.logits, run.logits, run.noise.logits)

    rows = ((4, 5, 2), (6, 7, 8, 2), (5,) * 65)
    plan = ComparisonPlan(QUICK, rows, "samples")
    report = compare_batches(EagerCheckpoint(checkpoint), plan, compare)
    found = [(c.inputs, c.batch, c.source_length) for c in report.comparisons]
    assert found == [("drawn", 2, 7), ("samples", 2, 4)], "a row that is too long is left out"
    assert (report.level, report.measured_by) == ("quick", "float64")
    assert report.summary()["inputs"] == ["drawn", "samples"]
    assert all(0 < c.noise < 1e-3 for c in report.comparisons)


def test_attention_is_measured_as_often_as_logits_are(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one draw alone, attention of a model that passed was once refused."""
    monkeypatch.setattr(eager_run, "NEW_TOKENS", 4)
    eager, changes = EagerCheckpoint(checkpoint), list[int]()
    run = eager.decode(EagerRun(eager, (), (2, 7)))
    changed = Weights.changed

    def counted(self: Weights, seed: int) -> Any:
        changes.append(seed)
        return changed(self, seed)

    monkeypatch.setattr(Weights, "changed", counted)
    _, noise = attention_weights(run, run.tokens)
    assert 0 < noise < 1e-5
    assert len(set(changes)) == 4


def test_rows_of_a_batch_are_padded_on_the_right_and_the_first_is_full(
    checkpoint: Checkpoint,
) -> None:
    rows = random_rows(checkpoint.config, 8, 7)
    padded, masks = EagerCheckpoint(checkpoint).padded(rows)
    assert padded.shape == masks.shape == (8, 7)
    assert len(rows[0]) == 7
    assert len({len(row) for row in rows}) > 1
    for row, ids, mask in zip(rows, padded.tolist(), masks.tolist(), strict=True):
        assert ids == row + [0] * (7 - len(row))
        assert mask == [1] * len(row) + [0] * (7 - len(row))
        assert not {0, 1, 2} & set(row), "special tokens are of no sentence"
    assert random_rows(checkpoint.config, 8, 7) == rows


def test_run_is_the_tutorials_loop(
    checkpoint: Checkpoint, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_run, "NEW_TOKENS", 6)
    eager = EagerCheckpoint(checkpoint)
    run = eager.decode(EagerRun(eager, (), (2, 7)))
    assert run.tokens.shape == (2, 6)
    assert (run.logits.argmax(-1) == run.tokens).all()
    assert run.prefix[:, 0].tolist() == [1, 1]
    assert (run.prefix[:, 1:] == run.tokens[:, :-1]).all()
    for row, tokens in zip(run.rows, run.tokens.tolist(), strict=True):
        expected = tutorial.greedy(tutorial_model, row, 6, bos=1, eos=2)
        assert tokens[: len(expected)] == expected


def test_driver_compares_every_shape_and_tells_how_far_it_is(
    checkpoint: Checkpoint, few_shapes: None
) -> None:
    told: list[tuple[str, int, int]] = []

    def compare(run: EagerRun) -> Iterator[Comparison]:
        assert not torch.is_grad_enabled()
        values = np.ones(3, np.float32)
        yield compare_values("beam", run.shape, values, values)

    plan = ComparisonPlan(progress=lambda *step: told.append(step))
    report = compare_batches(EagerCheckpoint(checkpoint), plan, compare)
    assert [(c.batch, c.source_length) for c in report.comparisons] == [(2, 7)]
    assert report.reference == "torch.nn.Transformer"
    assert told == [("comparing with eager PyTorch", done, 1) for done in (0, 1)]


def test_nothing_to_compare_is_no_proof(checkpoint: Checkpoint) -> None:
    def compare(run: EagerRun) -> list[Comparison]:
        raise AssertionError("there is no batch")

    assert not compare_each(EagerCheckpoint(checkpoint), [], compare).passed


def test_a_small_model_is_compared_in_one_thread(checkpoint: Checkpoint) -> None:
    seen: list[int] = []

    def compare(_run: EagerRun) -> Iterator[Comparison]:
        seen.append(torch.get_num_threads())
        yield from ()

    torch.set_num_threads(2)
    try:
        eager = EagerCheckpoint(checkpoint)
        compare_each(eager, [EagerRun(eager, (), (1, 1))], compare)
    finally:
        torch.set_num_threads(1)
    assert seen == [1]
