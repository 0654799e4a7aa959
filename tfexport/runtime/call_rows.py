"""The requests of all rows of a call, and options that its rows exclude.

The problems of all rows are in one message.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfexport.errors import InputError, Message, Option, Problem, join_problems
from tfexport.runtime.engine import Engine
from tfexport.runtime.search import Request, ResolvedOptions

Prefixes = Sequence[tuple[int, ...]]


def acts_on_text(given: Mapping[str, Any], call: str) -> list[Problem]:
    """The problem of an option that acts on source text, for a call that has none."""
    if given.get("replace_unknowns") is not True:
        return []
    text = f" acts on text; {call} has none"
    return [Problem(None, Message(Option("replace_unknowns"), text))]


def cut_ids(given: Mapping[str, Any]) -> list[Problem]:
    """The problems of options that cut rows of ids, for rows of arrays."""
    text = " cuts rows of ids; rows of arrays are taken as they are"
    names = [name for name in ("truncate", "max_input_length") if given.get(name)]
    return [Problem(None, Message(Option(name), text)) for name in names]


def requests_of(
    engine: Engine,
    sources: Sequence[Any],
    prefixes: Prefixes,
    options: ResolvedOptions,
    *,
    as_ids: bool,
) -> list[Request | None]:
    """Requests of texts or of rows of ids; see ``Engine.request``.

    Raises:
        InputError: naming everything that is wrong with any of them.
    """
    call, noun = ("generate", "row") if as_ids else ("translate", "text")

    def check(source: Any, number: int, prefix: tuple[int, ...]) -> Request | None:
        return engine.request(source, number, prefix, options, as_ids=as_ids)

    return _check_all(call, noun, sources, prefixes, check)


def requests_from(
    engine: Engine, rows: Sequence[Any], prefixes: Prefixes, options: ResolvedOptions
) -> list[Request | None]:
    """Requests of rows of a user's module's inputs; see ``Engine.request_from``.

    Raises:
        InputError: naming everything that is wrong with any of them.
    """

    def check(row: Any, number: int, prefix: tuple[int, ...]) -> Request:
        return engine.request_from(row, number, prefix, options)

    return _check_all("generate_from", "row", rows, prefixes, check)


def _check_all(
    call: str,
    noun: str,
    sources: Sequence[Any],
    prefixes: Prefixes,
    check: Callable[[Any, int, tuple[int, ...]], Request | None],
) -> list[Request | None]:
    requests: list[Request | None] = []
    problems = []
    for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        try:
            requests.append(check(source, i, prefix))
        except InputError as error:
            problems.append(Message(f"{noun} {i}: ", error.message))
    if problems:
        raise InputError(join_problems(call, problems))
    return requests
