"""Lines in, lines out: the stream that ``tfexport translate`` is made of.

One bad line does not lose the others: it comes back with its problem and no result.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from tfexport.errors import InputError
from tfexport.runtime.results import Hypothesis, TranslationResult, moses
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.translator import Translator


@dataclass(frozen=True)
class LineResult:
    """What one input line became.

    Attributes:
        number: of the line, from 1.
        result: None if the input was bad; its texts are what is written where ids were asked for.
        problem: what was wrong with the input, if anything.
    """

    number: int
    result: TranslationResult | None
    problem: str | None = None

    @property
    def text(self) -> str:
        """The output line of the best hypothesis; empty if the input was empty or bad."""
        return _one_line(self.result.texts[0]) if self.result else ""


def translate_lines(
    translator: Translator,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    *,
    ids: bool = False,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    chunk: int = 512,
    first: int = 1,
) -> Iterator[LineResult]:
    """Decode lines in their order.

    Args:
        translator: of an open bundle.
        lines: UTF-8, with or without line ends.
        options: how to decode, as the translator resolved it.
        ids: lines are space-separated ids instead of text, in and out.
        prefixes: what the target of each line begins with: lines like the others, or ids.
        chunk: lines read before any is decoded; batches are formed of lines of like length. The
            next chunk is read while one is decoded, except if it is 1.
        first: number of the first line.
    """
    jobs = _read_all(translator, lines, options, ids, prefixes, first)
    for job, found in translator.decode_stream(jobs, options, chunk):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)
        elif ids:
            texts = [" ".join(map(str, made.tokens)) for made in found]
            tokens = job.request.ids if job.request else []
            yield LineResult(job.number, TranslationResult(texts[0], found, tokens, texts))
        else:
            tokens = job.request.ids if job.request else []
            yield LineResult(job.number, translator.describe(job.text, tokens, found, options))


def find_bad_lines(
    translator: Translator,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    *,
    ids: bool = False,
    prefixes: Iterable[bytes | tuple[int, ...]] | None = None,
    first: int = 1,
) -> Iterator[LineResult]:
    """What ``translate_lines`` gives for lines that cannot be decoded; the others are left out."""
    for job in _read_all(translator, lines, options, ids, prefixes, first):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)


@dataclass(frozen=True)
class _Job:
    number: int
    text: str
    request: Request | None
    problem: str | None = None


def _read_all(
    translator: Translator,
    lines: Iterable[bytes],
    options: ResolvedOptions,
    ids: bool,
    prefixes: Iterable[bytes | tuple[int, ...]] | None,
    first: int,
) -> Iterator[_Job]:
    # Prefixes may be more than lines; where they are fewer, the line says so.
    given: Iterable[bytes | tuple[int, ...] | None] = (
        repeat(()) if prefixes is None else chain(prefixes, repeat(None))
    )
    for number, (line, prefix) in enumerate(zip(lines, given, strict=False), start=first):
        yield _read(translator, line, number, options, ids, prefix)


def _read(
    translator: Translator,
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
                prefix = translator.resolver.check_prefix(
                    read_numbers(given) if ids else given, options.max_length, options.end_tokens
                )
            except InputError as error:
                raise InputError(f"target prefix: {error}") from None
        source = read_numbers(text) if ids else text
        request = translator.request(source, number - 1, prefix, options, as_ids=ids)
    except InputError as error:
        return _Job(number, text, None, str(error))
    return _Job(number, text, request)


def read_line(line: bytes, first: bool = False) -> str:
    """A line without its end.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start}") from None


def read_numbers(text: str) -> list[int]:
    """Ids between spaces.

    Raises:
        InputError: naming what is no whole number.
    """
    words = text.split()
    wrong = [word for word in words if not _is_integer(word)]
    if wrong:
        raise InputError(f"{wrong[0]!r} is not a whole number")
    return [int(word) for word in words]


def _is_integer(word: str) -> bool:
    # int() would also take "1_000" and other scripts' digits, and refuse to parse huge numbers.
    digits = word.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def _one_line(text: str) -> str:
    # A tokenizer may know line breaks; one line in stays one line out.
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")


Format = Callable[[LineResult], list[str]]


def text_format(count: int = 1, alignment: bool = False) -> Format:
    """Output lines of text.

    Args:
        count: lines for every input line, one hypothesis each; empty where there are fewer.
        alignment: ``text ||| 0-0 1-2`` instead of the text alone.
    """

    def write(line: LineResult) -> list[str]:
        if line.result is None:
            return [""] * count
        written = []
        for place, text in enumerate(line.result.texts[:count]):
            pairs = f" ||| {moses(line.result.alignment(place))}" if alignment else ""
            written.append(_one_line(text) + pairs)
        return written + [""] * (count - len(written))

    return write


def json_format(ids: bool = False, several: bool = False) -> Format:
    """One JSON object for every input line.

    Args:
        ids: ids were asked for, so there is no text.
        several: with all hypotheses.
    """

    def write(line: LineResult) -> list[str]:
        result = line.result
        values: dict[str, Any] = {"text": None, "tokens": None, "score": None}
        if result is None:
            values |= {"text": None if ids else "", "error": line.problem}
        else:
            values = _describe(result, 0, ids)
            if several:
                values["hypotheses"] = [
                    _describe(result, place, ids) for place in range(len(result.hypotheses))
                ]
        return [json.dumps(values, ensure_ascii=False)]

    return write


def _describe(result: TranslationResult, place: int, ids: bool) -> dict[str, Any]:
    made: Hypothesis = result.hypotheses[place]
    values: dict[str, Any] = {
        "text": None if ids else result.texts[place],
        "tokens": made.tokens,
        "score": None if math.isnan(made.score) else made.score,  # JSON has no NaN
        "finished": made.finished,
    }
    if made.token_scores is not None:
        values["token_scores"] = made.token_scores
    if made.attention is not None:
        values["source_tokens"] = result.source_tokens
        values["attention"] = [[round(float(w), 6) for w in row] for row in made.attention]
        values["alignment"] = moses(result.alignment(place))
    return values
