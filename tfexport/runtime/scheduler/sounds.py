"""Batches of sounds: those of all callers that run have their next windows decoded together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tfexport.runtime.model.abandoned import AbandonedError
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler.submission import (
    Ended,
    Observer,
    RunningBatch,
    SubmissionRow,
    any_awaited,
)
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.speech.transcriber import Sound, Transcriber
from tfexport.runtime.speech.transcription import Segment

# Windows that are decoded together, as ``TranscriptionOptions`` has it. The memory of a window of a
# large model is half a gigabyte, whatever is said in it.
MOST_WINDOWS = 8
# Of rows that are sounds: one row of a batch each. The transcriber has the options of the windows.
ONE_WINDOW = ResolvedOptions.of(DecodingOptions(), bos_id=0, end_tokens=(0,), max_length=1)
OnSegments = Callable[[Sequence[Segment]], object]


@dataclass(frozen=True, eq=False, kw_only=True)
class SoundRequest(Request):
    """A sound to transcribe; the row of one caller.

    Attributes:
        transcriber: its options. Sounds of one transcriber share batches.
        sound: how far it is; when the submission is done, it has ended.
        on_segments: called by the scheduler's thread with the segments of each window.
    """

    transcriber: Transcriber
    sound: Sound
    on_segments: OnSegments | None = None

    @property
    def length(self) -> int:
        """The number of its windows, at least."""
        return -(-self.sound.frames // self.transcriber.window_frames)


class SoundBatch(RunningBatch):
    """See ``RunningBatch``; a step decodes a window of each row, which is a sound.

    A row ends with its sound. Others enter between two steps.
    """

    def __init__(self, capacity: int, observer: Observer) -> None:
        super().__init__(min(capacity, MOST_WINDOWS))
        self._observer = observer

    def enter(self, rows: Sequence[SubmissionRow]) -> None:
        """See ``RunningBatch``; the languages of sounds are found."""
        for transcriber, group in _groups(rows):
            transcriber.begin([_asked(row).sound for row in group])
        super().enter(rows)

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        for transcriber, group in _groups(self.rows):
            self._step(transcriber, group)
        ended = [row for row in self.rows if _asked(row).sound.ended]
        self._remove(ended)
        return [(row, [_hypothesis(_asked(row).sound)]) for row in ended]

    def _step(self, transcriber: Transcriber, rows: Sequence[SubmissionRow]) -> None:
        sounds, going = [_asked(row).sound for row in rows], partial(any_awaited, rows)
        first = [sound for sound in sounds if not sound.seek]
        made = [len(sound.segments) for sound in sounds]
        try:
            failed = {id(sound): error for sound, error in transcriber.step(sounds, going)}
        except AbandonedError:  # all rows have ended
            self._remove(rows)
            return
        except Exception as error:  # an error of onnxruntime: only these rows fail
            for row in rows:
                row.submission.fail(error)
            self._remove(rows)
            return
        now = time.monotonic()
        for row, sound, before in zip(rows, sounds, made, strict=True):
            if id(sound) in failed:
                row.submission.fail(failed[id(sound)])
                self._remove([row])
                continue
            if sound in first:
                self._observer.first_token(now - row.submission.submitted)
            _tell(row, sound.segments[before:])

    def _remove(self, rows: Sequence[SubmissionRow]) -> None:
        gone = set(map(id, rows))
        self.rows = [row for row in self.rows if id(row) not in gone]


def _groups(rows: Sequence[SubmissionRow]) -> list[tuple[Transcriber, list[SubmissionRow]]]:
    """Rows by their transcribers, in the order of the first of each."""
    found: dict[int, tuple[Transcriber, list[SubmissionRow]]] = {}
    for row in rows:
        transcriber = _asked(row).transcriber
        found.setdefault(id(transcriber), (transcriber, []))[1].append(row)
    return [*found.values()]


def _asked(row: SubmissionRow) -> SoundRequest:
    assert isinstance(row.request, SoundRequest)
    return row.request


def _tell(row: SubmissionRow, segments: Sequence[Segment]) -> None:
    """Call the row's callback, whose error fails this row only."""
    told = _asked(row).on_segments
    if told is None or not segments or row.submission.future.done():
        return
    try:
        told(segments)
    except Exception as error:
        row.submission.fail(error)


def _hypothesis(sound: Sound) -> Hypothesis:
    """All tokens of a sound, as the scheduler counts them."""
    return Hypothesis([token for each in sound.segments for token in each.tokens], 0.0)
