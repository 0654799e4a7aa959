"""Parts of texts that a translation keeps letter for letter: ``%s``, ``{name}``, addresses."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tfexport.errors import ConfigError, Message, Option, Problem, join_problems

Kind = Literal["url", "email", "printf", "braces", "icu", "emoji", "number"]
# Characters of an address, other than parentheses, and those that it may end with.
_URL = r"[^\s<>\"'{}|\\^`()]"
_URL_END = r"[^\s<>\"'{}|\\^`()\[\].,;:!?]"
_IN_PARENTHESES = rf"\({_URL}*\)"
_ADDRESS = rf"(?:{_URL}|{_IN_PARENTHESES})*(?:{_URL_END}|{_IN_PARENTHESES})"
# Pictures and signs, most of which models have no token for, and what joins and changes them.
_PICTURE = (
    r"(?:[\u2190-\u21ff\u231a\u231b\u23e9-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    r"|[0-9#*]\ufe0f?\u20e3)[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)
# Kind to pattern; docs/markup.md has an example of each.
PATTERNS: dict[Kind, str] = {
    "url": rf"(?:https?|ftp)://{_ADDRESS}|\bwww\.{_ADDRESS}",
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "printf": r"%(?:\d+\$)?(?:\([^()\s]{1,80}\))?[-+0#]{0,5}(?:\d+|\*)?(?:\.(?:\d+|\*))?"
    r"(?:hh|h|ll|l|L|q|j|z|t)?[sdiuoxXfFeEgGaAcCp@](?![^\W_])"
    r"|%%|%(?:n|L?\d{1,2})(?![\w%])",
    "braces": r"\$?\{\{[^{}]{1,200}\}\}|[$#]\{[^{}]{1,200}\}|%\{[^{}]{1,200}\}"
    r"|\{[^{}\s,]{0,80}\}|\{ [^{}\s,]{1,80} \}|\$t\([^()]{1,200}\)"
    r"|\{%[^{}]{1,200}%\}|\{#[^{}]{1,200}#\}|<%(?:[^%<]|%(?!>)|<(?!%)){1,200}%>",
    "icu": "",  # nested braces, which no pattern describes: see ``_icu``
    "emoji": rf"{_PICTURE}(?:\u200d?{_PICTURE})*",
    "number": r"(?<![\w.,:/+-])[-+]?\d+(?:[.,:/-]\d+)*%?(?![\w])",
}
KINDS: tuple[Kind, ...] = tuple(PATTERNS)
USUAL: tuple[Kind, ...] = ("url", "email", "printf", "braces", "icu", "emoji")
_ICU = re.compile(
    r"\{\s*[\w.]{1,80}\s*,\s*(?:plural|select|selectordinal|number|date|time|choice)\b"
)
_MOST_PATTERNS = 20
_LONGEST_PATTERN = 200


@dataclass(frozen=True)
class Placeholders:
    """The placeholders that texts may contain.

    Attributes:
        kinds: names of ``KINDS``.
        patterns: further regular expressions, such as ``@[a-z]+@``.
    """

    kinds: Sequence[Kind] = USUAL
    patterns: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = [
            Problem("placeholders", f"{kind!r} is not one of {', '.join(KINDS)}")
            for kind in self.kinds
            if kind not in PATTERNS
        ]
        if len(self.patterns) > _MOST_PATTERNS:
            problems.append(Problem(None, f"more than {_MOST_PATTERNS} patterns"))
        for pattern in self.patterns[:_MOST_PATTERNS]:
            problems += _problems_of(pattern)
        if problems:
            raise ConfigError(join_problems("placeholders", problems))

    def find(self, text: str) -> list[tuple[int, int]]:
        """The start and end of every placeholder; of two that overlap, the first and longest."""
        found = list[tuple[int, int]]()
        for kind in self.kinds:
            if kind == "icu":
                found += _icu(text)
            else:
                found += [one.span() for one in re.finditer(PATTERNS[kind], text)]
        for pattern in self.patterns:
            found += [one.span() for one in re.finditer(pattern, text)]
        kept, last = list[tuple[int, int]](), 0
        for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
            if start >= last and end > start:
                kept.append((start, end))
                last = end
        return kept


def _problems_of(pattern: str) -> list[Problem]:
    if len(pattern) > _LONGEST_PATTERN:
        text = f" of more than {_LONGEST_PATTERN} characters: {pattern[:40]!r}…"
        return [Problem(None, Message("a ", Option("placeholder_pattern"), text))]
    try:
        empty = re.compile(pattern).match("") is not None
    except (re.error, OverflowError, RecursionError) as error:
        return [Problem(None, f"{pattern!r} is not a regular expression: {error}")]
    return [Problem(None, f"{pattern!r} matches the empty text")] if empty else []


def _icu(text: str) -> list[tuple[int, int]]:
    """Messages of ICU, such as ``{n, plural, one {# day} other {# days}}``."""
    ends, opened = dict[int, int](), list[int]()
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            ends[opened.pop()] = brace.end()
    starts = [found.start() for found in _ICU.finditer(text)]
    return [(start, ends[start]) for start in starts if start in ends]


def occurrences(text: str, literals: Iterable[str]) -> list[tuple[int, int]] | None:
    """Where each of some texts occurs; None unless each occurs as often as it is listed.

    Args:
        text: a translation.
        literals: in the order of the result; a literal that is listed twice has to occur twice.
    """
    listed = [*literals]
    wanted = Counter(listed)
    longest_first = sorted(wanted, key=lambda literal: (-len(literal), literal))
    pattern = "|".join(map(_bounded, longest_first))
    places: dict[str, list[tuple[int, int]]] = {literal: [] for literal in wanted}
    for found in re.finditer(pattern, text):
        places[found[0]].append(found.span())
    if any(len(places[literal]) != count for literal, count in wanted.items()):
        return None
    return [places[literal].pop(0) for literal in listed]


def _bounded(literal: str) -> str:
    """A pattern of a literal that is no part of a longer word."""
    before = r"(?<!\w)" if literal[:1].isalnum() else ""
    after = r"(?!\w)" if literal[-1:].isalnum() else ""
    return before + re.escape(literal) + after


def is_picture(literal: str) -> bool:
    """Whether a placeholder is an emoji or a sign, in whose place no name would be said."""
    return re.fullmatch(PATTERNS["emoji"], literal) is not None


def stand_ins(text: str, count: int) -> list[str] | None:
    """Words that most models copy, which a text does not contain; None if there are too few."""
    free = [word for word in _NAMES if word not in text]
    return free[:count] if len(free) >= count else None


# Short names: models copy them, and sentences stay sentences around them.
_NAMES = ("Tom", "Maria", "Anna", "Peter", "Paul", "Martin", "David", "Laura", "Daniel", "Eva")
