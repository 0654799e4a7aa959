"""Scoring files of sources and targets line by line."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TextIO

from tfexport.atomic import new_file
from tfexport.errors import InputError, Message, Option
from tfexport.runtime.files.input_lines import (
    InputLines,
    Source,
    open_lines,
    read_line,
    read_numbers,
)
from tfexport.runtime.parallel.workers import rows_ahead
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scorer import Scorer
from tfexport.runtime.search import Request, ResolvedOptions

PairScore = Hypothesis | Message  # the target with its score; or why the pair is bad


@dataclass(frozen=True)
class ScoreFormat:
    """The format of a score file and of its inputs.

    Attributes:
        jsonl: write JSON objects, in the form of ``Hypothesis.to_dict``, instead of numbers.
        ids: input lines are ids separated by spaces, instead of text.
        spell: writes the options in the ``error`` of a JSON object: as Python's keywords, or as
            the flags of a command line.
    """

    jsonl: bool = False
    ids: bool = False
    spell: Callable[[Option], str] = field(default=str, compare=False)

    def write(self, score: PairScore) -> str:
        """The output line of a pair; empty for a bad one, unless it is a JSON object."""
        if isinstance(score, Message):
            values = {"score": None, "error": score.spelled(self.spell)}
            return json.dumps(values) if self.jsonl else ""
        return json.dumps(score.to_dict()) if self.jsonl else f"{score.score:.6f}"


def score_file(
    scorer: Scorer,
    pair: tuple[Source, Source],
    output: str | os.PathLike[str] | TextIO,
    options: ResolvedOptions,
    *,
    line_format: ScoreFormat = ScoreFormat(),
    force: bool = False,
    on_result: Callable[[int, PairScore], object] = lambda number, score: None,
) -> int:
    """Score the lines of a file as translations of the same lines of another, in constant memory.

    Args:
        scorer: the scorer of an open bundle.
        pair: sources and targets; UTF-8 lines.
        output: a line for each pair, empty for a bad one; a file appears when it is complete.
        options: options of the scorer.
        line_format: the format of the output, and whether the input is text or ids.
        force: replace an output that exists.
        on_result: called with the number of every pair, from 1, and its score.

    Returns:
        How many pairs could not be scored.

    Raises:
        OutputExistsError: the output exists.
        OSError: a file cannot be read or written.
    """
    bad = 0
    with contextlib.ExitStack() as stack:
        sources, targets = (stack.enter_context(open_lines(source)) for source in pair)
        sink = stack.enter_context(_open_output(output, force))
        scores = score_lines(scorer, sources, targets, options, ids=line_format.ids)
        for number, score in enumerate(scores, start=1):
            bad += isinstance(score, Message)
            on_result(number, score)
            sink.write(line_format.write(score) + "\n")
            sink.flush()
    return bad


def score_lines(
    scorer: Scorer,
    sources: InputLines,
    targets: InputLines,
    options: ResolvedOptions,
    *,
    ids: bool = False,
) -> Iterator[PairScore]:
    """Score pairs of lines in their order."""
    pairs = enumerate(zip_longest(sources, targets), start=1)
    while chunk := list(islice(pairs, rows_ahead(options))):
        requests: list[Request | None] = []
        wanted: list[list[int]] = []
        problems: dict[int, Message] = {}
        for number, lines in chunk:
            request, tokens = None, list[int]()
            try:
                source, target = (
                    _read(line, file.name, number, ids)
                    for line, file in zip(lines, (sources, targets), strict=True)
                )
                request, tokens = scorer.request(source, target, number - 1, options)
            except InputError as error:
                problems[number] = error.message
            requests.append(request)
            wanted.append(tokens)
        scored = scorer.run(requests, wanted, options)
        for (number, _), made in zip(chunk, scored, strict=True):
            yield problems.get(number, made)


def _read(line: bytes | None, name: str, number: int, ids: bool) -> str | list[int]:
    if line is None:
        raise InputError(f"{name} has no such line")
    text = read_line(line, first=number == 1)
    return read_numbers(text) if ids else text


@contextlib.contextmanager
def _open_output(output: str | os.PathLike[str] | TextIO, force: bool) -> Iterator[TextIO]:
    if isinstance(output, str | os.PathLike):
        with new_file(output, force) as partial, partial.open("w", encoding="utf-8") as sink:
            yield sink
    else:
        yield output
