"""Lines in, lines out: the stream that ``tfexport translate`` is made of.

One bad line does not lose the others: it comes back with its problem and no result.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from tfexport.errors import InputError
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.result import Hypothesis
from tfexport.runtime.translator import Translator


@dataclass(frozen=True)
class LineResult:
    """What one input line became.

    Attributes:
        number: of the line, from 1.
        text: the output line; empty if the input was empty or bad.
        hypothesis: None if the input was bad.
        problem: what was wrong with the input, if anything.
    """

    number: int
    text: str
    hypothesis: Hypothesis | None
    problem: str | None = None


def translate_lines(
    translator: Translator,
    lines: Iterable[bytes],
    options: DecodingOptions,
    ids: bool = False,
    chunk: int = 512,
) -> Iterator[LineResult]:
    """Decode lines in their order, ``chunk`` lines at a time.

    Args:
        translator: of an open bundle.
        lines: UTF-8, with or without line ends.
        options: how to decode.
        ids: lines are space-separated ids instead of text, in and out.
        chunk: lines read before any is decoded; batches are formed of lines of like length.
    """
    numbered = enumerate(lines, start=1)
    while batch := list(islice(numbered, chunk)):
        rows: list[list[int]] = []
        problems: list[str | None] = []
        for number, line in batch:
            try:
                rows.append(_read(translator, line, number, options, ids))
                problems.append(None)
            except InputError as error:
                rows.append([])
                problems.append(str(error))
        for (number, _), found, problem in zip(
            batch, translator.search(rows, options), problems, strict=True
        ):
            if problem is not None:
                yield LineResult(number, "", None, problem)
                continue
            tokens = found[0].tokens
            text = " ".join(map(str, tokens)) if ids else _one_line(translator.decode(tokens))
            yield LineResult(number, text, found[0])


def _read(
    translator: Translator, line: bytes, number: int, options: DecodingOptions, ids: bool
) -> list[int]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if not ids:
        return translator.encode(text, truncate=options.truncate)
    words = text.split()
    wrong = [word for word in words if not _is_integer(word)]
    if wrong:
        raise InputError(f"{wrong[0]!r} is not a whole number")
    return translator.check_ids([int(word) for word in words], truncate=options.truncate)


def _is_integer(word: str) -> bool:
    # int() would also take "1_000" and other scripts' digits, and refuse to parse huge numbers.
    digits = word.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def _one_line(text: str) -> str:
    # A tokenizer may know line breaks; one line in stays one line out.
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")
