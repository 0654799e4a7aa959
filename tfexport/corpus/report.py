"""The report of a run over a corpus, while it runs and at its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfexport.corpus.assembly import Outcome
from tfexport.corpus.partitions import Partition
from tfexport.corpus.stages import PieceStep

MOST_NAMED = 100  # files of each kind that a report names


@dataclass(frozen=True)
class Advance:
    """How far a run has come.

    Attributes:
        done: share of the input's bytes, from 0 to 1.
        rows: the number of rows that this run has decoded.
        tokens: the number of tokens that this run has decoded.
        errors: rows in complete outputs that could not be decoded.
        seconds_left: at the rate of this run; None while it has none.
    """

    done: float
    rows: int
    tokens: int
    errors: int
    seconds_left: float | None


OnAdvance = Callable[[Advance], object]


@dataclass
class CorpusReport:
    """The outcome of a run.

    Attributes:
        partitions: files of the input.
        finished: files that this run has finished.
        already: files that earlier runs have finished.
        outdated: finished files whose old output had another input, bundle or options.
        rows: in all outputs that are complete.
        decoded_rows: the rows that this run has decoded.
        tokens: the number of tokens that this run has decoded.
        errors: rows in complete outputs that could not be decoded.
        cut: rows in complete outputs whose translation was cut at its longest length.
        unknown: tokens of sources in complete outputs that the model does not know.
        with_unknown: rows with such tokens.
        seconds: the duration of the run.
        cores: the most cores that its workers had.
        with_errors: complete outputs with rows that could not be decoded.
        row_errors: partition to number and error of its first bad rows; at most 100 partitions.
        failures: partitions that could not be translated.
        failed: partition to the reason why it failed; at most 100 partitions.
        stopped: why the run ended early, such as a full disk; None if it did not.
        passed_over: files of the input with an unknown suffix, each with its problem.
    """

    partitions: int = 0
    finished: int = 0
    already: int = 0
    outdated: int = 0
    rows: int = 0
    decoded_rows: int = 0
    tokens: int = 0
    errors: int = 0
    cut: int = 0
    unknown: int = 0
    with_unknown: int = 0
    seconds: float = 0.0
    cores: int = 0
    with_errors: int = 0
    row_errors: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    failures: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None
    passed_over: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        """Partitions that were neither finished nor failed, because the run was stopped."""
        return self.partitions - self.finished - self.already - self.failures

    @property
    def complete(self) -> bool:
        """Whether every row of every partition has its translation."""
        return not (self.errors or self.failures or self.unfinished or self.stopped)

    def add(self, name: str, outcome: Outcome, *, already: bool) -> None:
        """Count a partition whose output is complete."""
        self.already += already
        self.finished += not already
        self.rows += outcome.rows
        self.errors += outcome.errors
        self.cut += outcome.cut
        self.unknown += outcome.unknown
        self.with_unknown += outcome.with_unknown
        self.with_errors += outcome.errors > 0
        if outcome.samples and len(self.row_errors) < MOST_NAMED:
            self.row_errors[name] = list(outcome.samples)

    def fail(self, name: str, reason: str) -> None:
        """Count a partition that cannot be translated."""
        self.failures += 1
        if len(self.failed) < MOST_NAMED:
            self.failed[name] = reason

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return {
            "complete": self.complete,
            "partitions": self.partitions,
            "finished": self.finished,
            "already_finished": self.already,
            "outdated": self.outdated,
            "failures": self.failures,
            "unfinished": self.unfinished,
            "rows": self.rows,
            "decoded_rows": self.decoded_rows,
            "tokens": self.tokens,
            "errors": self.errors,
            "cut": self.cut,
            "unknown_tokens": self.unknown,
            "with_unknown_tokens": self.with_unknown,
            "with_errors": self.with_errors,
            "seconds": round(self.seconds, 3),
            "cores": self.cores,
            "tokens_per_second": round(rate, 1),
            "tokens_per_second_and_core": round(rate / self.cores, 1) if self.cores else 0.0,
            "row_errors": {
                name: [{"row": row, "error": error} for row, error in found]
                for name, found in sorted(self.row_errors.items())
            },
            "failed": dict(sorted(self.failed.items())),
            "stopped": self.stopped,
            "passed_over": self.passed_over[:MOST_NAMED],
            "files_passed_over": len(self.passed_over),
        }


class RunProgress:
    """Counts pieces, partitions and bytes of a run.

    Attributes:
        report: the report of the run so far.
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.report = CorpusReport(partitions=len(partitions))
        self._sizes = {found.name: found.size for found in partitions}
        self._total = sum(self._sizes.values())
        self._left: dict[str, int] = {}  # pieces of partitions that have started
        self._failed = set[str]()
        self._done = self._own = 0.0  # bytes that are done: by all runs, and by this run
        self._begun = time.monotonic()

    def take(self, step: PieceStep) -> bool:
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
        if step.outcome is not None and not step.pieces:  # it was already complete
            report.add(name, step.outcome, already=True)
            self._done += self._sizes[name]
            return False
        size = self._sizes[name] / max(step.pieces, 1)
        self._done += size
        self._own += 0 if step.reused else size
        self._left[name] = self._left.get(name, max(step.pieces, 1)) - 1
        return not self._left[name]

    def take_joined(self, step: PieceStep, outdated: bool) -> None:
        """Count a partition that was joined, or failed.

        Args:
            step: the last step of the partition.
            outdated: whether an output of another input, bundle or options was replaced.
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
        if name in self._failed:
            return
        self._failed.add(name)
        self.report.fail(name, reason)
        pieces = max(pieces, 1)
        self._done += self._sizes[name] * self._left.pop(name, pieces) / pieces
