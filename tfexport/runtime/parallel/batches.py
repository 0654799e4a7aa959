"""Batches of rows of similar length."""

from collections.abc import Sequence

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.request import Request

BATCHES_AHEAD = 16  # that are read ahead and sorted by length
USUAL_LENGTH = 32  # tokens of a row, as an estimate for batches counted in tokens


def rows_ahead(options: DecodingOptions) -> int:
    """The number of rows to read ahead from a long input."""
    rows = options.batch_size
    if options.batch_type == "tokens":
        rows = max(1, rows // USUAL_LENGTH)
    return BATCHES_AHEAD * rows


def make_batches(requests: Sequence[Request | None], options: DecodingOptions) -> list[list[int]]:
    """Group rows into batches with prefixes of equal length and sources of similar length.

    Rows of different groups are not batched together.

    Args:
        requests: None for a row that needs no decoding; it is in no batch.
        options: ``batch_size`` and ``batch_type``.

    Returns:
        Indices of the rows of each batch.
    """
    sizes = {i: ((len(row.prefix), row.group), row.length) for i, row in enumerate(requests) if row}
    # Sorted by length, so that little is padded.
    order = sorted(sizes, key=sizes.__getitem__)
    batches: list[list[int]] = []
    for i in order:
        shared, length = sizes[i]
        batch = batches[-1] if batches else []
        # Lengths ascend: the newest row is the longest.
        size = (len(batch) + 1) * (length if options.batch_type == "tokens" else 1)
        if batch and sizes[batch[0]][0] == shared and size <= options.batch_size:
            batch.append(i)
        else:
            batches.append([i])
    return batches


def in_order(
    count: int, batches: Sequence[Sequence[int]], found: Sequence[list[list[Hypothesis]]]
) -> list[list[Hypothesis]]:
    """The hypotheses of all batches, in the order of the rows; rows of no batch are empty."""
    # A new object for each row: callers may change its list of tokens.
    results = [[Hypothesis([], 0.0)] for _ in range(count)]
    for batch, rows in zip(batches, found, strict=True):
        for i, hypotheses in zip(batch, rows, strict=True):
            results[i] = hypotheses
    return results
