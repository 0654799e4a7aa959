"""What people say about a checkpoint: config files, ``--set``, rename and ignore tables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import ConfigError, join_problems
from tfexport.model_src.config import config_keys, unknown_keys

_IMPORT_KEYS = ("rename", "ignore")


@dataclass(frozen=True)
class Given:
    """Config values from outside the weights, and where each came from.

    Attributes:
        values: config keys to values.
        origins: config keys to "config.json", "--set" and the like.
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
    problems: list[str] = []
    for origin, given in sources:
        wrong = unknown_keys(given, (*config_keys(), *_IMPORT_KEYS))
        problems += [f"{origin}: {problem}" for problem in wrong]
        for key, value in given.items():
            values[key] = float("-inf") if value == "-inf" else value
            origins[key] = origin
    rename = _rename_table(values.pop("rename", ()), problems)
    ignore = _ignore_table(values.pop("ignore", ()), problems)
    if problems:
        raise ConfigError(join_problems("config", problems))
    return Given(values, origins, rename, ignore)


def _rename_table(table: Any, problems: list[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, Sequence) or isinstance(table, str):
        problems.append("rename: expected a list of [pattern, replacement] pairs")
        return ()
    pairs = []
    for row in table:
        if not (
            isinstance(row, Sequence)
            and not isinstance(row, str)
            and len(row) == 2
            and all(isinstance(item, str) for item in row)
        ):
            problems.append(f"rename: {row!r} is not a [pattern, replacement] pair")
        elif _compiles("rename", row[0], problems):
            pairs.append((row[0], row[1]))
    return tuple(pairs)


def _ignore_table(table: Any, problems: list[str]) -> tuple[str, ...]:
    if isinstance(table, str):
        table = [table]
    if not isinstance(table, Sequence) or not all(isinstance(item, str) for item in table):
        problems.append("ignore: expected a list of patterns")
        return ()
    return tuple(item for item in table if _compiles("ignore", item, problems))


def _compiles(table: str, pattern: str, problems: list[str]) -> bool:
    try:
        re.compile(pattern)
    except re.error as error:
        problems.append(f"{table}: {pattern!r} is not a regular expression: {error}")
        return False
    return True


def rename_keys(keys: Iterable[str], rename: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Every key with its name after the first pattern that matches it.

    Raises:
        ConfigError: two keys would get one name, or a replacement names no group.
    """
    names: dict[str, str] = {}
    problems: list[str] = []
    for key in keys:
        names[key] = key
        for pattern, replacement in rename:
            if re.search(pattern, key):
                try:
                    names[key] = re.sub(pattern, replacement, key, count=1)
                except (re.error, IndexError) as error:
                    problems.append(f"{replacement!r} for {pattern!r}: {error}")
                break
    taken: dict[str, str] = {}
    for key, name in names.items():
        if (other := taken.setdefault(name, key)) != key:
            problems.append(f"{other} and {key} both become {name}")
    if problems:
        raise ConfigError(join_problems("rename", sorted(set(problems))))
    return names


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words to values: true, false, numbers, -inf, else a string.

    Raises:
        ConfigError: a word without "=".
    """
    values: dict[str, Any] = {}
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            problems.append(f"{setting!r} is not of the form key=value")
        values[key.strip()] = _parse_value(text.strip())
    if problems:
        raise ConfigError(join_problems("--set", problems))
    return values


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
