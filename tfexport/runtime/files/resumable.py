"""Translation of a file to a file in constant memory; a run that was killed can be resumed.

Beside an unfinished OUTPUT stands its journal, ``OUTPUT.progress``; see ``journal``.
"""

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tfexport.atomic import check_folder, naming
from tfexport.errors import ConfigError, Message, Option, OutputExistsError
from tfexport.locks import check_unlocked, writing
from tfexport.runtime.engine import Engine
from tfexport.runtime.files.input_lines import InputLines, Source, open_lines
from tfexport.runtime.files.journal import Journal, progress_path
from tfexport.runtime.files.line_stream import LineResult, translate_lines
from tfexport.runtime.files.line_task import LineTask
from tfexport.runtime.files.resume import check_finished, cut_torn_lines, read_bad_lines
from tfexport.runtime.options import DEFAULTS
from tfexport.runtime.parallel.batches import rows_ahead
from tfexport.runtime.text.framing import PLAIN

_FORCE, _RESUME = Option("force", True), Option("resume", True)


Advance = Callable[[int, int], object]


@dataclass(frozen=True)
class FileSummary:
    """The outcome of a run over a file.

    Attributes:
        lines: number of input lines.
        resumed: how many of them an earlier run had translated.
        bad: numbers of lines that could not be decoded, in all runs; their output is empty.
    """

    lines: int
    resumed: int
    bad: tuple[int, ...]


def check_output(source: Path | None, output: Path, force: bool, resume: bool) -> None:
    """Refuse an output that exists or cannot be written, before any work.

    Raises:
        OutputExistsError: it exists and neither ``force`` nor ``resume`` is given, it is the
            input, another run is writing it, or it has no folder to be in.
        ConfigError: ``force`` and ``resume`` are both given.
    """
    check_folder(output)
    check_unlocked(Path(os.path.realpath(output)))
    _check_free(source, output, force, resume)


def _check_free(source: Path | None, output: Path, force: bool, resume: bool) -> None:
    """As ``check_output``, whoever is writing it."""
    if force and resume:
        raise ConfigError(
            Message(_FORCE, " starts again and ", _RESUME, " continues: give one of them.")
        )
    taken = os.path.lexists(output)
    both = taken and source is not None and source.exists() and output.exists()
    if both and source is not None and source.samefile(output):
        raise _is_input(output)
    if taken and not output.is_file():
        raise OutputExistsError(f"{output}: exists and is not a file. Choose another output.")
    if taken and not force and not resume:
        hint = Message(_FORCE, " replaces it.")
        if progress_path(output).exists():
            hint = Message(
                "It is unfinished: ", _RESUME, " continues it, ", _FORCE, " starts again."
            )
        raise OutputExistsError(Message(f"{output}: already exists. ", hint))


def _is_input(output: Path) -> OutputExistsError:
    return OutputExistsError(f"{output}: is also the input. Name another output.")


def translate_file(
    engine: Engine,
    source: Source,
    output: str | os.PathLike[str],
    task: LineTask,
    *,
    resume: bool = False,
    force: bool = False,
    tell: Callable[[LineResult], object] = lambda line: None,
    advance: Advance = lambda lines, offset: None,
) -> FileSummary:
    """Translate a file line by line.

    Args:
        engine: of an open bundle.
        source: UTF-8 lines: a path, or a binary stream. It is opened and read once, so a pipe is
            as good as a file, but for ``resume``.
        output: written line by line; an incomplete last line is discarded on resuming.
        task: how to decode and write them.
        resume: continue an unfinished output; start a new one if there is none. It must have been
            begun with the same source, bundle, options and format.
        force: replace an output that exists.
        tell: called with every result; for a finished output, with its bad lines only.
        advance: called when a batch is decoded, in any thread, with the number of lines that are
            done and about how many bytes of the source they have.

    Raises:
        OutputExistsError: the output exists, was begun with other input or options, or is being
            written by another process.
        ConfigError: ``resume``, and an input that can be read only once.
        OSError: a file cannot be read or written.
    """
    output = Path(output)
    check_output(None, output, force, resume)
    with ExitStack() as stack:
        stack.enter_context(naming(output, progress_path(output)))
        lines = stack.enter_context(open_lines(source))
        inputs = [lines]
        if task.prefix_file is not None:
            inputs.append(stack.enter_context(open_lines(task.prefix_file)))
        if any(file.is_at(output) for file in inputs):
            raise _is_input(output)
        _check_rereadable(inputs, resume)
        stack.enter_context(writing(Path(os.path.realpath(output))))
        _check_free(None, output, force, resume)  # which another run may have written meanwhile
        made_of = _identity(engine, task, inputs)
        prefixes = inputs[1] if len(inputs) > 1 else repeat(task.prefix)
        done, bad = 0, list[int]()
        if resume and output.exists():
            if not progress_path(output).exists():
                bad = check_finished(engine, task, lines, prefixes, output, tell)
                return FileSummary(lines.count, lines.count, tuple(bad))
            bad = read_bad_lines(output, made_of)
            done = cut_torn_lines(output, task.line_format.lines_per_input)
            bad = [number for number in bad if number <= done]
            _skip(inputs, done, output)
        journal = stack.enter_context(closing(Journal(output, made_of, bad)))
        told = _Told(lines, done, tell, advance)
        bad += _append(engine, task, prefixes, output, journal=journal, told=told)
        journal.remove()
    return FileSummary(lines.count, done, tuple(bad))


