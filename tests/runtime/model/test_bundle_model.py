"""Rows of a decoder's state, and their padding."""

import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime import OrtValue

from tfexport.runtime.model.kv_cache import DecoderState
from tfexport.runtime.model.onnxruntime_model import pad

pytestmark = pytest.mark.no_model


def _state() -> DecoderState:
    """Three rows, which hold 0, 1 and 2 wherever they hold anything."""
    rows = np.arange(3, dtype=np.float32)
    cache = np.broadcast_to(rows[:, None, None, None], (3, 2, 4, 5)).copy()
    mask = np.broadcast_to(rows.astype(np.int64)[:, None], (3, 4)).copy()
    return DecoderState(
        {
            "mask": OrtValue.ortvalue_from_numpy(mask),
            "cross": OrtValue.ortvalue_from_numpy(cache),
        },
        {"past": OrtValue.ortvalue_from_numpy(cache[:, :, :1].copy())},
    )


def _held(value: OrtValue) -> list[int]:
    """The one number that each row holds."""
    rows: NDArray[np.float32] = value.numpy().reshape(value.shape()[0], -1)
    assert (rows == rows[:, :1]).all()
    return [int(row[0]) for row in rows]


@pytest.mark.parametrize(
    "rows", [[0, 1, 2], [2], [1, 2], [2, 1, 0], [0, 0, 1], [1, 1, 1, 0, 0, 0]], ids=str
)
def test_all_that_belongs_to_a_row_moves_with_it(rows: list[int]) -> None:
    state = _state()
    state.select(np.array(rows))
    assert state.sources.tolist() == rows
    for value in (*state.memory.values(), *state.past.values()):
        assert _held(value) == rows


def test_sources_are_those_that_were_encoded_however_often_rows_move() -> None:
    state = _state()
    state.select(np.array([2, 1]))
    state.select(np.array([1, 1, 0]))
    assert (
        state.sources.tolist()
        == _held(state.memory["mask"])
        == _held(state.past["past"])
        == [1, 1, 2]
    )


def test_rows_that_stay_are_not_copied() -> None:
    state = _state()
    memory, past = state.memory, state.past["past"]
    state.select(np.array([0, 1, 2]))
    assert state.memory is memory
    assert state.past["past"] is past


def test_rows_are_padded_on_the_right() -> None:
    ids, mask = pad([[5, 6, 7], [8]], 9)
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_past_that_may_share_storage_is_not_changed_in_place() -> None:
    shared = OrtValue.ortvalue_from_numpy(np.arange(3, dtype=np.float32)[:, None])
    state = DecoderState({"memory": shared}, {"past": shared}, own_past=False)
    rows = np.array([1, 0, 2])
    state.select(rows)
    assert _held(shared) == [0, 1, 2]
    assert _held(state.past["past"]) == _held(state.memory["memory"]) == [1, 0, 2]
