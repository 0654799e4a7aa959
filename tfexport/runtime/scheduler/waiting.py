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

    def __len__(self) -> int:
        """Submissions that have rows to begin."""
        return len(self._turns)

    @property
    def rows(self) -> int:
        """Rows to begin."""
        return sum(len(submission.waiting) for submission in self._turns)

    def add(self, submission: Submission) -> None:
        """Put a submission's rows behind the others."""
        self._turns.append(submission)

    def take(self, width: int, most: int) -> list[Row]:
        """Take rows to begin.

        Args:
            width: rows of the model's batch that are free. The first row that needs more of them
                keeps its turn, and holds up those behind it: a wide one would never have its turn
                otherwise.
            most: tokens of sources at most; one row is always taken.
        """
        taken: list[Row] = []
        while self._turns:
            submission = self._turns[0]
            if submission.is_over() or not submission.waiting:
                self._turns.popleft()
                continue
            row = submission.waiting[-1]
            width -= row.width
            most -= row.request.length
            if width < 0 or (taken and most < 0):
                break
            submission.waiting.pop()
            taken.append(row)
            self._turns.rotate(-1)
        return taken
