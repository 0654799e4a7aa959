"""One step of a search, as a caller sees it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One token of one row, as a callback sees it.

    Attributes:
        row: index of the input, from 0.
        hypothesis: index of its sample, from 0.
        position: of the token in the output, from 0.
        token: its id; the end token too.
        log_prob: its natural-log probability.
        last: whether the row ends with this token.
    """

    row: int
    hypothesis: int
    position: int
    token: int
    log_prob: float
    last: bool
