"""Submissions of callers to a scheduler: rows with common options, and their results' future."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from tfexport.errors import DeadlineError
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.step import Step

Hypotheses = list[list[Hypothesis]]  # of each row, best first


class Submission:
    """Rows of one caller.

    Attributes:
        options: how all of them are decoded.
        on_step: called for every token of a row that is not decoded with a beam; or None.
        future: of the hypotheses of every row. Cancelling it takes the rows out of the batch.
        waiting: its rows that are not begun, in order.
        submitted: when, by ``time.monotonic``.
    """

    def __init__(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        deadline: float | None,
        on_step: Callable[[Step], object] | None,
    ) -> None:
        """Take rows; None is a blank one, with an empty hypothesis."""
        self.options, self.on_step, self._deadline = options, on_step, deadline
        self.future: Future[Hypotheses] = Future()
        self.submitted = time.monotonic()
        self._found: Hypotheses = [[Hypothesis([], 0.0)] for _ in requests]
        rows = [Row(self, place, row) for place, row in enumerate(requests) if row is not None]
        self.waiting, self._left = rows[::-1], len(rows)
        self._ending = threading.Lock()  # its rows may end in several lanes
        if not rows:
            self.future.set_result(self._found)

    def cancel(self) -> None:
        """Give up: no row is begun any more, and running ones leave at the next step."""
        self.future.cancel()

    def is_over(self) -> bool:
        """Whether its rows need no further step: it has its result, was cancelled, or is late."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return late or self.future.done()

    def end_if_late(self) -> bool:
        """Fail if its time is over; returns ``is_over``."""
        over = self.is_over()
        if over:  # one that has its result, or was cancelled, stays as it is
            self.fail(DeadlineError("its time was over before it was decoded"))
        return over

    def tell(self, step: Step) -> None:
        """Tell its caller of a token; a caller's error is its own."""
        if self.on_step is not None and not self.future.done():
            try:
                self.on_step(step)
            except Exception as error:
                self.fail(error)

    def finish(self, place: int, found: list[Hypothesis]) -> None:
        """Take the hypotheses of a row."""
        with self._ending:
            self._found[place] = found
            self._left -= 1
            last = not self._left
        if last:
            self._settle(lambda: self.future.set_result(self._found))

    def fail(self, error: BaseException) -> None:
        """End with an error, whatever its rows have so far."""
        self._settle(lambda: self.future.set_exception(error))

    def _settle(self, settle: Callable[[], Any]) -> None:
        # Its caller may cancel it at any time; and it may have failed already.
        with contextlib.suppress(InvalidStateError):
            settle()


class Row:
    """One row of a submission.

    Attributes:
        submission: that it belongs to.
        place: among the rows of the submission.
        request: what to decode.
        options: how to decode it.
    """

    def __init__(self, submission: Submission, place: int, request: Request) -> None:
        self.submission, self.place, self.request = submission, place, request
        self.options = submission.options

    def finish(self, found: list[Hypothesis]) -> None:
        """Hand its hypotheses to the submission."""
        self.submission.finish(self.place, found)
