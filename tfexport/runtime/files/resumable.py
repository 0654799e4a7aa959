"""Translation of a file to a file in constant memory; a run that was killed can be resumed.

An unfinished OUTPUT has a journal, ``OUTPUT.progress``.
"""

import hashlib
import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from tfexport.runtime.files.line_stream import LineResult, LineTask, find_bad_lines, translate_lines
from tfexport.runtime.options import DEFAULTS
from tfexport.runtime.parallel.workers import rows_ahead
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.codec import PLAIN

# The journal next to an unfinished output, ``OUTPUT.progress``.
#
# JSON lines. The first is an object with everything that the output depends on (input, bundle,
# options), each other names an input line that could not be decoded: ``{"bad": 7}``. The file is
# removed when the output is complete.


LONGEST = 1 << 24  # bytes of a line, far more than a journal's lines need


def progress_path(output: Path) -> Path:
    """The path of an output's journal."""
    return output.with_name(f"{output.name}.progress")


class Journal:
    """The journal of an output: JSON lines, first everything it depends on, then bad lines."""

    def __init__(self, output: Path, made_of: Mapping[str, Any], bad: Sequence[int] = ()) -> None:
        """Start a journal; an existing one is replaced.

        Args:
            output: the output file.
            made_of: everything that the output depends on, in JSON's types.
            bad: numbers of lines that an earlier run could not decode.
        """
        self._path = progress_path(output)
        partial = self._path.with_name(f"{self._path.name}.new")
        # Atomic: if this run is killed now, the notes of an earlier run must remain.
        with partial.open("wb") as file:
            _note(file, made_of)
            for number in bad:
                _note(file, {"bad": number})
        partial.replace(self._path)
        self._file = self._path.open("ab")

    def note_bad(self, number: int) -> None:
        """Record a bad line, before its output line is written."""
        _note(self._file, {"bad": number})
        self._file.flush()

    def close(self) -> None:
        """Close the file without removing it: another run may resume the output."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file when the output is complete."""
        self.close()
        self._path.unlink(missing_ok=True)


def _note(file: BinaryIO, value: Mapping[str, Any]) -> None:
    file.write(json.dumps(value, sort_keys=True).encode() + b"\n")


def read_journal(output: Path) -> tuple[dict[str, Any], list[int]]:
    """Read what an unfinished output was made of, and its bad lines.

    Raises:
        OutputExistsError: the journal is damaged, or is not a journal.
    """
    path = progress_path(output)
    notes = _read_notes(path)
    number, made_of = next(notes, (1, None))
    if not isinstance(made_of, dict):
        raise _damaged(output, path, number)
    bad = []
    for number, note in notes:
        line = note.get("bad") if isinstance(note, dict) else None
        if type(line) is not int or line < 1:
            raise _damaged(output, path, number)
        bad.append(line)
    return made_of, bad


