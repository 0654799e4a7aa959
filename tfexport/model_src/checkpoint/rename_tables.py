"""A config's ``rename`` and ``ignore`` tables: keys with placeholders, as in layouts' tables."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import ConfigError, Message, join_problems, shown
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
)
from tfexport.model_src.checkpoint.state_dict import MAX_KEY_LENGTH
from tfexport.model_src.checkpoint.unsupported import is_ours
from tfexport.model_src.config import config_keys, unknown_keys

AUTO = "auto"  # in place of a table: names are matched; see ``name_matching``
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
        automatic: names are matched, in place of a table.
    """

    rename: tuple[Rule, ...] = ()
    ignore: tuple[Rule, ...] = ()
    automatic: bool = False

    def ignores(self, *names: str) -> bool:
        """Whether a key with these names, before and after renaming, may stay unread."""
        return any(rule.match(name) is not None for rule in self.ignore for name in names)


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
    rename, words = tables.get("rename", {}), WORDS
    automatic = rename == AUTO
    if not automatic:
        rename, words = _read_rename(rename, problems)
    ignore = _read_ignore(tables.get("ignore", ()), words, problems)
    if problems:
        raise ConfigError(join_problems("config", [*unknown_config_keys(ours), *problems[:8]]))
    return RenameTables(() if automatic else rename, ignore, automatic)


def unknown_config_keys(sources: Iterable[Source]) -> list[Message]:
    """A sentence for each key that tfexport's config does not have, with its file."""
    return [
        Message(name_origin(source.origin), f": {problem}")
        for source in sources
        for problem in unknown_keys(source.values, (*config_keys(), *MORE_KEYS))
    ]


def _read_rename(table: Any, problems: list[Text]) -> tuple[tuple[Rule, ...], Words]:
    if not isinstance(table, Mapping):
        problems.append(f"rename: expected an object of keys to names, or {AUTO!r}")
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


# Tables that are written: what was matched, for a config.


# A word of an own name, and the placeholder that it becomes.
_PLACES = (
    ("layer", r"(?<=\.layers\.)([0-9]+)"),
    ("head", r"(?<=_proj\.)([0-9]+)"),
    ("kind", r"(?<=\.)(weight|bias)$"),
    ("qkv", r"(?<=\.)(q|k|v)(?=_proj)"),
    ("stack", r"^(encoder|decoder)(?=\.)"),
    ("side", r"^(source|target)(?=_embedding)"),
)


def write_table(names: Mapping[str, str]) -> dict[str, Any]:
    """A rename table in few rules.

    Args:
        names: keys with their new names.
    """
    pairs = list(names.items())
    lists: dict[str, Any] = {}
    for name, pattern in _PLACES:
        pairs, words = _merge(pairs, name, pattern)
        if any(theirs != ours for theirs, ours in words.items()) and name in WORDS:
            lists[f"{{{name}}}"] = words
    table = {**lists, **dict(pairs)}
    rules, _ = _read_rename(table, [])
    made = {key: _rename(key, rules) for key in names}
    return table if made == names else dict(names)


def _merge(
    pairs: list[tuple[str, str]], name: str, pattern: str
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Join rules that differ in one word; and the words that they differ in, with ours."""
    groups: dict[str, dict[str, str]] = {}
    for key, target in pairs:
        word = re.search(pattern, target)
        stem = re.sub(pattern, f"{{{name}}}", target)
        groups.setdefault(stem, {})[word[0] if word else ""] = key
    words: dict[str, str] = {}
    merged = []
    for stem, keys in groups.items():
        split = _split(list(keys.values()), list(keys), name)
        given = dict(zip(split[1], keys, strict=True)) if split is not None else {}
        usual = len(given) == (len(WORDS[name]) if name in WORDS else len(keys))
        if not usual or any(words.get(theirs, ours) != ours for theirs, ours in given.items()):
            merged += [(key, stem.replace(f"{{{name}}}", word)) for word, key in keys.items()]
            continue
        assert split is not None
        words |= given
        merged.append((split[0], stem))
    return merged, words


def _split(keys: list[str], ours: list[str], name: str) -> tuple[str, list[str]] | None:
    """Keys that differ in one word as one key with a placeholder, and their words."""
    if "" in ours:
        return None
    if len(keys) == 1:
        found = re.search(rf"(?<![0-9]){ours[0]}(?![0-9])", keys[0])
        if name in WORDS or found is None:
            return None
        return f"{keys[0][: found.start()]}{{{name}}}{keys[0][found.end() :]}", ours
    start = _alike(keys)
    end = _alike([key[start:][::-1] for key in keys])
    letters = "[0-9]" if name not in WORDS else "[A-Za-z]"
    if any(len(key) - start - end != 1 for key in keys):  # complete words, but "w_qs" is split
        while start and re.match(letters, keys[0][start - 1]):
            start -= 1
        while end and re.match(letters, keys[0][-end]):
            end -= 1
    words = [key[start : len(key) - end] for key in keys]
    simple = words == ours if name not in WORDS else all(map(str.isalpha, words))
    if not simple:
        return None
    return f"{keys[0][:start]}{{{name}}}{keys[0][len(keys[0]) - end :]}", words


def _alike(keys: Sequence[str]) -> int:
    """With how many characters all keys begin."""
    same = itertools.takewhile(lambda each: len({*each}) == 1, zip(*keys, strict=False))
    return sum(1 for _ in same)
