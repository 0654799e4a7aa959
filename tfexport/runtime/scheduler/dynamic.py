"""Dynamic batching: rows that wait at the same time are decoded together to their ends."""

import dataclasses
import time
from collections.abc import Sequence
from functools import partial

from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.parallel.workers import make_batches
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.submission import (
    Ended,
    Observer,
    RunningBatch,
    SubmissionRow,
    any_awaited,
)
from tfexport.runtime.search import AbandonedError, ResolvedOptions, decode


class DynamicBatch(RunningBatch):
    """See ``RunningBatch``; a step decodes all rows with the same options to their ends."""

    def __init__(self, engine: Engine, capacity: int, observer: Observer) -> None:
        super().__init__(capacity)
        self._engine, self._observer = engine, observer

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        if not self.rows:
            return []
        first = self.rows[0]
        together = [row for row in self.rows if _shares(row, first)]
        batch = [together[i] for i in _batch_of_first(together)]
        chosen = set(map(id, batch))
        self.rows = [row for row in self.rows if id(row) not in chosen]
        try:
            found = self._decode(batch)
        except AbandonedError:  # all rows have ended
            return []
        except Exception as error:  # an error of onnxruntime: only these rows fail
            for row in batch:
                row.submission.fail(error)
            return []
        now = time.monotonic()
        for row in batch:
            self._observer.first_token(now - row.submission.submitted)
        return list(zip(batch, found, strict=True))

    def _decode(self, rows: Sequence[SubmissionRow]) -> list[list[Hypothesis]]:
        requests = [row.request for row in rows]
        options = dataclasses.replace(_told(rows[0]), going=partial(any_awaited, rows))
        return decode(self._engine.model, requests, options)


def _shares(row: SubmissionRow, other: SubmissionRow) -> bool:
    if row is other:
        return True
    streamed = row.submission.on_step is not None or other.submission.on_step is not None
    return not streamed and row.options == other.options


def _batch_of_first(rows: Sequence[SubmissionRow]) -> list[int]:
    """Indices of rows of similar length that may share a batch with the first one."""
    batches = make_batches([row.request for row in rows], rows[0].options)
    return next(batch for batch in batches if 0 in batch)


def _told(row: SubmissionRow) -> ResolvedOptions:
    """The row's options, with a callback if its submission has ``on_step``."""
    submission = row.submission
    if submission.on_step is None or row.options.beam_size > 1:
        return row.options

    def callback(step: Step) -> bool:
        submission.tell(step)
        return submission.is_over()

    return dataclasses.replace(row.options, callback=callback)
