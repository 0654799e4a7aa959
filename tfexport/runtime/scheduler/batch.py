"""The batch that a lane of a scheduler runs."""

from collections.abc import Sequence
from typing import Protocol

from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.submission import Row

Ended = list[tuple[Row, list[Hypothesis]]]  # rows with their hypotheses


class RunningBatch(Protocol):
    """Rows that are decoded together. Used by one thread."""

    @property
    def rows(self) -> Sequence[Row]:
        """Rows that are in it."""

    @property
    def free(self) -> int:
        """Rows of the model's batch that are free."""

    @property
    def capacity(self) -> int:
        """Rows of the model's batch, free or not."""

    def enter(self, rows: Sequence[Row]) -> None:
        """Take rows in; together they are no wider than ``free``."""

    def step(self) -> Ended:
        """Go on with all rows, and take those out that have ended."""

    def leave(self) -> None:
        """Take rows out whose submission is over; late ones fail."""

    def clear(self) -> None:
        """Take all rows out."""
