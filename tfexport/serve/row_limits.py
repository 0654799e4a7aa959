"""The limits of one row: beam size and lengths, which decide the memory that it takes."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.serve.failures import wrong


class Limited(Protocol):
    """The limits of a model."""

    slots: int
    max_tokens: int


def within_limits(
    model: Limited, options: ResolvedOptions, given: Collection[str]
) -> ResolvedOptions:
    """The options of rows after their limits are checked; the default length is the largest.

    Args:
        model: the model that decodes.
        options: the options of the rows.
        given: names of the options in the request.

    Raises:
        RequestError: naming what is too large.
    """
    problems = []
    if options.width > model.slots:
        name = "num_hypotheses" if options.sampling else "beam_size"
        problems.append(
            f"{name}: {options.width} is more than the {model.slots} rows that the server decodes"
        )
    longest, most = options.max_length, model.max_tokens
    if longest > most and "max_length" in given:
        problems.append(f"max_length: {longest} is more than the {most} tokens of a row here")
    if problems:
        raise wrong(problems)
    return dataclasses.replace(options, max_length=most) if longest > most else options


def check_lengths(
    model: Limited, requests: Sequence[Request | None], targets: Sequence[Sequence[int]] = ()
) -> None:
    """Refuse sources, and targets to be scored, of too many tokens.

    Raises:
        RequestError: naming each.
    """
    sources = [request.length if request else 0 for request in requests]
    problems = [
        *_too_long("row", sources, model.max_tokens),
        *_too_long("target", list(map(len, targets)), model.max_tokens),
    ]
    if problems:
        raise wrong(problems)


def _too_long(kind: str, lengths: Sequence[int], most: int) -> Iterator[str]:
    for place, length in enumerate(lengths):
        if length > most:
            yield f"{kind} {place}: {length} tokens exceed the limit of {most} per row"
