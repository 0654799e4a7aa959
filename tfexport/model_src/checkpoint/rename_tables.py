"""A config's ``rename`` and ``ignore`` tables: keys with placeholders, as in layouts' tables."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.model_src.checkpoint.keymap import (
    WORDS,
    Rule,
    Words,
    fill,
    placeholders,
    wrong_placeholders,
)
from tfexport.model_src.checkpoint.overrides import (
    MORE_KEYS,
    TABLE_KEYS,
    Source,
    Text,
    name_origin,
    read_json,
)
from tfexport.model_src.checkpoint.state_dict import MAX_KEY_LENGTH
from tfexport.model_src.checkpoint.unsupported import MODULE, is_ours
from tfexport.model_src.config import config_keys, unknown_keys

Rename = str | os.PathLike[str] | Mapping[str, Any]
_AUTO = "auto"  # former versions matched names for it
_NO_MATCHING = Message(
    Option("rename", _AUTO),
    " is not there any more, because names do not show what a forward computes: name the JSON file "
    "of a table of keys to names, ",
    Option("rename", "names.json"),
    f" (docs/checkpoints.md, other names), or {MODULE}",
)
_MAX_RULES = 2**10
_MAX_WORDS = 2**8  # of one placeholder
_MAX_PLACEHOLDERS = 2**3  # of one key
_MAX_WAYS = 2**6  # to read one key


@dataclass(frozen=True)
class RenameTables:
    """Changes of a file's keys before its layout is detected.

    Attributes:
        rename: the rules; the first that matches a key wins.
        ignore: keys that may stay unread, as rules without targets.
    """

    rename: tuple[Rule, ...] = ()
    ignore: tuple[Rule, ...] = ()

    def ignores(self, *names: str) -> bool:
        """Whether a key with these names, before and after renaming, may stay unread."""
        return any(rule.match(name) is not None for rule in self.ignore for name in names)


def table_source(rename: Rename) -> Source:
    """The table that a caller gives, or that of a JSON file.

    Raises:
        CheckpointError, ConfigError: the file cannot be read, or is not a JSON object.
    """
    if isinstance(rename, Mapping) or rename == _AUTO:
        return Source("rename", {"rename": rename})
    return Source("rename", {"rename": read_json(Path(rename))})


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
    rename, words = _read_rename(tables.get("rename", {}), problems)
    ignore = _read_ignore(tables.get("ignore", ()), words, problems)
    if problems:
        raise ConfigError(join_problems("config", [*unknown_config_keys(ours), *problems[:8]]))
    return RenameTables(rename, ignore)


def unknown_config_keys(sources: Iterable[Source]) -> list[Message]:
    """A sentence for each key that tfexport's config does not have, with its file."""
    return [
        Message(name_origin(source.origin), f": {problem}")
        for source in sources
        for problem in unknown_keys(source.values, (*config_keys(), *MORE_KEYS))
    ]


def _read_rename(table: Any, problems: list[Text]) -> tuple[tuple[Rule, ...], Words]:
    if table == _AUTO:
        problems.append(_NO_MATCHING)
        return (), WORDS
    if not isinstance(table, Mapping):
        problems.append("rename: expected an object of keys to names")
        return (), WORDS
    if len(table) > _MAX_RULES:
        problems.append(f"rename: {len(table)} rules, more than {_MAX_RULES}")
        return (), WORDS
    words: dict[str, Mapping[str, str]] = dict(WORDS)
    for key, value in table.items():
        if isinstance(value, Mapping):  # the words of a placeholder
            name = placeholders(str(key))
            simple = len(name) == 1 and key == f"{{{name[0]}}}" and name[0].isidentifier()
            if not simple or not _are_words(value):
                problems.append(f"rename: {shown(key)} is not a {{placeholder}} with its words")
            elif len(value) > _MAX_WORDS:
                problems.append(f"rename: {shown(key)}: {len(value)} words, more than {_MAX_WORDS}")
            else:
                words[name[0]] = value
    rules = []
    for key, target in table.items():
        if isinstance(target, Mapping):
            continue
        if not isinstance(key, str) or not isinstance(target, str):
            problems.append(f"rename: {shown(key)}: {shown(target)} is not a name")
        elif (wrong := _wrong_rule(key, target, words)) is not None:
            problems.append(f"rename: {shown(key)}: {wrong}")
        else:
            rules.append(Rule(key, target, words=words))
    return tuple(rules), words


def _are_words(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(isinstance(it, str) for pair in value.items() for it in pair)


def _wrong_rule(key: str, target: str, words: Words) -> str | None:
    for text in (key, target):
        if len(text) > MAX_KEY_LENGTH:
            return f"more than {MAX_KEY_LENGTH} characters"
        if (wrong := wrong_placeholders(text, words)) is not None:
            return wrong
    names = placeholders(key)
    if len(names) > _MAX_PLACEHOLDERS:
        return f"{len(names)} placeholders, more than {_MAX_PLACEHOLDERS}"
    ways = math.prod(_most_prefixes(words[name]) for name in names if name in words)
    if ways > _MAX_WAYS:
        return "too many words of its placeholders begin with each other; write several rules"
    lost = [name for name in placeholders(target) if name not in names]
    return f"{{{lost[0]}}} is in the name, but not in the key" if lost else None


def _most_prefixes(words: Iterable[str]) -> int:
    """How many words of a list one text can begin with: in how many ways it is read."""
    begun: list[str] = []  # words that each begin with the one before
    most = 1
    for word in sorted(words):
        while begun and not word.startswith(begun[-1]):
            begun.pop()
        begun.append(word)
        most = max(most, len(begun))
    return most


def _read_ignore(table: Any, words: Words, problems: list[Text]) -> tuple[Rule, ...]:
    keys = [table] if isinstance(table, str) else table
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        problems.append("ignore: expected a list of keys")
        return ()
    if len(keys) > _MAX_RULES:
        problems.append(f"ignore: {len(keys)} keys, more than {_MAX_RULES}")
        return ()
    wrong = [(key, text) for key in keys if (text := _wrong_rule(key, "", words)) is not None]
    problems += [f"ignore: {shown(key)}: {text}" for key, text in wrong]
    return () if wrong else tuple(Rule(key, "", words=words) for key in keys)


def rename_keys(keys: Iterable[str], tables: RenameTables) -> dict[str, str | None]:
    """Every key with its name after the first rule that matches it; None if it is ignored.

    A key is ignored if it is in the table before or after renaming.

    Raises:
        ConfigError: two keys would get one name, or a rule makes too long a name.
    """
    names: dict[str, str | None] = {}
    problems: list[str] = []
    taken: dict[str, str] = {}
    for key in keys:
        name = _rename(key, tables.rename)
        if tables.ignores(key, name):
            names[key] = None
            continue
        if len(name) > MAX_KEY_LENGTH:
            problems.append(f"{key} becomes a name of {len(name)} characters")
        names[key] = name
        if (other := taken.setdefault(name, key)) != key:
            problems.append(f"{other} and {key} both become {name}")
    if problems:
        raise ConfigError(join_problems("rename", sorted(set(problems))[:8]))
    return names


def _rename(key: str, rules: Iterable[Rule]) -> str:
    for rule in rules:
        if (values := rule.match(key)) is not None:
            return fill(rule.target, values)
    return key
