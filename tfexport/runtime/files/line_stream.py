"""Decoding a stream of lines, for ``tfexport translate``.

A bad line does not stop the others: its ``LineResult`` has a problem instead of a result.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

from tfexport.errors import InputError, Message, Option
from tfexport.runtime.engine import Engine
from tfexport.runtime.files.input_lines import read_line, read_numbers
from tfexport.runtime.results import TranslationResult, moses
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.terms import Terms


@dataclass(frozen=True)
class LineResult:
    """The result of one input line.

    Attributes:
        number: the number of the line, from 1.
        result: None for a bad line.
        problem: the reason why a line is bad.
    """

    number: int
    result: TranslationResult | None
    problem: Message | None = None


def translate_lines(
    engine: Engine,
    lines: Iterable[bytes],
    task: "LineTask",
    *,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    chunk: int = 512,
    first: int = 1,
    decoded: Callable[[int], object] | None = None,
) -> Iterator[LineResult]:
    """Decode lines in their order.

    Args:
        engine: the engine of an open bundle.
        lines: UTF-8, with or without line ends.
        task: how to decode them; its prefixes are not used.
        prefixes: the forced start of each target, as a line of the same kind or as ids.
        chunk: lines that are read and batched by length together. The next chunk is read while
            one is decoded, unless it is 1.
        first: number of the first line.
        decoded: called with the number of lines of each finished batch, in the thread that decoded
            it.
    """
    options, terms = task.options, task.terms
    jobs = _read_all(engine, lines, task, prefixes, first)
    for job, found in engine.decode_stream(jobs, options, chunk, decoded):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)
            continue
        tokens = job.request.ids if job.request else []
        if task.line_format.ids:
            result = TranslationResult(None, found, tokens)
        else:
            result = engine.result(job.text, tokens, found, options, terms=terms)
        yield LineResult(job.number, result)


def find_bad_lines(
    engine: Engine,
    lines: Iterable[bytes],
    task: "LineTask",
    *,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    first: int = 1,
) -> Iterator[LineResult]:
    """Find the lines that ``translate_lines`` cannot decode, without decoding any."""
    for job in _read_all(engine, lines, task, prefixes, first):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)


@dataclass(frozen=True)
class LineJob:
    """One input line, as it is decoded.

    Attributes:
        number: the number of the line, from 1.
        request: None for a bad line, or one with nothing to decode.
        problem: the reason why a line is bad.
        text: the line; empty if it is not text.
    """

    number: int
    request: Request | None
    problem: Message | None = None
    text: str = ""


def _read_all(
    engine: Engine,
    lines: Iterable[bytes],
    task: "LineTask",
    prefixes: Iterable[bytes | tuple[int, ...]] | None,
    first: int,
) -> Iterator[LineJob]:
    # Extra prefixes are ignored; a line without a prefix is bad.
    given: Iterable[bytes | tuple[int, ...] | None] = (
        repeat(()) if prefixes is None else chain(prefixes, repeat(None))
    )
    for number, (line, prefix) in enumerate(zip(lines, given, strict=False), start=first):
        yield _read(engine, line, number, task, prefix)


def _read(
    engine: Engine,
    line: bytes,
    number: int,
    task: "LineTask",
    prefix: bytes | tuple[int, ...] | None,
) -> LineJob:
    text, options, ids = "", task.options, task.line_format.ids
    try:
        text = read_line(line, first=number == 1)
        if prefix is None:
            raise InputError("there is no line with a target prefix for it")
        if isinstance(prefix, bytes):
            given = read_line(prefix, first=number == 1)
            try:
                prefix = engine.resolver.check_prefix(
                    read_numbers(given) if ids else given, options.max_length, options.end_tokens
                )
            except InputError as error:
                raise InputError(Message("target prefix: ", error.message)) from None
        source = read_numbers(text) if ids else text
        required = None if ids else engine.required(text, task.terms, options)
        request = engine.request(source, number - 1, prefix, options, as_ids=ids, required=required)
    except InputError as error:
        return LineJob(number, None, error.message, text)
    return LineJob(number, request, text=text)


@dataclass(frozen=True)
class LineFormat:
    """The format of output lines.

    Attributes:
        jsonl: write one JSON object for each input line, instead of text.
        alignment: write ``text ||| 0-0 1-2`` instead of the text alone.
        ids: write ids separated by spaces, instead of text.
        num_hypotheses: hypotheses for each input line. As text each has its own line, which
            is empty if the search found fewer; a JSON object lists them if there are several.
        spell: writes the options in the ``error`` of a JSON object: as Python's keywords, or as
            the flags of a command line.
    """

    jsonl: bool = False
    alignment: bool = False
    ids: bool = False
    num_hypotheses: int = 1
    spell: Callable[[Option], str] = field(default=str, compare=False)

    @property
    def lines_per_input(self) -> int:
        """Output lines for each input line."""
        return 1 if self.jsonl else self.num_hypotheses

    def write(self, line: LineResult) -> list[str]:
        """The output lines for the result of an input line."""
        return [self._json(line)] if self.jsonl else self._texts(line)

    def identity(self) -> dict[str, Any]:
        """The format as JSON values, which are compared when an output is resumed.

        The number of hypotheses is compared as a decoding option.
        """
        return {"format": [self.jsonl, self.alignment, self.ids]}

    def _json(self, line: LineResult) -> str:
        values: dict[str, Any]
        if line.result is None:
            text = None if self.ids else ""
            error = None if line.problem is None else line.problem.spelled(self.spell)
            values = {"text": text, "tokens": None, "score": None, "error": error}
        else:
            values = line.result.to_dict(hypotheses=self.num_hypotheses > 1)
        return json.dumps(values, ensure_ascii=False)

    def _texts(self, line: LineResult) -> list[str]:
        result, written = line.result, list[str]()
        if result is not None:
            for index in range(min(self.num_hypotheses, len(result.hypotheses))):
                pairs = f" ||| {moses(result.alignment(index))}" if self.alignment else ""
                written.append(self._text(result, index) + pairs)
        return written + [""] * (self.num_hypotheses - len(written))

    def _text(self, result: TranslationResult, index: int) -> str:
        if self.ids:
            return " ".join(map(str, result.hypotheses[index].tokens))
        return one_line(result.texts[index])


def one_line(text: str) -> str:
    """A decoded text without line breaks, so that it is one output line."""
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")


@dataclass(frozen=True)
class LineTask:
    """Decoding options, prefixes and output format of a run over a file.

    Attributes:
        options: resolved decoding options.
        line_format: the format of the output; its ``ids`` holds for the input too.
        prefix: the forced start of every target.
        prefix_file: a file with a prefix for each line of the source; None without one.
        terms: of lines of text.
    """

    options: ResolvedOptions
    line_format: LineFormat
    prefix: tuple[int, ...] = ()
    prefix_file: str | os.PathLike[str] | None = None
    terms: Terms | None = None
