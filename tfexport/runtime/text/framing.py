"""Framing: the special tokens around the ids of a source text."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfexport.errors import InputError, Message


@dataclass(frozen=True)
class Framing:
    """The ids that a source text gets besides its own, and besides the start and end token.

    Attributes:
        before: ids before everything else.
        after: ids after everything else.
        mark: the id after ``before``, unless the text holds one of ``marks`` itself; None for none.
        marks: ids of which a text may hold one, as its first.
        asked: the problem of a text that holds none; None if it need not.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    mark: int | None = None
    marks: frozenset[int] = frozenset()
    asked: Message | None = None

    def around(self, pieces: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that go before and after those of one text.

        Raises:
            InputError: the text has to hold a mark, and does not.
        """
        marked = bool(pieces) and pieces[0] in self.marks
        if self.asked is not None and not marked:
            raise InputError(self.asked)
        mark = () if marked or self.mark is None else (self.mark,)
        return (*self.before, *mark), self.after

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids stand before those of a text and after; its own mark is one of them."""
        return len(self.before) + bool(self.marks), len(self.after)


PLAIN = Framing()
