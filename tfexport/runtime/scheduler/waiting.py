"""The rows that wait for their turn."""

from collections import deque

from tfexport.runtime.scheduler.submission import Row, Submission


class WaitingRows:
    """Rows of all submissions; each submission in its turn gives one row.

    So a submission of one row waits for as many others as there are submissions, and not for all
    rows of a long one. Callers hold a lock.
    """

    def __init__(self) -> None:
        self._turns: deque[Submission] = deque()
        self.rows = 0  # to begin; those of cancelled submissions until their turn
        self.over: list[Submission] = []  # that were taken out, as nobody waits for them

    def __len__(self) -> int:
        """Submissions that have rows to begin."""
        return len(self._turns)

    def add(self, submission: Submission) -> None:
        """Put a submission's rows behind the others."""
        self._turns.append(submission)
        self.rows += len(submission.waiting)

    def take(self, width: int, most: int, count: int, alone: bool = False) -> list[Row]:
        """Take rows to begin.

        Args:
            width: rows of the model's batch that are free. The first row that needs more of them
                keeps its turn, and holds up those behind it: a wide one would never have its turn
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
        """Take out all submissions for which nobody waits."""
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
