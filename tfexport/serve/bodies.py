"""Bodies of requests: JSON or forms, validated with pydantic."""

import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import pydantic
import pydantic_core

from tfexport.errors import nearest_name
from tfexport.serve.failures import RequestError, loggable, wrong

JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class Fields(pydantic.BaseModel):
    """The fields of a body; others are refused."""

    model_config = pydantic.ConfigDict(extra="forbid")

    @classmethod
    def __pydantic_init_subclass__(cls, **values: Any) -> None:
        """Allow the names of the fields in the log."""
        loggable(cls.model_fields)


class StrictFields(Fields):
    """Fields without conversion of types: "1" is no integer."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


Kind = TypeVar("Kind", bound=Fields)


class First(pydantic.FailFast):
    """For a list only the first wrong value is reported: a body may have 100,000s of values."""

    __hash__ = object.__hash__  # alternatives of a type need one


Texts = Annotated[list[str], First()]


class UnsupportedField(pydantic.BeforeValidator):
    """The check of a field of a protocol that no model has."""

    __slots__ = ()


def unsupported(*harmless: Any) -> UnsupportedField:
    """A field of a protocol that no model has; only values without an effect are accepted."""

    def check(value: Any) -> Any:
        if value in (None, "", [], [""]) or any(value == known for known in harmless):
            return None
        raise ValueError("not supported by this server; omit it")

    return UnsupportedField(check)


_MOST_NAMES = 64  # of an object in a body
MOST_TERMS = 1000  # of a request
_MOST_OF = {"glossary": MOST_TERMS}
_LONGEST_WORD = 2000  # characters of one text in options
_OPTIONS = ("options", "parameters")  # fields that hold decoding options
_MOST_ITEMS = 1000  # of all lists of options together
# Bytes of a body that may hold too much: the least is an object of so many names.
_SHORTEST_AMOUNT = _MOST_NAMES * len('"n":1,')


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """The media type of a request's body; JSON if there is none.

    Raises:
        RequestError: its charset is not UTF-8.
    """
    given = headers.get(b"content-type", b"").decode("latin-1")
    name, *parameters = given.lower().split(";")
    for parameter in parameters:
        key, _, value = parameter.strip().partition("=")
        if key == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise RequestError(415, f"charset {value[:40]!r}: only UTF-8 is supported")
    name = name.strip()
    return JSON if not name or name.endswith("+json") else name


def check_media_type(headers: Mapping[bytes, bytes], *allowed: str) -> str:
    """Return the media type of a body if it is one of these.

    Raises:
        RequestError: it is another.
    """
    found = media_type(headers)
    if found not in allowed:
        raise RequestError(
            415, f"Content-Type {found[:60]!r}: the body has to be {' or '.join(allowed)}"
        )
    return found


def read_json(kind: type[Kind], body: bytes) -> Kind:
    """Read a body of JSON.

    Raises:
        RequestError: naming what is wrong with it.
    """
    if len(body) >= _SHORTEST_AMOUNT:
        check_amount(body)
    try:
        return kind.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise wrong(list(problems_of(kind, error))) from None


def read_form(kind: type[Kind], body: bytes, lists: Collection[str], most: int) -> Kind:
    """Read an urlencoded body.

    Args:
        kind: the class of its fields.
        body: the body of the request.
        lists: fields that may be given several times.
        most: the largest number of fields.

    Raises:
        RequestError: naming everything that is wrong with it.
    """
    given = form_fields(body, most)
    several = sorted(name for name, values in given.items() if len(values) > 1)
    problems = [f"{name[:60]}: occurs {len(given[name])} times" for name in several
                if name not in lists]  # fmt: skip
    values = {name: held if name in lists else held[0] for name, held in given.items()}
    try:
        found = kind.model_validate(values)
    except pydantic.ValidationError as error:
        problems += problems_of(kind, error)
    if problems:
        raise wrong(problems)
    return found


def form_fields(body: bytes, most: int) -> dict[str, list[str]]:
    """The fields of an urlencoded body, each with its values.

    Raises:
        RequestError: it is not valid, or holds more than ``most`` fields.
    """
    if body.count(b"&") >= most:
        raise RequestError(413, f"the form has more than {most} fields")
    try:
        return urllib.parse.parse_qs(
            body.decode(), keep_blank_values=True, errors="strict", strict_parsing=bool(body)
        )
    except ValueError as error:  # digits of other scripts, too
        raise wrong(f"the form cannot be read: {str(error)[:200]}") from None


def check_amount(body: bytes) -> Any:
    """Check the number of values in a body of JSON before their types are checked.

    Raises:
        RequestError: it is not JSON, or holds more than any request needs.
    """
    try:
        value = pydantic_core.from_json(body)
    except ValueError as error:
        raise wrong(f"Invalid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        return value
    for name, inner in [("", value), *value.items()]:
        most = _MOST_OF.get(name, _MOST_NAMES)
        if isinstance(inner, dict) and len(inner) > most:
            raise wrong(f"{name[:60] or 'the body'}: {len(inner)} names; {most} at most")
    for name in _OPTIONS:
        options = value.get(name)
        if isinstance(options, dict):
            _check_options(name, options)
    return value


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse longer lists and words than options need; prefixes are counted separately."""
    waiting = [value for key, value in options.items() if key != "target_prefix"]
    count = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > _LONGEST_WORD:
            raise wrong(f"{name}: a word of {len(value)} characters; {_LONGEST_WORD} at most")
        if isinstance(value, list | dict):
            count += len(value)
            if count > _MOST_ITEMS:
                raise wrong(f"{name}: more than {_MOST_ITEMS} items in lists")
            waiting += value.values() if isinstance(value, dict) else value


def problems_of(kind: type[Fields], error: pydantic.ValidationError) -> Iterator[str]:
    """A sentence for each problem."""
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        where = _path(found["loc"])
        if found["type"] == "extra_forbidden":
            yield f"{where}: is not a known field; {_hint(kind, found['loc'])}"
        elif found["type"] == "missing":
            yield f"{where}: is missing"
        else:
            text = found["msg"].removeprefix("Input ").removeprefix("Value error, ")
            yield f"{where}: {text}" if where else text


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for place in location:
        text += f"[{place}]" if isinstance(place, int) else f".{place[:60]}"
    return text.removeprefix(".").encode(errors="replace").decode()


def _hint(kind: type[Fields], location: tuple[int | str, ...]) -> str:
    known = [
        name
        for name, field in kind.model_fields.items()
        if not any(isinstance(each, UnsupportedField) for each in field.metadata)
    ]
    if len(location) != 1:
        return "omit it"
    near = nearest_name(str(location[0]), known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"


FREE = 64 << 10  # bytes of each body that do not count


class BodyMemory:
    """The memory for the bodies of all requests together."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def held(self) -> Iterator[Callable[[int], bool]]:
        """Give a function that takes a body's size so far, and returns whether there is room."""
        taken = 0

        def hold(size: int) -> bool:
            nonlocal taken
            more = max(size - FREE, 0) - taken
            if more > self._left:
                return False
            self._left -= more
            taken += more
            return True

        try:
            yield hold
        finally:
            self._left += taken
