"""Submissions of callers, the queue of their rows, and events for metrics."""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from tfexport.errors import DeadlineError
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions

Hypotheses = list[list[Hypothesis]]  # hypotheses of each row, best first


class Submission:
    """The rows of one call.

    Attributes:
        options: how all of them are decoded.
        on_step: called for every token of a row without a beam; or None.
        future: the hypotheses of every row. Cancelling it removes the rows from the batch.
        waiting: rows that are not started, in order.
        submitted: time of the call, by ``time.monotonic``.
    """

    def __init__(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        deadline: float | None,
        on_step: Callable[[Step], object] | None,
    ) -> None:
        """Take rows; None is a blank row, with an empty hypothesis."""
        self.options, self.on_step, self._deadline = options, on_step, deadline
        self.future: Future[Hypotheses] = Future()
        self.submitted = time.monotonic()
        self._found: Hypotheses = [[Hypothesis([], 0.0)] for _ in requests]
        rows = [
            SubmissionRow(self, place, row) for place, row in enumerate(requests) if row is not None
        ]
        self.waiting, self._left = rows[::-1], len(rows)
        self._ending = threading.Lock()  # its rows may end in several threads
        if not rows:
            self.future.set_result(self._found)

    def cancel(self) -> None:
        """Start no more rows; running ones leave at the next step."""
        self.future.cancel()

    def is_over(self) -> bool:
        """Whether its rows need no further step: it is done, cancelled or late."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return late or self.future.done()

    def end_if_late(self) -> bool:
        """Fail if the deadline has passed; return ``is_over``."""
        over = self.is_over()
        if over:  # a finished or cancelled one is unchanged
            self.fail(DeadlineError("its deadline passed before it was decoded"))
        return over

    def tell(self, step: Step) -> None:
        """Call ``on_step``; an error of the callback fails this submission only."""
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
            self._settle(self.future.set_result, self._found)

    def fail(self, error: BaseException) -> None:
        """End with an error, and drop the results so far."""
        self._settle(self.future.set_exception, error)

    def _settle(self, settle: Callable[[Any], object], outcome: object) -> None:
        # The caller may cancel it at any time, and it may have failed already.
        with contextlib.suppress(InvalidStateError):
            settle(outcome)


class SubmissionRow:
    """One row of a submission.

    Attributes:
        submission: the submission of the row.
        place: index among the rows of the submission.
        request: what to decode.
        options: how to decode it.
    """

    def __init__(self, submission: Submission, place: int, request: Request) -> None:
        self.submission, self.place, self.request = submission, place, request
        self.options = submission.options


Ended = list[tuple[SubmissionRow, list[Hypothesis]]]  # rows with their hypotheses


def any_awaited(rows: Sequence[SubmissionRow]) -> bool:
    """Whether somebody still waits for one of the rows; late submissions fail."""
    over = [row.submission.end_if_late() for row in rows]
    return not all(over)


class RunningBatch(ABC):
    """Rows that are decoded together, by one thread.

    Attributes:
        rows: the rows in the batch.
        capacity: rows of the model's batch, free or not.
    """

    def __init__(self, capacity: int) -> None:
        """Start without rows; ``capacity`` is the most."""
        self.capacity, self.rows = capacity, list[SubmissionRow]()

    @property
    def free(self) -> int:
        """Free rows of the model's batch."""
        return self.capacity - len(self.rows)

    def enter(self, rows: Sequence[SubmissionRow]) -> None:
        """Add rows, which together need no more than ``free``; if it fails, none is added."""
        self.rows.extend(rows)

    @abstractmethod
    def step(self) -> Ended:
        """Continue all rows; remove and return those that have ended."""

    def leave(self) -> None:
        """Remove rows whose submission has ended; late submissions fail."""
        self.rows = [row for row in self.rows if not row.submission.end_if_late()]

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = []


class WaitingRows:
    """The queue of waiting rows, in which submissions take turns, one row each.

    So a submission of one row waits for one row of each other submission, not for all rows of a
    long one. Callers hold a lock.
    """

    def __init__(self) -> None:
        self._turns: deque[Submission] = deque()
        self.rows = 0  # rows to start; those of cancelled submissions are removed at their turn
        self.over: list[Submission] = []  # removed because they have ended

    def __len__(self) -> int:
        """The number of submissions with rows to start."""
        return len(self._turns)

    def add(self, submission: Submission) -> None:
        """Add a submission's rows at the end."""
        self._turns.append(submission)
        self.rows += len(submission.waiting)

    def take(self, width: int, most: int, count: int, alone: bool = False) -> list[SubmissionRow]:
        """Remove and return the next rows to start.

        Args:
            width: free rows of the model's batch. If the next row needs more, it and all rows after
                it wait: otherwise a wide row might wait for ever.
            most: the most tokens of sources; at least one row is taken.
            count: the most rows.
            alone: whether nothing else is decoded, so that the first row may have any width.
        """
        taken: list[SubmissionRow] = []
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
        """Remove all submissions that have ended."""
        before, self._turns = self._turns, deque()
        for submission in before:
            if submission.is_over():
                self._drop(submission)
            else:
                self._turns.append(submission)

    def _drop(self, submission: Submission) -> None:
        self.rows -= len(submission.waiting)
        self.over.append(submission)

    def take_all(self) -> list[SubmissionRow]:
        """Remove and return all rows."""
        taken = [row for submission in self._turns for row in submission.waiting]
        self._turns.clear()
        self.rows = 0
        return taken


class Observer:
    """Receives events of a scheduler; this one ignores them.

    The scheduler's threads call its methods and wait for them.
    """

    def batch(self, rows: int) -> None:
        """A step, several in a row, or a complete search, of so many rows starts."""

    def queued(self, seconds: float) -> None:
        """A row has waited so long before it was started."""

    def first_token(self, seconds: float) -> None:
        """A row got its first token so long after it was submitted."""

    def generated(self, tokens: int) -> None:
        """A row has ended with so many tokens."""

    def encoded(self, tokens: int) -> None:
        """The source of a row, of so many tokens, is encoded."""
