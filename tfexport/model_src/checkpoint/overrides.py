"""Overrides of a checkpoint's config: files, ``key=value`` words, rename and ignore tables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.model_src.checkpoint.renaming import SlowPatternError, rename_within_time
from tfexport.model_src.config import config_keys, unknown_keys

_IMPORT_KEYS = ("rename", "ignore")
_MAX_PATTERNS, _MAX_PATTERN = 256, 512

SETTINGS = "settings"  # the origin of values that were given as words
Text = str | Message


@dataclass(frozen=True)
class Given:
    """Config values from outside the weights, and where each came from.

    Attributes:
        values: config keys to values.
        origins: config keys to "config.json", "settings" and the like.
        rename: [pattern, replacement] pairs; the first that matches a key wins.
        ignore: patterns of keys that may stay unread.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    rename: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] = ()


def merge(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> Given:
    """Merge named sources of values; later ones win.

    Raises:
        ConfigError: naming every unknown key and every malformed table, with its source.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    problems: list[Text] = []
    for origin, given in sources:
        wrong = unknown_keys(given, (*config_keys(), *_IMPORT_KEYS))
        problems += [Message(spoken(origin), f": {problem}") for problem in wrong]
        for key, value in given.items():
            values[key] = float("-inf") if value == "-inf" else value
            origins[key] = origin
    rename = _rename_table(values.pop("rename", ()), problems)
    ignore = _ignore_table(values.pop("ignore", ()), problems)
    if problems:
        raise ConfigError(join_problems("config", problems))
    return Given(values, origins, rename, ignore)


def spoken(origin: str) -> str | Option:
    """An origin as a message names it."""
    return Option(SETTINGS) if origin == SETTINGS else origin


def _rename_table(table: Any, problems: list[Text]) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, Sequence) or isinstance(table, str):
        problems.append("rename: expected a list of [pattern, replacement] pairs")
        return ()
    if len(table) > _MAX_PATTERNS:
        problems.append(f"rename: {len(table)} pairs, more than {_MAX_PATTERNS}")
        return ()
    pairs = []
    for row in table:
        if not (
            isinstance(row, Sequence)
            and not isinstance(row, str)
            and len(row) == 2
            and all(isinstance(item, str) for item in row)
        ):
            problems.append(f"rename: {shown(row)} is not a [pattern, replacement] pair")
        elif _compiles("rename", row[0], problems):
            pairs.append((row[0], row[1]))
    return tuple(pairs)


def _ignore_table(table: Any, problems: list[Text]) -> tuple[str, ...]:
    if isinstance(table, str):
        table = [table]
    if not isinstance(table, Sequence) or not all(isinstance(item, str) for item in table):
        problems.append("ignore: expected a list of patterns")
        return ()
    if len(table) > _MAX_PATTERNS:
        problems.append(f"ignore: {len(table)} patterns, more than {_MAX_PATTERNS}")
        return ()
    return tuple(item for item in table if _compiles("ignore", item, problems))


def _compiles(table: str, pattern: str, problems: list[Text]) -> bool:
    reason = f"it has more than {_MAX_PATTERN} characters"
    if len(pattern) <= _MAX_PATTERN:
        try:
            re.compile(pattern)
            return True
        except (re.error, OverflowError, RecursionError, MemoryError) as error:
            reason = str(error)
    problems.append(f"{table}: {shown(pattern)} is not a regular expression: {reason}")
    return False


def rename_keys(keys: Iterable[str], given: Given) -> dict[str, str | None]:
    """Every key with its name after the rename table; None if it is ignored.

    Raises:
        ConfigError: two keys would get one name, a replacement names no group, or a pattern takes
            too long.
    """
    try:
        names, problems = rename_within_time(keys, given.rename, given.ignore)
    except SlowPatternError:
        raise ConfigError(
            "rename, ignore: a pattern takes longer than 1.5 seconds on these keys. Repeat no "
            "group that holds a repetition, as (a+)+ does."
        ) from None
    taken: dict[str, str] = {}
    for key, name in names.items():
        if name is not None and (other := taken.setdefault(name, key)) != key:
            problems.append(f"{other} and {key} both become {name}")
    if problems:
        raise ConfigError(join_problems("rename", sorted(set(problems))))
    return names


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words to values: true, false, numbers, -inf, else a string.

    Raises:
        ConfigError: a word without "=", or with a number that is too long to be read.
    """
    values: dict[str, Any] = {}
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            problems.append(f"{shown(setting)} is not of the form key=value")
        try:
            values[key.strip()] = _parse_value(text.strip())
        except ValueError:
            problems.append(f"{key.strip()}: a number of {len(text)} digits")
    if problems:
        raise ConfigError(join_problems(Option(SETTINGS), problems))
    return values


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)  # which refuses more digits than it can read quickly
    try:
        return float(text)
    except ValueError:
        return text