class _Told:
    """Who is told of a run's progress, and the lines of which it is."""

    def __init__(
        self,
        lines: InputLines,
        done: int,
        tell: Callable[[LineResult], object],
        advance: Advance,
    ) -> None:
        self.lines, self.done = lines, done
        self._tell, self._advance = tell, advance
        self._decoded, self._lock = done, threading.Lock()

    def decoded(self, lines: int) -> None:
        """Tell of lines that are decoded; those that have been read are more."""
        with self._lock:
            self._decoded += lines
            count, read = self._decoded, max(self.lines.count, 1)
            self._advance(count, self.lines.size * count // read)

    def written(self, line: LineResult) -> None:
        """Tell of a line, which needed no decoding if it is empty or bad."""
        self._tell(line)
        self.decoded(max(0, line.number - self._decoded))


def _append(
    engine: Engine,
    task: LineTask,
    prefixes: Iterable[bytes | tuple[int, ...]],
    output: Path,
    *,
    journal: Journal,
    told: _Told,
) -> list[int]:
    """Translate the remaining lines and append them; returns the numbers of bad ones."""
    bad, lines, done = list[int](), told.lines, told.done
    # Append mode: a write of another program in between shows in the file's size.
    with output.open("ab") as sink:
        if not done:
            sink.truncate(0)
        size = os.fstat(sink.fileno()).st_size
        # At a terminal each line is answered at once, and from a pipe with a batch size of 1.
        at_once = task.options.batch_size == 1 and not lines.is_file
        for result in translate_lines(
            engine, lines, task.options, ids=task.line_format.ids, prefixes=prefixes,
            first=done + 1, chunk=1 if at_once or lines.is_terminal else rows_ahead(task.options),
            decoded=told.decoded,
        ):  # fmt: skip
            if result.problem is not None:
                bad.append(result.number)
                # Noted before its output line is written, so that no written line lacks its note.
                journal.note_bad(result.number)
            written = "".join(f"{line}\n" for line in task.line_format.write(result))
            size += sink.write(written.encode())
            sink.flush()
            told.written(result)
        _check_whole(sink, output, size)
    return bad


def _check_rereadable(inputs: Sequence[InputLines], resume: bool) -> None:
    once = [file.name for file in inputs if not file.is_file]
    if resume and once:
        raise ConfigError(Message(
            _RESUME, f": {', '.join(once)} can be read only once, so that no other run could go on "
            "with it. Write it to a file first, or leave ", _RESUME, " out.",
        ))  # fmt: skip


def _skip(inputs: Sequence[InputLines], done: int, output: Path) -> None:
    """Skip the lines that an earlier run has translated."""
    for file in inputs:
        deque(islice(file, done), maxlen=0)
    if inputs[0].count < done:
        raise OutputExistsError(Message(
            f"{output}: has {done} lines, and {inputs[0].name} only {inputs[0].count}: it was "
            "started with another input. Start again with ", _FORCE, ".",
        ))  # fmt: skip


def _check_whole(sink: BinaryIO, output: Path, size: int) -> None:
    """Flush an output to disk, and check that it is complete.

    Raises:
        OutputExistsError: another program, which ignores locks, has written or removed it.
    """
    os.fsync(sink.fileno())
    status = os.fstat(sink.fileno())
    try:
        whole = status.st_size == size and os.path.samestat(status, output.stat())
    except FileNotFoundError:
        whole = False
    if not whole:
        raise OutputExistsError(Message(
            f"{output}: another program changed it while it was written. Write it again with ",
            _FORCE, ".",
        ))  # fmt: skip


def translate_stream(
    engine: Engine,
    source: Source,
    sink: TextIO,
    task: LineTask,
    *,
    tell: Callable[[LineResult], object] = lambda line: None,
) -> int:
    """Translate lines into a stream that is open, such as a pipe or a terminal.

    Args:
        engine: of an open bundle.
        source: UTF-8 lines: a path, or a binary stream.
        sink: flushed after every line.
        task: how to decode and write the lines.
        tell: called with every result, before it is written.

    Returns:
        How many lines could not be decoded.

    Raises:
        OSError: a file cannot be read or written.
    """
    bad = 0
    with ExitStack() as stack:
        lines = stack.enter_context(open_lines(source))
        prefixes: Iterable[bytes | tuple[int, ...]] = repeat(task.prefix)
        if task.prefix_file is not None:
            prefixes = stack.enter_context(open_lines(task.prefix_file))
        # At a terminal each line is answered at once.
        at_once = lines.is_terminal or task.options.batch_size == 1
        for line in translate_lines(
            engine, lines, task.options, ids=task.line_format.ids, prefixes=prefixes,
            chunk=1 if at_once else rows_ahead(task.options),
        ):  # fmt: skip
            bad += line.problem is not None
            tell(line)
            sink.writelines(f"{text}\n" for text in task.line_format.write(line))
            sink.flush()
    return bad


def _identity(engine: Engine, task: LineTask, inputs: Sequence[InputLines]) -> dict[str, Any]:
    """Everything that the output's content depends on, as JSON values; batching does not matter."""
    files = {name: entry.sha256 for name, entry in engine.manifest.files.items()}
    without_influence = ("callback", "batch_size", "batch_type")
    asked = {
        name: task.options.given.get(name, default)
        for name, default in DEFAULTS.items()
        if name not in without_influence
    }
    lines, *prefixes = inputs
    told = task.options.framing
    made: dict[str, Any] = {
        "source": lines.fingerprint(),
        "prefix_file": prefixes[0].fingerprint() if prefixes else None,
        "prefix": list(task.prefix),
        "bundle": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        "options": asked,
        "languages": None if told == PLAIN else (told.before, told.mark, told.after),
        **task.line_format.identity(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain
