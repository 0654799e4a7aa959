"""The count of a run: pieces until their partition is whole, bytes, and what is reported."""

import time
from collections.abc import Sequence

from tfexport.corpus.assembly import Outcome
from tfexport.corpus.partitions import Partition
from tfexport.corpus.report import Advance, CorpusReport
from tfexport.corpus.stages import Step


class Progress:
    """Counts what comes of the pieces of partitions.

    Attributes:
        report: of the run so far.
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.report = CorpusReport(partitions=len(partitions))
        self._sizes = {found.name: found.size for found in partitions}
        self._total = sum(self._sizes.values())
        self._left: dict[str, int] = {}  # pieces of partitions that have begun
        self._failed = set[str]()
        self._done = self._own = 0.0  # bytes: all that need no more work, those by this run's
        self._begun = time.monotonic()

    def take(self, step: Step) -> bool:
        """Count a piece, or a partition without any; whether its partition can now be joined."""
        report, name = self.report, step.name
        report.stopped = report.stopped or step.stopped
        if step.stopped is not None:
            return False
        if step.outcome is not None and step.pieces and not step.reused:
            report.decoded_rows += step.outcome.rows
            report.tokens += step.outcome.tokens
        if step.failed is not None:
            self._fail(name, step.failed, step.pieces)
            return False
        if name in self._failed:
            return False
        if step.outcome is not None and not step.pieces:  # it was complete
            report.add(name, step.outcome, already=True)
            self._done += self._sizes[name]
            return False
        size = self._sizes[name] / max(step.pieces, 1)
        self._done += size
        self._own += 0 if step.reused else size
        self._left[name] = self._left.get(name, max(step.pieces, 1)) - 1
        return not self._left[name]

    def take_joined(self, step: Step, outdated: bool) -> None:
        """Count a partition that was joined, or could not be.

        Args:
            step: what came of it.
            outdated: an output of other input, bundle or options was replaced.
        """
        report = self.report
        report.stopped = report.stopped or step.stopped
        if step.failed is not None:
            self._fail(step.name, step.failed, step.pieces)
        elif step.stopped is None:
            report.outdated += outdated
            report.add(step.name, step.outcome or Outcome(), already=False)

    def advance(self) -> Advance:
        """How far the run has come."""
        report, left = self.report, None
        if self._own:
            left = (time.monotonic() - self._begun) * (self._total - self._done) / self._own
        done = self._done / self._total if self._total else 1.0
        return Advance(done, report.decoded_rows, report.tokens, report.errors, left)

    def end(self) -> CorpusReport:
        """The report of the run."""
        self.report.seconds = time.monotonic() - self._begun
        return self.report

    def _fail(self, name: str, reason: str, pieces: int) -> None:
        """Count a failure, the first one of its partition."""
        if name in self._failed:
            return
        self._failed.add(name)
        self.report.fail(name, reason)
        pieces = max(pieces, 1)
        self._done += self._sizes[name] * self._left.pop(name, pieces) / pieces