def _read_notes(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line's number and value; None if it cannot be parsed.

    A torn last line is skipped: a run was killed while it wrote it.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if not line.endswith(b"\n") and len(line) < LONGEST:
                return
            try:
                value = json.loads(line.decode())
            except (ValueError, RecursionError):
                value = None
            yield number, value


def _damaged(output: Path, path: Path, number: int) -> OutputExistsError:
    return OutputExistsError(Message(
        f"{output}: line {number} of {path.name} is damaged, so the run cannot be resumed. "
        "Start again with ", Option("force", True), ".",
    ))  # fmt: skip


BLOCK = 1 << 20
SCORE_TOLERANCE = 1e-3  # scores of the same model on another processor


def read_bad_lines(output: Path, made_of: Mapping[str, Any]) -> list[int]:
    """Read the bad lines of an unfinished output, after a check that it belongs to this run.

    Raises:
        OutputExistsError: it was started with another input, bundle or options, which are named.
    """
    began, bad = read_journal(output)
    if "source" in began and began["source"] is None:
        raise _begin_anew(f"{output}: was started from a pipe, so it cannot be resumed.")
    differing = sorted(key for key in {*began, *made_of} if began.get(key) != made_of.get(key))
    if differing:
        raise _begin_anew(
            f"{output}: was started with another {', '.join(differing)}, so it cannot be resumed. "
            "Use the same input, bundle and options."
        )
    return bad


def cut_torn_lines(output: Path, lines_per_input: int) -> int:
    """Truncate an output to complete groups of lines; returns how many groups are left."""
    ends = 0
    keep = position = 0
    with output.open("r+b") as file:
        while block := file.read(BLOCK):
            start = 0
            while (at := block.find(b"\n", start)) >= 0:
                ends += 1
                start = at + 1
                if ends % lines_per_input == 0:
                    keep = position + start
            position += len(block)
        file.truncate(keep)
    return ends // lines_per_input


def check_finished(
    engine: Engine,
    task: LineTask,
    lines: InputLines,
    prefixes: Iterable[bytes | tuple[int, ...]],
    output: Path,
    on_result: Callable[[LineResult], object],
) -> list[int]:
    """Check a finished output, which has no journal, against this run, and find its bad lines.

    There is no record of how it was made, so its first lines are decoded again. Bad lines are found
    without decoding.

    Raises:
        OutputExistsError: this input, bundle and options produce other lines.
    """
    options, lines_per_input = task.options, task.line_format.lines_per_input
    bad: list[int] = []
    written, torn = _count_lines(output)
    if torn:
        raise _is_not_ours(output, f"{written} lines and half a one")
    # Sampling without a seed, or a callback, may give other lines each time.
    repeatable = ("seed" in options.given or not options.sampling) and options.callback is None
    compared = rows_ahead(options) if repeatable else 0
    with output.open("rb") as file:
        for result in translate_lines(
            engine, islice(lines, compared), task, prefixes=prefixes,
            chunk=max(compared, 1),
        ):  # fmt: skip
            expected = [f"{line}\n".encode() for line in task.line_format.write(result)]
            if not all(map(_is_alike, expected, islice(file, lines_per_input))):
                raise _begin_anew(
                    f"{output}: line {(result.number - 1) * lines_per_input + 1} is not what this "
                    "input, bundle and options give. Name another output."
                )
            if result.problem is not None:
                bad.append(result.number)
                on_result(result)
    for result in find_bad_lines(engine, lines, task, prefixes=prefixes, first=compared + 1):
        bad.append(result.number)
        on_result(result)
    if written != lines.count * lines_per_input:
        whole = lines.count * lines_per_input
        raise _is_not_ours(output, f"{written} lines, where {whole} were expected")
    return bad


def _is_not_ours(output: Path, found: str) -> OutputExistsError:
    return _begin_anew(
        f"{output}: {found}, and no {progress_path(output).name}: it is not an unfinished output "
        "of this command. Name another output."
    )


def _begin_anew(problem: str) -> OutputExistsError:
    return OutputExistsError(Message(f"{problem} Or start again with ", Option("force", True), "."))


def _is_alike(expected: bytes, found: bytes) -> bool:
    """Whether two lines are equal, except for rounding and words of errors in JSON."""
    if expected == found:
        return True
    try:
        values = json.loads(expected), json.loads(found)
    except (ValueError, RecursionError):
        return False
    for value in values:
        # Python and the command line spell options differently.
        if isinstance(value, dict) and isinstance(value.get("error"), str):
            value["error"] = ""
    return isinstance(values[0], dict) and _is_close(*values)


def _is_close(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return list(expected) == list(found) and all(
            _is_close(expected[key], found[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_is_close, expected, found))
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE)
    return type(expected) is type(found) and bool(expected == found)


def _count_lines(path: Path) -> tuple[int, bool]:
    """The number of complete lines, and whether an incomplete one follows."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count, last != b"\n"


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
        OutputExistsError: it exists and neither ``force`` nor ``resume`` is given, it is the input,
            another run is writing it, or its folder does not exist.
        ConfigError: ``force`` and ``resume`` are both given.
    """
    check_folder(output)
    check_unlocked(Path(os.path.realpath(output)))
    _check_free(source, output, force, resume)


def _check_free(source: Path | None, output: Path, force: bool, resume: bool) -> None:
    """As ``check_output``, but without the lock."""
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
    on_result: Callable[[LineResult], object] = lambda line: None,
    advance: Advance = lambda lines, offset: None,
) -> FileSummary:
    """Translate a file line by line.

    Args:
        engine: the engine of an open bundle.
        source: UTF-8 lines: a path, or a binary stream. It is opened and read once; ``resume``
            needs a file, otherwise a pipe is possible.
        output: written line by line; an incomplete last line is discarded on resuming.
        task: how to decode and write them.
        resume: continue an unfinished output; start a new one if there is none. It must have been
            started with the same source, bundle, options and format.
        force: replace an output that exists.
        on_result: called with every result; for a finished output, only with its bad lines.
        advance: called after each batch, in any thread, with the number of finished lines and an
            estimate of their bytes.

    Raises:
        OutputExistsError: the output exists, was started with other input or options, or is being
            written by another process.
        ConfigError: ``resume`` with an input that can be read only once.
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
        _check_free(None, output, force, resume)  # another run may have written it meanwhile
        made_of = _identity(engine, task, inputs)
        prefixes = inputs[1] if len(inputs) > 1 else repeat(task.prefix)
        done, bad = 0, list[int]()
        if resume and output.exists():
            if not progress_path(output).exists():
                bad = check_finished(engine, task, lines, prefixes, output, on_result)
                return FileSummary(lines.count, lines.count, tuple(bad))
            bad = read_bad_lines(output, made_of)
            done = cut_torn_lines(output, task.line_format.lines_per_input)
            bad = [number for number in bad if number <= done]
            _skip(inputs, done, output)
        journal = stack.enter_context(closing(Journal(output, made_of, bad)))
        progress = _Progress(lines, done, on_result, advance)
        bad += _append(engine, task, prefixes, output, journal=journal, progress=progress)
        journal.remove()
    return FileSummary(lines.count, done, tuple(bad))


class _Progress:
    """Counts lines, and calls the callbacks of a run."""

    def __init__(
        self,
        lines: InputLines,
        done: int,
        on_result: Callable[[LineResult], object],
        advance: Advance,
    ) -> None:
        self.lines, self.done = lines, done
        self._on_result, self._advance = on_result, advance
        self._decoded, self._lock = done, threading.Lock()

    def decoded(self, lines: int) -> None:
        """Report decoded lines; more lines may have been read."""
        with self._lock:
            self._decoded += lines
            count, read = self._decoded, max(self.lines.count, 1)
            self._advance(count, self.lines.size * count // read)

    def written(self, line: LineResult) -> None:
        """Report a written line."""
        self._on_result(line)
        self.decoded(max(0, line.number - self._decoded))


def _append(
    engine: Engine,
    task: LineTask,
    prefixes: Iterable[bytes | tuple[int, ...]],
    output: Path,
    *,
    journal: Journal,
    progress: _Progress,
) -> list[int]:
    """Translate and append the remaining lines; return the numbers of bad ones."""
    bad, lines, done = list[int](), progress.lines, progress.done
    # Append mode: a write of another program changes the file's size, which is checked.
    with output.open("ab") as sink:
        if not done:
            sink.truncate(0)
        size = os.fstat(sink.fileno()).st_size
        # At a terminal each line is translated at once, and so is a pipe with a batch size of 1.
        at_once = task.options.batch_size == 1 and not lines.is_file
        for result in translate_lines(
            engine, lines, task, prefixes=prefixes,
            first=done + 1, chunk=1 if at_once or lines.is_terminal else rows_ahead(task.options),
            decoded=progress.decoded,
        ):  # fmt: skip
            if result.problem is not None:
                bad.append(result.number)
                # Recorded before the output line is written, so that every written bad line is
                # recorded.
                journal.note_bad(result.number)
            written = "".join(f"{line}\n" for line in task.line_format.write(result))
            size += sink.write(written.encode())
            sink.flush()
            progress.written(result)
        _check_complete(sink, output, size)
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


def _check_complete(sink: BinaryIO, output: Path, size: int) -> None:
    """Flush an output to disk, and check that it is complete."""
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
    on_result: Callable[[LineResult], object] = lambda line: None,
) -> int:
    """Translate lines into a stream that is open, such as a pipe or a terminal.

    Args:
        engine: the engine of an open bundle.
        source: UTF-8 lines: a path, or a binary stream.
        sink: flushed after every line.
        task: how to decode and write the lines.
        on_result: called with every result, after it is written.

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
        # At a terminal each line is translated at once.
        at_once = lines.is_terminal or task.options.batch_size == 1
        for line in translate_lines(
            engine, lines, task, prefixes=prefixes,
            chunk=1 if at_once else rows_ahead(task.options),
        ):  # fmt: skip
            bad += line.problem is not None
            sink.writelines(f"{text}\n" for text in task.line_format.write(line))
            sink.flush()
            on_result(line)
    return bad


def _identity(engine: Engine, task: LineTask, inputs: Sequence[InputLines]) -> dict[str, Any]:
    """Everything that the output depends on, as JSON values; batching has no influence."""
    files = {name: entry.sha256 for name, entry in engine.manifest.files.items()}
    without_influence = ("callback", "batch_size", "batch_type")
    asked = {
        name: task.options.given.get(name, default)
        for name, default in DEFAULTS.items()
        if name not in without_influence
    }
    lines, *prefixes = inputs
    framing = task.options.framing
    made: dict[str, Any] = {
        "source": lines.fingerprint(),
        "prefix_file": prefixes[0].fingerprint() if prefixes else None,
        "prefix": list(task.prefix),
        "bundle": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        "options": asked,
        "terms": None if task.terms is None else _digest(task.terms),
        "languages": None if framing == PLAIN else (framing.before, framing.mark, framing.after),
        **task.line_format.identity(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def _digest(terms: Terms) -> str:
    return hashlib.sha256(json.dumps(terms.terms).encode()).hexdigest()
