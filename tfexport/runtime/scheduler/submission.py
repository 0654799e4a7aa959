"""Submissions of callers to a scheduler, the queue that they wait in, and its figures."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from tfexport.errors import DeadlineError
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions

Hypotheses = list[list[Hypothesis]]  # of each row, best first


class Submission:
    """Rows of one caller.

    Attributes:
        options: how all of them are decoded.
        on_step: called for every token of a row that is not decoded with a beam; or None.
        future: of the hypotheses of every row. Cancelling it takes the rows out of the batch.
        waiting: its rows that are not started, in order.
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
        """Give up: no row is started any more, and running ones leave at the next step."""
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


# The rows that wait for their turn.


class WaitingRows:
    """Rows of all submissions; each submission in its turn gives one row.

    So a submission of one row waits for as many others as there are submissions, and not for all
    rows of a long one. Callers hold a lock.
    """

    def __init__(self) -> None:
        self._turns: deque[Submission] = deque()
        self.rows = 0  # to start; those of cancelled submissions until their turn
        self.over: list[Submission] = []  # that were taken out, as no one waits for them

    def __len__(self) -> int:
        """Submissions that have rows to start."""
        return len(self._turns)

    def add(self, submission: Submission) -> None:
        """Put a submission's rows after the others."""
        self._turns.append(submission)
        self.rows += len(submission.waiting)

    def take(self, width: int, most: int, count: int, alone: bool = False) -> list[Row]:
        """Take rows to start.

        Args:
            width: rows of the model's batch that are free. The first row that needs more of them
                keeps its turn, and holds up those after it: a wide one would never have its turn
                otherwise.
            most: tokens of sources at most; one row is always taken.
            count: rows at most.
            alone: nothing else is decoded, so that the first row may be of any width.
        """
        taken: list[Row] = []
        while self._turns:
            submission = self._turns[0]
            if submission.is_over():
                self._drop(self._turns.popleft())
                continue
            row = submission.waiting[-1]
            width -= row.options.width
            most -= row.request.length
            if len(taken) >= count or (width < 0 and (taken or not alone)) or (taken and most < 0):
                break
            taken.append(submission.waiting.pop())
            self.rows -= 1
            self._turns.popleft()
            if submission.waiting:
                self._turns.append(submission)
        return taken

    def purge(self) -> None:
        """Take out all submissions for which no one waits."""
        before, self._turns = self._turns, deque()
        for submission in before:
            if submission.is_over():
                self._drop(submission)
            else:
                self._turns.append(submission)

    def _drop(self, submission: Submission) -> None:
        self.rows -= len(submission.waiting)
        self.over.append(submission)

    def take_all(self) -> list[Row]:
        """Take every row."""
        taken = [row for submission in self._turns for row in submission.waiting]
        self._turns.clear()
        self.rows = 0
        return taken


# Figures of a scheduler, for metrics.


class Observer:
    """Told what a scheduler does; here it does nothing.

    Its methods are called by the scheduler's threads, which wait for them.
    """

    def batch(self, rows: int) -> None:
        """A step, or a complete search, of so many rows starts."""

    def queued(self, seconds: float) -> None:
        """A row has waited so long before it was started."""

    def first_token(self, seconds: float) -> None:
        """A row got its first token so long after it was submitted."""

    def generated(self, tokens: int) -> None:
        """A row has ended with so many tokens."""

    def encoded(self, tokens: int) -> None:
        """The source of a row, of so many tokens, is encoded."""
