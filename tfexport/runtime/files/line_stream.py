"""Decoding of a stream of lines, for ``tfexport translate``.

A bad line does not stop the others: it gives a ``LineResult`` with a problem instead of a result.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

from tfexport.errors import InputError, Message
from tfexport.runtime.engine import Engine
from tfexport.runtime.files.input_lines import read_line, read_numbers
from tfexport.runtime.results import TranslationResult
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions


@dataclass(frozen=True)
class LineResult:
    """The result of one input line.

    Attributes:
        number: of the line, from 1.
        result: None for a bad line.
        problem: the reason why a line is bad.
    """

    number: int
    result: TranslationResult | None
    problem: Message | None = None


def translate_lines(
    engine: Engine,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    *,
    ids: bool = False,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    chunk: int = 512,
    first: int = 1,
    decoded: Callable[[int], object] | None = None,
) -> Iterator[LineResult]:
    """Decode lines in their order.

    Args:
        engine: of an open bundle.
        lines: UTF-8, with or without line ends.
        options: how to decode, as the engine resolved it.
        ids: lines are space-separated ids instead of text, in and out.
        prefixes: the forced beginning of each target, as a line of the same kind or as ids.
        chunk: lines that are read and batched by length together. The next chunk is read while
            one is decoded, unless it is 1.
        first: number of the first line.
        decoded: told how many lines a batch had that is done, by the thread that has done it.
    """
    jobs = _read_all(engine, lines, options, ids, prefixes, first)
    for job, found in engine.decode_stream(jobs, options, chunk, decoded):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)
            continue
        tokens = job.request.ids if job.request else []
        if ids:
            yield LineResult(job.number, TranslationResult(None, found, tokens))
        else:
            yield LineResult(job.number, engine.result(job.text, tokens, found, options))


def find_bad_lines(
    engine: Engine,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    *,
    ids: bool = False,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    first: int = 1,
) -> Iterator[LineResult]:
    """Find the lines that ``translate_lines`` cannot decode, without decoding any."""
    for job in _read_all(engine, lines, options, ids, prefixes, first):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)


@dataclass(frozen=True)
class _Job:
    number: int
    text: str
    request: Request | None
    problem: Message | None = None


def _read_all(
    engine: Engine,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    ids: bool,
    prefixes: Iterable[bytes | tuple[int, ...]] | None,
    first: int,
) -> Iterator[_Job]:
    # Surplus prefixes are ignored; a line without one is reported as bad.
    given: Iterable[bytes | tuple[int, ...] | None] = (
        repeat(()) if prefixes is None else chain(prefixes, repeat(None))
    )
    for number, (line, prefix) in enumerate(zip(lines, given, strict=False), start=first):
        yield _read(engine, line, number, options, ids, prefix)


def _read(
    engine: Engine,
    line: bytes,
    number: int,
    options: ResolvedOptions,
    ids: bool,
    prefix: bytes | tuple[int, ...] | None,
) -> _Job:
    text = ""
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
        request = engine.request(source, number - 1, prefix, options, as_ids=ids)
    except InputError as error:
        return _Job(number, text, None, error.message)
    return _Job(number, text, request)
