"""A file in, a file out, in constant memory; a run that was killed can go on.

Beside an unfinished OUTPUT stands ``OUTPUT.progress``: what is being made, and the lines that could
not be decoded. It is removed when the output is whole.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tfexport.errors import ConfigError, OutputExistsError
from tfexport.runtime.batches import rows_ahead
from tfexport.runtime.lines import Format, LineResult, translate_lines
from tfexport.runtime.search.settings import Settings
from tfexport.runtime.translator import Translator

HEAD = 1 << 20  # of the input, by which it is known again


@dataclass(frozen=True)
class FileSummary:
    """What became of a file.

    Attributes:
        lines: of the input.
        resumed: how many of them an earlier run had done.
        bad: numbers of those that could not be decoded, in all runs; their output is empty.
    """

    lines: int
    resumed: int
    bad: tuple[int, ...]


def progress_path(output: Path) -> Path:
    """Where the progress of an unfinished output stands."""
    return output.with_name(f"{output.name}.progress")


def check_output(source: Path | None, output: Path, force: bool, resume: bool) -> None:
    """Refuse an output that stands in the way, before any work.

    Raises:
        OutputExistsError: it exists and neither ``force`` nor ``resume`` is given, or it is the
            input.
        ConfigError: ``force`` and ``resume`` are both given.
    """
    if force and resume:
        raise ConfigError("--force begins anew and --resume goes on: give one of them.")
    taken = os.path.lexists(output)
    both = taken and source is not None and source.exists() and output.exists()
    if both and source is not None and source.samefile(output):
        raise OutputExistsError(f"{output}: is also the input. Name another output.")
    if taken and not output.is_file():
        raise OutputExistsError(f"{output}: exists and is not a file. Choose another output.")
    if taken and not force and not resume:
        hint = "--force replaces it."
        if progress_path(output).exists():
            hint = "It is unfinished: --resume goes on with it, --force begins anew."
        raise OutputExistsError(f"{output}: already exists. {hint}")


def translate_file(
    translator: Translator,
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    settings: Settings,
    write: Format,
    *,
    ids: bool = False,
    prefix: tuple[int, ...] = (),
    prefix_file: str | os.PathLike[str] | None = None,
    described: Mapping[str, Any] | None = None,
    lines_each: int = 1,
    resume: bool = False,
    force: bool = False,
    tell: Callable[[LineResult, int], object] = lambda line, offset: None,
) -> FileSummary:
    """Translate a file line by line.

    Args:
        translator: of an open bundle.
        source: UTF-8 lines.
        output: written as the lines come; complete lines only count.
        settings: how to decode.
        write: a result to its output lines.
        ids: see ``translate_lines``.
        prefix: what every target begins with.
        prefix_file: or a line for each line of the source.
        described: everything that the output depends on besides source and bundle. A run goes on
            only with an output that was begun with the same.
        lines_each: how many output lines ``write`` gives for each input line.
        resume: go on with an output that was not finished; begin it if there is none.
        force: replace an output that exists.
        tell: called with every result and how many bytes of the source have been read.

    Raises:
        OutputExistsError: the output stands in the way, or was begun in another way.
        OSError: a file cannot be read or written.
    """
    source, output = Path(source), Path(output)
    check_output(source, output, force, resume)
    wanted = _identity(translator, source, prefix_file, prefix, described or {})
    done, bad = 0, list[int]()
    with ExitStack() as stack:
        lines = stack.enter_context(source.open("rb"))
        prefixes = stack.enter_context(Path(prefix_file).open("rb")) if prefix_file else None
        journal = progress_path(output)
        if resume and output.exists():
            if not journal.exists():
                return _finished(source, output, lines_each)
            bad = _read_journal(journal, wanted, output)
            done = _cut(output, lines_each)
            bad = [number for number in bad if number <= done]
        _begin_journal(journal, wanted, bad)
        notes = stack.enter_context(journal.open("a", encoding="utf-8"))
        sink = stack.enter_context(output.open("ab" if done else "wb"))
        for file in (lines, prefixes) if done else ():
            if file is not None:
                next(islice(file, done - 1, None), None)
        number = done
        for result in translate_lines(
            translator, lines, settings, ids=ids, first=done + 1,
            prefixes=prefixes if prefixes is not None else _always(prefix),
            chunk=rows_ahead(settings.options),
        ):  # fmt: skip
            number = result.number
            if result.problem is not None:
                bad.append(number)
                # Before the output line: a line that is there has said what is wrong with it.
                _note(notes, {"bad": number})
            sink.write("".join(f"{line}\n" for line in write(result)).encode())
            tell(result, lines.tell())
    journal.unlink()
    return FileSummary(number, done, tuple(bad))


def describe_run(
    settings: Settings, jsonl: bool = False, alignment: bool = False, ids: bool = False
) -> dict[str, Any]:
    """What of the options an output depends on; not how its lines are batched."""
    free = ("callback", "batch_size", "batch_type")
    options = {name: value for name, value in vars(settings.options).items() if name not in free}
    return {"options": options, "format": [jsonl, alignment, ids]}


def _always(prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    while True:
        yield prefix


def _identity(
    translator: Translator,
    source: Path,
    prefix_file: str | os.PathLike[str] | None,
    prefix: tuple[int, ...],
    described: Mapping[str, Any],
) -> dict[str, Any]:
    """What an output is made of, in JSON's types."""
    files = {name: entry.sha256 for name, entry in translator.manifest.files.items()}
    made: dict[str, Any] = {
        "source": _fingerprint(source),
        "prefix_file": _fingerprint(Path(prefix_file)) if prefix_file else None,
        "prefix": list(prefix),
        "bundle": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        **described,
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return {"size": path.stat().st_size, "head": hashlib.sha256(head).hexdigest()}


def _begin_journal(journal: Path, wanted: Mapping[str, Any], bad: Sequence[int]) -> None:
    # Whole or not at all: a kill in between must not lose what an earlier run noted.
    partial = journal.with_name(f"{journal.name}.new")
    with partial.open("w", encoding="utf-8") as notes:
        _note(notes, wanted)
        for number in bad:
            _note(notes, {"bad": number})
    partial.replace(journal)


def _note(notes: TextIO, value: Mapping[str, Any]) -> None:
    notes.write(json.dumps(value, sort_keys=True) + "\n")
    notes.flush()


def _read_journal(journal: Path, wanted: Mapping[str, Any], output: Path) -> list[int]:
    """The bad lines of an earlier run that made the same.

    Raises:
        OutputExistsError: it made something else, naming what differs.
    """
    notes = []
    for line in journal.read_text(encoding="utf-8").splitlines():
        try:
            notes.append(json.loads(line))
        except ValueError:
            break  # killed while it wrote this line
    began = notes[0] if notes and isinstance(notes[0], dict) else {}
    differing = sorted(key for key in {*began, *wanted} if began.get(key) != wanted.get(key))
    if differing:
        raise OutputExistsError(
            f"{output}: was begun with another {', '.join(differing)}, so it cannot be gone on "
            "with. Give the same input, bundle and options, or begin anew with --force."
        )
    return [note["bad"] for note in notes[1:] if isinstance(note, dict) and "bad" in note]


def _cut(output: Path, lines_each: int) -> int:
    """Cut off what is no whole group of lines; how many groups there are."""
    ends = 0
    keep = position = 0
    with output.open("r+b") as file:
        while block := file.read(HEAD):
            start = 0
            while (at := block.find(b"\n", start)) >= 0:
                ends += 1
                start = at + 1
                if ends % lines_each == 0:
                    keep = position + start
            position += len(block)
        file.truncate(keep)
    return ends // lines_each


def _finished(source: Path, output: Path, lines_each: int) -> FileSummary:
    """Of an output that has no journal: it is whole, or is not ours.

    Raises:
        OutputExistsError: it has not as many lines as the input would give.
    """
    lines, written = _count_lines(source), _count_lines(output)
    if written != lines * lines_each:
        raise OutputExistsError(
            f"{output}: {written} lines, where {lines * lines_each} were expected, and no "
            f"{progress_path(output).name}: it is not an unfinished output of this. Name another "
            "output, or begin anew with --force."
        )
    return FileSummary(lines, lines, ())


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return _count(file)


def _count(file: BinaryIO) -> int:
    return sum(1 for _ in file)
