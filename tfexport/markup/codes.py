"""Inline codes of XLIFF, which stand for markup of the file that its texts are from.

Sources: XLIFF 1.2 and 2.1 of OASIS; https://angular.dev/guide/i18n for ``START_`` and ``CLOSE_``.
"""

import html
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tfexport.markup.tokens import WHITE, Token

# What is a program's in these elements.
CODES = ("ph", "bpt", "ept", "it", "sm", "em", "sc", "ec", "x", "bx", "ex", "cp")
_START_TAG = re.compile(r"<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
_ATTRIBUTE = re.compile(r"([\w:.-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
# The attributes by which the beginning and the end of something find one another.
_BEGINS = {"bpt": ("rid", "id"), "bx": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
_ENDS = {
    "ept": ("bpt", "rid", "id"), "ex": ("bx", "rid", "id"), "ec": ("sc", "startRef"),
    "em": ("sm", "startRef"),
}  # fmt: skip
_OF_ANGULAR = re.compile(r"(START|CLOSE)_(\w+?)(?:_\d+)?")
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_SHOWN = ("disp", "equiv-text", "equiv")  # attributes for what a reader sees of a code


def start_tag(raw: str) -> str:
    """The start tag of an element; empty if there is none."""
    match = _START_TAG.match(raw)
    return match[0] if match else ""


def attributes_of(raw: str) -> dict[str, str]:
    """The attributes of an element."""
    return {
        match[1]: html.unescape(match[2] or match[3] or "")
        for match in _ATTRIBUTE.finditer(start_tag(raw))
    }


def local_name(name: str) -> str:
    """The name of an element without its prefix."""
    return name.rpartition(":")[2]


def pair_codes(tokens: Sequence[Token]) -> list[Token]:
    """Tokens in which the two codes at either end of something are the tags of an element.

    So their end never gets before their beginning. A code that stands for a value, such as
    ``{{name}}``, is a placeholder.

    Args:
        tokens: of a text, in which each code is one token.
    """
    paired, opened = list(tokens), defaultdict[tuple[str, str], list[int]](list)
    for place, token in enumerate(tokens):
        name = local_name(token.name)
        if token.kind not in ("empty", "kept") or name not in CODES:
            continue
        attributes = attributes_of(token.raw)
        key, begins = _end_of_pair(name, attributes)
        if key is None or (not begins and not opened[key]):
            if token.kind == "empty" and name in ("x", "ph"):
                paired[place] = _as_value(token, attributes)
        elif begins:
            opened[key].append(place)
        else:
            start = opened[key].pop()
            of_pair = " ".join(key)
            paired[start] = Token("open", tokens[start].raw, name=of_pair)
            paired[place] = Token("close", token.raw, name=of_pair)
    return paired


def _end_of_pair(
    name: str, attributes: dict[str, str]
) -> tuple[tuple[str, str] | None, bool]:  # fmt: skip
    """The kind and the name of the pair that a code belongs to, and whether it begins that.

    The pair is None of a code that stands alone.
    """
    if name == "x":
        match = _OF_ANGULAR.fullmatch(attributes.get("id", ""))
        return (None, False) if match is None else ((name, match[2]), match[1] == "START")
    kind, *names = (name, *_BEGINS[name]) if name in _BEGINS else _ENDS.get(name, (name,))
    number = next((attributes[each] for each in names if attributes.get(each)), None)
    return (None, False) if number is None else ((kind, number), name in _BEGINS)


def _as_value(token: Token, attributes: dict[str, str]) -> Token:
    """A code without content as the value that it stands for, if it is no tag.

    The code of a line break ends a sentence.
    """
    shown = next((attributes[name] for name in _SHOWN if attributes.get(name)), "")
    shown = WHITE.sub(" ", shown).strip()
    kind = attributes.get("ctype", attributes.get("subType"))
    if kind in ("lb", "xlf:lb") or _LINE_BREAK.fullmatch(shown):
        return Token("empty", token.raw, "block")
    if shown.startswith("<") or not re.search(r"[\w{%]", shown):
        return token
    return replace(token, kind="kept", text=shown)
