"""A file in, a file out, in constant memory; a run that was killed can go on.

Beside an unfinished OUTPUT stands its journal, ``OUTPUT.progress``; see ``journal``.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from itertools import islice, repeat
from pathlib import Path
from typing import Any, BinaryIO

from tfexport.atomic import check_folder, naming
from tfexport.errors import ConfigError, OutputExistsError
from tfexport.locks import writing
from tfexport.runtime.files.journal import Journal, progress_path
from tfexport.runtime.files.line_format import Format, LineResult, translate_lines
from tfexport.runtime.files.line_stream import InputLines, Source, open_lines
from tfexport.runtime.files.resume import check_finished, cut_torn_lines, read_bad_lines
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.parallel.batches import rows_ahead
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.translator import Translator


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


def check_output(source: Path | None, output: Path, force: bool, resume: bool) -> None:
    """Refuse an output that stands in the way, before any work.

    Raises:
        OutputExistsError: it exists and neither ``force`` nor ``resume`` is given, it is the
            input, or it has no folder to be in.
        ConfigError: ``force`` and ``resume`` are both given.
    """
    if force and resume:
        raise ConfigError("--force begins anew and --resume goes on: give one of them.")
    check_folder(output)
    taken = os.path.lexists(output)
    both = taken and source is not None and source.exists() and output.exists()
    if both and source is not None and source.samefile(output):
        raise _is_input(output)
    if taken and not output.is_file():
        raise OutputExistsError(f"{output}: exists and is not a file. Choose another output.")
    if taken and not force and not resume:
        hint = "--force replaces it."
        if progress_path(output).exists():
            hint = "It is unfinished: --resume goes on with it, --force begins anew."
        raise OutputExistsError(f"{output}: already exists. {hint}")


def _is_input(output: Path) -> OutputExistsError:
    return OutputExistsError(f"{output}: is also the input. Name another output.")


def translate_file(
    translator: Translator,
    source: Source,
    output: str | os.PathLike[str],
    options: ResolvedOptions,
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
        source: UTF-8 lines: a path, or a binary stream. It is opened and read once, so a pipe is
            as good as a file, but for ``resume``.
        output: written as the lines come; complete lines only count.
        options: how to decode.
        write: a result to its output lines.
        ids: see ``translate_lines``.
        prefix: what every target begins with.
        prefix_file: or a line for each line of the source.
        described: everything that the output depends on besides source and bundle. A run goes on
            only with an output that was begun with the same.
        lines_each: how many output lines ``write`` gives for each input line.
        resume: go on with an output that was not finished; begin it if there is none.
        force: replace an output that exists.
        tell: called with every result and how many bytes of the source have been read; on
            going on with a finished output, with its bad lines.

    Raises:
        OutputExistsError: the output stands in the way, was begun in another way, or is being
            written by another process.
        ConfigError: ``resume``, and an input that can be read only once.
        OSError: a file cannot be read or written.
    """
    output = Path(output)
    check_output(None, output, force, resume)
    with ExitStack() as stack:
        stack.enter_context(naming(output, progress_path(output)))
        lines = stack.enter_context(open_lines(source))
        asked = stack.enter_context(open_lines(prefix_file)) if prefix_file is not None else None
        inputs = [lines] if asked is None else [lines, asked]
        if any(file.is_at(output) for file in inputs):
            raise _is_input(output)
        _check_rereadable(inputs, resume)
        stack.enter_context(writing(Path(os.path.realpath(output))))
        check_output(None, output, force, resume)  # which another run may have written meanwhile
        made_of = _describe(translator, lines, asked, prefix, described or {})
        prefixes = repeat(prefix) if asked is None else asked
        done, bad = 0, list[int]()
        if resume and output.exists():
            if not progress_path(output).exists():
                bad = check_finished(
                    translator, lines, prefixes, output, options, write, ids, lines_each, tell
                )
                return FileSummary(lines.count, lines.count, tuple(bad))
            bad = read_bad_lines(output, made_of)
            done = cut_torn_lines(output, lines_each)
            bad = [number for number in bad if number <= done]
            _skip(inputs, done, output)
        journal = stack.enter_context(closing(Journal(output, made_of, bad)))
        # To append: what another program does to the file in between shows in its size.
        sink = stack.enter_context(output.open("ab"))
        if not done:
            sink.truncate(0)
        size = os.fstat(sink.fileno()).st_size
        # A person who types wants an answer to every line, and so may who feeds a pipe.
        at_once = options.batch_size == 1 and not lines.is_file
        for result in translate_lines(
            translator, lines, options, ids=ids, first=done + 1, prefixes=prefixes,
            chunk=1 if at_once or lines.is_terminal else rows_ahead(options),
        ):  # fmt: skip
            if result.problem is not None:
                bad.append(result.number)
                # Before the output line: a line that is there has said what is wrong with it.
                journal.note_bad(result.number)
            size += sink.write("".join(f"{line}\n" for line in write(result)).encode())
            sink.flush()
            tell(result, lines.size)
        _check_whole(sink, output, size)
        journal.remove()
    return FileSummary(lines.count, done, tuple(bad))


def describe_run(
    options: ResolvedOptions, jsonl: bool = False, alignment: bool = False, ids: bool = False
) -> dict[str, Any]:
    """The options that an output depends on, as JSON values; not how its lines are batched."""
    free = ("callback", "batch_size", "batch_type")
    asked = {
        option.name: options.given.get(option.name, option.default)
        for option in fields(DecodingOptions)
        if option.name not in free
    }
    return {"options": asked, "format": [jsonl, alignment, ids]}


def _check_rereadable(inputs: Sequence[InputLines], resume: bool) -> None:
    once = [file.name for file in inputs if not file.is_file]
    if resume and once:
        raise ConfigError(
            f"--resume: {', '.join(once)} can be read only once, so that no other run could go on "
            "with it. Write it to a file first, or leave --resume out."
        )


def _skip(inputs: Sequence[InputLines], done: int, output: Path) -> None:
    """Read past the lines that an earlier run has done."""
    for file in inputs:
        deque(islice(file, done), maxlen=0)
    if inputs[0].count < done:
        raise OutputExistsError(
            f"{output}: has {done} lines, and {inputs[0].name} only {inputs[0].count}: it was "
            "begun with another input. Begin anew with --force."
        )


def _check_whole(sink: BinaryIO, output: Path, size: int) -> None:
    """Flush an output to disk, and see that it holds what was written.

    Raises:
        OutputExistsError: a program that knows no locks has written it, or taken it away.
    """
    os.fsync(sink.fileno())
    status = os.fstat(sink.fileno())
    try:
        whole = status.st_size == size and os.path.samestat(status, output.stat())
    except FileNotFoundError:
        whole = False
    if not whole:
        raise OutputExistsError(
            f"{output}: another program has changed it while it was written. Make it anew with "
            "--force."
        )


def _describe(
    translator: Translator,
    lines: InputLines,
    prefixes: InputLines | None,
    prefix: tuple[int, ...],
    described: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that an output is made of, in JSON's types."""
    files = {name: entry.sha256 for name, entry in translator.manifest.files.items()}
    made: dict[str, Any] = {
        "source": lines.fingerprint(),
        "prefix_file": prefixes.fingerprint() if prefixes is not None else None,
        "prefix": list(prefix),
        "bundle": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        **described,
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain
