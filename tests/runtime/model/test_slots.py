"""Slots against the decoder's graph, whose rows all stand at one position."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfexport.bundle import open_bundle
from tfexport.errors import BundleError
from tfexport.runtime.model.interface import Floats, Run
from tfexport.runtime.model.kv_cache import MOST_PADDING, Slots
from tfexport.runtime.model.onnxruntime_model import OnnxModel


def expected_logits(model: OnnxModel, source: list[int], tokens: list[int]) -> np.ndarray:
    """(V,), of the position behind these tokens."""
    logits: np.ndarray = model.step(np.array([tokens]), model.encode([source]))[0, -1]
    return logits


def test_rows_enter_move_repeat_and_leave(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.runtime.model.kv_cache._LEAST_POSITIONS", 4)
    model = OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1)
    draw, slots = random.Random(4), Slots(model, 9)
    rows: list[tuple[list[int], list[int]]] = []  # source and tokens of each
    for _ in range(60):
        room = draw.randint(0, min(3, slots.capacity - slots.rows))
        if room and (draw.random() < 0.5 or not rows):
            sources = [
                [draw.randrange(4, 17) for _ in range(draw.randint(1, 60))] for _ in range(room)
            ]
            slots.enter(sources)
            rows += [(source, []) for source in sources]
        if not rows:
            continue
        tokens = [draw.randrange(4, 17) for _ in rows]
        for (_, before), token in zip(rows, tokens, strict=True):
            before.append(token)
        best, logits = slots.step(tokens, return_logits=True)
        for place, (source, before) in enumerate(rows):
            expected = expected_logits(model, source, before)
            np.testing.assert_allclose(logits[place], expected, atol=2e-5)
            assert logits[place, best[place]] == pytest.approx(expected.max(), abs=2e-5)
        kept = [draw.randrange(len(rows)) for _ in range(draw.randint(1, len(rows)))]
        kept = [place for place in kept if len(rows[place][1]) < 50]
        slots.select(np.array(kept, np.intp))
        rows = [(rows[place][0], list(rows[place][1])) for place in kept]
        assert slots.rows == len(rows)


def test_rows_of_unequal_lengths_are_encoded_with_little_padding(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, draw = OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), random.Random(5)
    slots, encode = Slots(model, 9), model.encode_memory
    runs: list[list[list[int]]] = []

    def counted(rows: Sequence[Any]) -> Floats:
        runs.append([*rows])
        return encode(rows)

    monkeypatch.setattr(model, "encode_memory", counted)
    for lengths in [[7] * 9, *([draw.randint(1, 40) for _ in range(9)] for _ in range(4))]:
        sources = [[draw.randrange(4, 17) for _ in range(length)] for length in lengths]
        runs.clear()
        slots.enter(sources)
        assert sorted(row for run in runs for row in run) == sorted(sources)
        for run in runs:
            assert max(map(len, run)) * len(run) - sum(map(len, run)) <= MOST_PADDING
        # Two of these runs in one would have had too much padding.
        runs.sort(key=lambda run: -len(run[0]))
        for first, second in pairwise(runs):
            assert sum(len(first[0]) - len(row) for row in [*first, second[0]]) > MOST_PADDING
        _, logits = slots.step([1] * 9, return_logits=True)
        for place, source in enumerate(sources):
            expected = expected_logits(model, source, [1])
            np.testing.assert_allclose(logits[place], expected, atol=2e-5)
        slots.select(np.zeros(0, np.intp))


@pytest.mark.parametrize("forced", [(None, None), (5, 6)])
def test_runs_give_what_steps_give(
    tiny_bundle: Path, forced: tuple[int | None, int | None]
) -> None:
    model, draw = OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), random.Random(7)
    slots, (first, last) = Slots(model, 9), forced
    wake = np.zeros(1, np.int32)
    # Of each row its source, how many tokens it may get, and those that it got.
    rows: list[tuple[list[int], int, list[int]]] = []
    done: list[tuple[list[int], int, list[int]]] = []
    while len(done) < 30:
        for _ in range(draw.randint(not rows, min(3, slots.capacity - slots.rows))):
            source = [draw.randrange(4, 17) for _ in range(draw.randint(1, 12))]
            slots.enter([source])
            rows.append((source, draw.randint(2, 12), []))
        tokens = [found[-1] if found else 1 for _, _, found in rows]
        left = [limit - len(found) for _, limit, found in rows]
        run = Run(left, 2, first, last, draw.randint(1, 6), 0, 60.0, wake)
        ran = slots.run(tokens, run)
        for (_, _, found), made, count in zip(rows, ran.tokens, ran.counts, strict=True):
            found += made[:count].tolist()
        kept = ran.kept.tolist()
        done += [row for place, row in enumerate(rows) if place not in kept]
        rows = [rows[place] for place in kept]
        assert slots.rows == len(rows)
        assert all(found[-1] != 2 and len(found) < limit for _, limit, found in rows)
    for source, limit, found in done:
        expected: list[int] = []
        while len(expected) < limit and expected[-1:] != [2]:
            token = int(expected_logits(model, source, [1, *expected]).argmax())
            if first is not None and not expected:
                token = first
            elif last is not None and len(expected) == limit - 1:
                token = last
            expected.append(token)
        assert found == expected


def test_a_run_of_slots_ends_when_it_is_wanted(tiny_bundle: Path) -> None:
    slots = Slots(OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), 4)
    wake = np.ones(1, np.int32)

    def counts_of(left: list[int], **changed: Any) -> list[int]:
        slots.enter([[5, 6, 7]] * len(left))
        run = Run(left, -5, None, None, 7, 0, 60.0, np.zeros(1, np.int32))
        ran = slots.run([1] * len(left), run._replace(**changed))
        slots.select(np.zeros(0, np.intp))
        return [int(count) for count in ran.counts]

    assert counts_of([9, 2]) == [7, 2]
    assert counts_of([9, 9], seconds=0.0) == [1, 1]
    assert counts_of([9, 9], wake=wake) == [1, 1]
    assert counts_of([9, 3, 2], wake=wake, enough=1) == [2, 2, 2]
    assert counts_of([9, 3, 2], wake=wake, enough=2) == [3, 3, 2]


def test_a_row_alone_is_repeated_with_its_source(tiny_bundle: Path) -> None:
    model = OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1)
    slots = Slots(model, 4)
    for source in ([5, 6, 7], [9, 4]):
        slots.enter([source])
        slots.step([1], return_logits=False)
        slots.select(np.zeros(3, np.intp))
        _, logits = slots.step([5, 6, 7], return_logits=True)
        for place, token in enumerate([5, 6, 7]):
            expected = expected_logits(model, source, [1, token])
            np.testing.assert_allclose(logits[place], expected, atol=2e-5)
        slots.select(np.zeros(0, np.intp))


def test_without_logits_there_are_none(tiny_bundle: Path) -> None:
    slots = Slots(OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), 3)
    slots.enter([[5, 6], [7]])
    best, logits = slots.step([1, 1], return_logits=False)
    alone = best.copy()
    assert logits.shape == (0, 19)
    slots.select(np.zeros(0, np.intp))
    slots.enter([[5, 6], [7]])
    best, logits = slots.step([1, 1], return_logits=True)
    assert (best == alone).all()
    assert (logits.argmax(-1) == best).all()


def test_buffers_grow_and_memory_of_long_rows_is_given_back(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.runtime.model.kv_cache._LEAST_POSITIONS", 2)
    slots = Slots(OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), 2)
    slots.enter([[5] * 9])
    for _ in range(9):
        slots.step([5], return_logits=False)
    assert slots.positions == 32
    slots.select(np.zeros(0, np.intp))
    assert slots.positions == 4


def test_an_onnxruntime_that_copies_caches_is_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(OnnxModel(tiny_bundle, open_bundle(tiny_bundle), 1), 2)
    slots.try_out()
    written = slots._past.outputs

    def elsewhere(rows: int) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in written(rows).items()}

    monkeypatch.setattr(slots._past, "outputs", elsewhere)
    slots._bindings.clear()
    with pytest.raises(BundleError, match="in place"):
        slots.try_out()
