"""The report of a run over a corpus, while it runs and at its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tfexport.corpus.assembly import Outcome


@dataclass(frozen=True)
class Advance:
    """How far a run has come.

    Attributes:
        done: share of the input's bytes, from 0 to 1.
        rows: that are done, those of earlier runs included.
        tokens: that this run has decoded.
        errors: rows that could not be decoded.
    """

    done: float
    rows: int
    tokens: int
    errors: int


Tell = Callable[[Advance], object]


@dataclass
class CorpusReport:
    """The outcome of a run.

    Attributes:
        partitions: files of the input.
        finished: of them, by this run.
        already: of them, by earlier runs.
        outdated: of those finished, whose old output was of other input, bundle or options.
        rows: in all outputs that are complete.
        decoded_rows: that this run has decoded.
        tokens: that this run has decoded.
        errors: rows in complete outputs that could not be decoded.
        seconds: of the run.
        cores: that its workers had, at most.
        row_errors: partition to number and error of its first bad rows.
        failed: partition to the reason why it could not be translated.
        stopped: why the run ended early, such as a full disk; None if it did not.
    """

    partitions: int = 0
    finished: int = 0
    already: int = 0
    outdated: int = 0
    rows: int = 0
    decoded_rows: int = 0
    tokens: int = 0
    errors: int = 0
    seconds: float = 0.0
    cores: int = 0
    row_errors: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every row of every partition has its translation."""
        whole = self.finished + self.already == self.partitions
        return whole and not self.errors and not self.failed and self.stopped is None

    def add(self, name: str, outcome: Outcome, *, already: bool) -> None:
        """Count a partition whose output is complete."""
        self.already += already
        self.finished += not already
        self.rows += outcome.rows
        self.errors += outcome.errors
        if outcome.samples:
            self.row_errors[name] = list(outcome.samples)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return {
            "complete": self.complete,
            "partitions": self.partitions,
            "finished": self.finished,
            "already_finished": self.already,
            "outdated": self.outdated,
            "rows": self.rows,
            "decoded_rows": self.decoded_rows,
            "tokens": self.tokens,
            "errors": self.errors,
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
        }
