"""Batches of rows: nothing is lost, little is padded, prefixes of a batch are equally long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.parallel.workers import BATCHES_AHEAD, make_batches, rows_ahead
from tfexport.runtime.search import Request

pytestmark = pytest.mark.no_model


def _rows(*lengths: int, prefixes: tuple[int, ...] = ()) -> list[Request | None]:
    """Rows of these lengths; 0 is one that needs no decoding."""
    prefixes = prefixes or (0,) * len(lengths)
    return [
        Request([4] * length, prefix=(5,) * prefix) if length else None
        for length, prefix in zip(lengths, prefixes, strict=True)
    ]


def test_rows_of_like_length_go_together() -> None:
    options = DecodingOptions(batch_size=2)
    assert make_batches(_rows(9, 2, 8, 1, 5), options) == [[3, 1], [4, 2], [0]]


def test_rows_without_a_request_are_in_no_batch() -> None:
    assert make_batches(_rows(3, 0, 2), DecodingOptions()) == [[2, 0]]
    assert make_batches([None], DecodingOptions()) == []


def test_a_batch_of_tokens_counts_padding() -> None:
    options = DecodingOptions(batch_size=8, batch_type="tokens")
    # 2 x 4 fit; a third row of 4 would make 12; one of 9 is alone, however small the batch.
    assert make_batches(_rows(4, 2, 4, 9), options) == [[1, 0], [2], [3]]


def test_prefixes_of_different_lengths_share_no_batch() -> None:
    assert make_batches(_rows(3, 3, 3, prefixes=(0, 2, 0)), DecodingOptions()) == [[0, 2], [1]]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=20),
    st.integers(1, 30),
    st.sampled_from(["rows", "tokens"]),
)
def test_every_row_is_in_one_batch_that_is_not_too_large(
    sizes: list[tuple[int, int]], batch_size: int, batch_type: str
) -> None:
    rows = _rows(*(length for length, _ in sizes), prefixes=tuple(prefix for _, prefix in sizes))
    batches = make_batches(rows, DecodingOptions(batch_size=batch_size, batch_type=batch_type))
    assert sorted(i for batch in batches for i in batch) == [
        i for i, row in enumerate(rows) if row is not None
    ]
    for batch in batches:
        requests = [row for i in batch if (row := rows[i]) is not None]
        longest = max(len(row.ids) for row in requests)
        size = len(batch) * (longest if batch_type == "tokens" else 1)
        assert size <= batch_size or len(batch) == 1
        assert len({len(row.prefix) for row in requests}) == 1


@pytest.mark.parametrize(
    ("batch_size", "batch_type", "rows"), [(4, "rows", 4), (640, "tokens", 20), (3, "tokens", 1)]
)
def test_an_endless_input_is_read_some_batches_ahead(
    batch_size: int, batch_type: str, rows: int
) -> None:
    options = DecodingOptions(batch_size=batch_size, batch_type=batch_type)
    assert rows_ahead(options) == BATCHES_AHEAD * rows
