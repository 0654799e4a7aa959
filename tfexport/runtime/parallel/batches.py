"""Batches of rows of like length."""

from collections.abc import Sequence

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search.request import Request

BATCHES_AHEAD = 16  # that are sorted by length together
USUAL_LENGTH = 32  # tokens of a row, where a batch is counted in tokens


def rows_ahead(options: DecodingOptions) -> int:
    """The number of rows of an endless input that are read before any is decoded."""
    rows = options.batch_size
    if options.batch_type == "tokens":
        rows = max(1, rows // USUAL_LENGTH)
    return BATCHES_AHEAD * rows


def make_batches(requests: Sequence[Request | None], options: DecodingOptions) -> list[list[int]]:
    """Indices of rows that go together: prefixes of one length, and sources of like length.

    Args:
        requests: None for what needs no decoding.
        options: how large a batch may be.
    """
    sizes = {i: (len(row.prefix), len(row.ids)) for i, row in enumerate(requests) if row}
    # Rows of like length together, so that little is padded.
    order = sorted(sizes, key=sizes.__getitem__)
    batches: list[list[int]] = []
    for i in order:
        prefix, length = sizes[i]
        batch = batches[-1] if batches else []
        # Lengths ascend: the newest row is the longest.
        size = (len(batch) + 1) * (length if options.batch_type == "tokens" else 1)
        if batch and sizes[batch[0]][0] == prefix and size <= options.batch_size:
            batch.append(i)
        else:
            batches.append([i])
    return batches
