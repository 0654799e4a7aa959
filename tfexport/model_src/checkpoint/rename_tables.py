"""Checks of a config's ``rename`` and ``ignore`` tables, and their application to keys."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import ConfigError, Message, join_problems, shown
from tfexport.model_src.checkpoint.foreign import is_ours
from tfexport.model_src.checkpoint.overrides import (
    MORE_KEYS,
    TABLE_KEYS,
    Source,
    Text,
    name_origin,
)
from tfexport.model_src.checkpoint.renaming import SlowPatternError, rename_within_time
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
    """A sentence for each key that is in no config of tfexport's own, with where it stands."""
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
    """Every key with its name after the rename table; None if it is ignored.

    Raises:
        ConfigError: two keys would get one name, a replacement names no group, or a pattern takes
            too long.
    """
    try:
        names, problems = rename_within_time(keys, tables.rename, tables.ignore)
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
