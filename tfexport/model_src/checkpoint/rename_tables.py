"""Checks of a config's ``rename`` and ``ignore`` tables, and their application to keys."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import ConfigError, Message, join_problems, shown
from tfexport.model_src.checkpoint.overrides import (
    MORE_KEYS,
    TABLE_KEYS,
    Source,
    Text,
    name_origin,
)
from tfexport.model_src.checkpoint.state_dict import MAX_KEY_LENGTH
from tfexport.model_src.checkpoint.unsupported import is_ours
from tfexport.model_src.config import config_keys, unknown_keys

_MAX_PATTERNS, _MAX_PATTERN = 256, 512


@dataclass(frozen=True)
class RenameTables:
    """Changes of a file's keys before its layout is detected.

    Attributes:
        rename: [pattern, replacement] pairs; the first that matches a key wins.
        ignore: patterns of keys that may stay unread.
    """

    rename: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] = ()


def read_tables(sources: Iterable[Source]) -> RenameTables:
    """The tables of all sources; of each, the last one wins.

    Raises:
        ConfigError: a table is malformed; unknown config keys are named with it.
    """
    ours = [source for source in sources if not source.optional or is_ours(source.values)]
    tables: dict[str, Any] = {}
    for source in ours:
        tables |= {key: source.values[key] for key in TABLE_KEYS if key in source.values}
    problems: list[Text] = []
    rename = _rename_table(tables.get("rename", ()), problems)
    ignore = _ignore_table(tables.get("ignore", ()), problems)
    if problems:
        raise ConfigError(join_problems("config", [*unknown_config_keys(ours), *problems]))
    return RenameTables(rename, ignore)


def unknown_config_keys(sources: Iterable[Source]) -> list[Message]:
    """A sentence for each key that tfexport's config does not have, with its file."""
    return [
        Message(name_origin(source.origin), f": {problem}")
        for source in sources
        for problem in unknown_keys(source.values, (*config_keys(), *MORE_KEYS))
    ]


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


def rename_keys(keys: Iterable[str], tables: RenameTables) -> dict[str, str | None]:
    """Every key with its name after the first pattern that matches it; None if it is ignored.

    A key is ignored if a pattern matches it before or after renaming.

    Raises:
        ConfigError: two keys would get one name, a replacement names no group or makes too long a
            name.
    """
    names: dict[str, str | None] = {}
    problems: list[str] = []
    taken: dict[str, str] = {}
    for key in keys:
        name = _rename(key, tables, problems)
        if any(re.search(it, key) or re.search(it, name) for it in tables.ignore):
            names[key] = None
            continue
        names[key] = name
        if (other := taken.setdefault(name, key)) != key:
            problems.append(f"{other} and {key} both become {name}")
    if problems:
        raise ConfigError(join_problems("rename", sorted(set(problems))))
    return names


def _rename(key: str, tables: RenameTables, problems: list[str]) -> str:
    for pattern, replacement in tables.rename:
        if not re.search(pattern, key):
            continue
        try:
            name = re.sub(pattern, replacement, key, count=1)
        except (re.error, IndexError) as error:
            problems.append(f"{replacement!r} for {pattern!r}: {error}")
            return key
        if len(name) > MAX_KEY_LENGTH:
            problems.append(f"{pattern!r} makes a name of {len(name)} characters")
            return key
        return name
    return key
