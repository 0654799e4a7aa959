"""Figures of a scheduler, for metrics."""


class Observer:
    """Told what a scheduler does; here it does nothing.

    Its methods are called by the scheduler's threads, which wait for them.
    """

    def batch(self, rows: int) -> None:
        """A step, or a whole search, of so many rows begins."""

    def queued(self, seconds: float) -> None:
        """A row has waited so long before it was begun."""

    def first_token(self, seconds: float) -> None:
        """A row got its first token so long after it was submitted."""

    def generated(self, tokens: int) -> None:
        """A row has ended with so many tokens."""

    def encoded(self, tokens: int) -> None:
        """The source of a row, of so many tokens, is encoded."""
