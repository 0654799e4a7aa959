"""Checks of parsed JSON values, each problem one sentence, combined from small ones."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfexport.errors import shown

LARGEST = 2**31 - 1  # of any size, length and id

Check = Callable[[str, Any], Iterator[str]]


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def integer(least: int, most: int = LARGEST) -> Check:
    """An integer from ``least`` to ``most``."""

    def check(name: str, value: Any) -> Iterator[str]:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            yield f"{name}: {shown(value)} is not an integer from {least} to {most}"

    return check


def of_type(kind: str, *types: type) -> Check:
    """A value of these types, called ``kind`` in messages."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            yield f"{name}: {shown(value)} is not {kind}"

    return check


def matching(pattern: str, kind: str) -> Check:
    """A text that a regular expression matches."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{name}: {shown(value)} is not {kind}"

    return check


def or_null(inner: Check) -> Check:
    """Null, or what another check accepts."""

    def check(name: str, value: Any) -> Iterator[str]:
        if value is not None:
            yield from inner(name, value)

    return check


def list_of(inner: Check) -> Check:
    """A list of values of one kind."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{name}: {shown(value)} is not a list"
            return
        for i, part in enumerate(value):
            yield from inner(f"{name}[{i}]", part)

    return check


def every(inner: Check) -> Check:
    """An object whose values, under any keys, are all of one kind."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{name}: {shown(value)} is not an object"
            return
        for key, part in value.items():
            yield from inner(f"{name}.{shown(key)[1:-1]}", part)

    return check


def record(
    needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None, closed: bool = True
) -> Check:
    """An object with these keys, and no others if it is ``closed``."""
    known = {**needed, **(optional or {})}

    def check(name: str, value: Any) -> Iterator[str]:
        where = f"{name}." if name else ""
        if not isinstance(value, dict):
            yield f"{name}: {shown(value)} is not an object"
            return
        for key in needed:
            if key not in value:
                yield f"{where}{key}: missing"
        for key, part in value.items():
            if key in known:
                yield from known[key](f"{where}{key}", part)
            elif closed:
                yield f"{where}{shown(key)[1:-1]}: unknown key"

    return check


def one_of(*known: Any) -> Check:
    """One of these values."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not any(value == each and type(value) is type(each) for each in known):
            yield f"{name}: {shown(value)} is not one of {', '.join(map(str, known))}"

    return check
