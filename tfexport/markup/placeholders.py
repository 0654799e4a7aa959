"""Parts of texts that a translation keeps letter for letter: ``%s``, ``{name}``, addresses."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tfexport.errors import ConfigError, Message, Option, Problem, join_problems
from tfexport.markup.directives import DIRECTIVES, PROGRAM

Kind = Literal["url", "email", "printf", "braces", "icu", "emoji", "number"]
# Characters of an address, other than parentheses, and those that it may end with.
_FILLED = r"[$%#]?\{[\w.]{1,80}\}"
_URL = rf"(?:{_FILLED}|[^\s<>\"'{{}}|\\^`()])"
_URL_END = rf"(?:{_FILLED}|[^\s<>\"'{{}}|\\^`()\[\].,;:!?])"
_IN_PARENTHESES = rf"\({_URL}*\)"
_ADDRESS = rf"(?:{_URL}|{_IN_PARENTHESES})*(?:{_URL_END}|{_IN_PARENTHESES})"
# Pictures and signs, most of which models have no token for, and what joins and changes them.
_PICTURE = (
    r"(?:[\u2190-\u21ff\u231a\u231b\u23e9-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    r"|[0-9#*]\ufe0f?\u20e3)[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)
# What follows the sign of a directive of printf, its number or name, and its flags.
_SIZED = r"(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh|h|ll|l|L|q|j|z|t)?[sdiuoxXfFeEgGaAcCpr@]"
# Kind to pattern; docs/markup.md has an example of each.
PATTERNS: dict[Kind, str] = {
    "url": rf"(?:https?|ftp)://{_ADDRESS}|\bwww\.{_ADDRESS}",
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    # Numbered and named ones are nothing else. A letter that follows the others may make a word of
    # them (100%ig), but not a unit (%dkg) that follows no number; nor do flags follow one (10%-a).
    "printf": rf"%(?:\d{{1,3}}\$|\([^()\s]{{1,80}}\))[-+0#,]{{0,5}}{_SIZED}"
    rf"|%{_SIZED}(?![^\W_])|(?<!\d)%[-+0#,]{{1,5}}{_SIZED}(?![^\W_])"
    r"|(?<!\d)(?<!\d\s)%(?:[dsf]|\.\d{1,3}f)(?=[^\W\d_]{1,3}(?![^\W_]))"
    r"|%#@\w{1,80}@|%%|%(?:n|L?\d{1,2})(?![\w%])",
    "braces": r"\{\{\{[^{}]{1,200}\}\}\}|\{!![^{}]{1,200}!!\}|\[%[^\[\]]{1,200}%\]"
    r"|\{\{=[^={}]{1,40}=\}\}|\{[^{}$]{0,100}\$[A-Za-z_][^{}]{0,200}\}"
    r"|<\?(?:php\b|=)(?:[^?]|\?(?!>)){1,200}\?>|(?<!\w)@[a-z]{2,20}\([^()]{0,200}\)"
    r"|\$?\{\{[^{}]{1,200}\}\}|(?:\$!?|#)\{[^{}]{1,200}\}|(?<!%)%\{[^{}]{1,200}\}"
    r"|\{[^{}\s,]{0,80}\}|\{ [^{}\s,]{1,80} \}|\$t\([^()]{1,200}\)"
    r"|\{%[^{}]{1,200}%\}|\{#[^{}]{1,200}#\}|<%(?:[^%<]|%(?!>)|<(?!%)){1,200}%>",
    "icu": "",  # nested braces, which no pattern describes: see ``_icu``
    "emoji": rf"{_PICTURE}(?:\u200d?{_PICTURE})*",
    "number": r"(?<![\w.,:/+-])[-+]?\d+(?:[.,:/-]\d+)*%?(?![\w])",
}
KINDS: tuple[Kind, ...] = tuple(PATTERNS)
# Parts of which each match of a kind has one: most texts have none, and are not searched.
_SIGNS: dict[Kind, tuple[str, ...]] = {
    "url": ("://", "www."),
    "email": ("@",),
    "printf": ("%",),
    "braces": ("{", "[%", "$t(", "<%", "<?", "@"),
    "icu": ("{",),
}
USUAL: tuple[Kind, ...] = ("url", "email", "printf", "braces", "icu", "emoji")
_ICU = re.compile(
    r"\{\s*[\w.]{1,80}\s*,\s*(?:plural|select|selectordinal|number|date|time|choice)\b"
)
_FORMS = re.compile(r"\{\s*[\w.]{1,80}\s*,\s*(plural|select|selectordinal|choice)\b")
# What is a part of the placeholder that it touches: a sign before it, what follows it, and what is
# between two of them. Models pull these apart.
_BEFORE = re.compile(r"(?<![^\s(\[\"'])[-+\u2212#@~$\u20ac\u00a3\u00a5]\Z")
_AFTER = re.compile(
    r"(?<=[A-Za-z])[^\W\d_]{1,3}(?![^\W_])"  # %ds, %.1fMB, and short words: %sund
    r"|@[\w-]{1,63}(?:\.[\w-]{1,63})+|[%\u2030\u00b0$\u20ac\u00a3\u00a5](?!\w)"
)
# Letters that touch a name in braces: v{n}, {n}px, {n}er. Scripts without spaces have words there.
_LETTERS_BEFORE = re.compile(r"(?<![^\s(\[\"'])[A-Za-z]{1,2}\Z")
_LETTERS_AFTER = re.compile(r"[A-Za-z\xc0-\u024f]{1,3}(?![^\W_]|\{)")
_BETWEEN = re.compile(r"[^\s\w]{1,2}|[x_]")
_MOST_PATTERNS = 20
_LONGEST_PATTERN = 200


@dataclass(frozen=True)
class Placeholders:
    """The placeholders that texts may contain.

    Attributes:
        kinds: names of ``KINDS``.
        patterns: further regular expressions, such as ``@[a-z]+@``.
        directives: formats whose directives they may be too, names of ``DIRECTIVES``.
        signs: parts of which each match of ``patterns`` has one; empty if that is not known.
    """

    kinds: Sequence[Kind] = USUAL
    patterns: Sequence[str] = ()
    directives: Sequence[str] = ()
    signs: Sequence[str] = ()

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
        """The start and end of every placeholder.

        Of two that overlap, it is the first and longest; those that touch are one.
        """
        found = list[tuple[int, int]]()
        for kind in self.kinds:
            if kind in _SIGNS and not _has_any(text, _SIGNS[kind]):
                continue
            if kind == "icu":
                found += _icu(text)
            elif kind != "emoji" or not text.isascii():
                found += [one.span() for one in re.finditer(PATTERNS[kind], text)]
        for name in self.directives:
            found += [one.span() for one in DIRECTIVES[name].finditer(text)]
        for pattern in self.patterns if not self.signs or _has_any(text, self.signs) else ():
            found += [one.span() for one in re.finditer(pattern, text)]
        if not found:
            return []
        kept, last = list[tuple[int, int]](), 0
        for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
            if start >= last and end > start:
                kept.append((start, end))
                last = end
        return _joined(text, kept)

    def of_programs(self) -> "Placeholders":
        """Those of them that are nothing else, which a translation may not bring in."""
        foreign = _FOREIGN if {"printf", "braces"} & {*self.kinds} else _NONE
        directives = tuple(name for name in self.directives if name != PROGRAM)
        return replace(foreign, directives=directives) if directives else foreign

    def messages(self, text: str) -> list[tuple[int, int]]:
        """The start and end of every message of ICU, of one line or several."""
        return _icu(text) if "icu" in self.kinds else []


def _has_any(text: str, signs: Sequence[str]) -> bool:
    return any(sign in text for sign in signs)


def _joined(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Placeholders with the signs that touch them, those that touch as one."""
    joined = list[tuple[int, int]]()
    for start, end in spans:
        named = text[start] == "{" and text[end - 1] == "}" and " " not in text[start:end]
        if not joined or joined[-1][1] < start:
            start -= _BEFORE.search(text[max(0, start - 2) : start]) is not None
        if named and (letters := _LETTERS_BEFORE.search(text[max(0, start - 3) : start])):
            start -= len(letters[0])
        if after := _AFTER.match(text, end) or (named and _LETTERS_AFTER.match(text, end)):
            end = after.end()
        between = text[joined[-1][1] : start] if joined else " "
        if joined and (start <= joined[-1][1] or _BETWEEN.fullmatch(between)):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _problems_of(pattern: str) -> list[Problem]:
    if len(pattern) > _LONGEST_PATTERN:
        text = f" of more than {_LONGEST_PATTERN} characters: {pattern[:40]!r}…"
        return [Problem(None, Message("a ", Option("placeholder_pattern"), text))]
    try:
        empty = re.compile(pattern).match("") is not None
    except (re.error, OverflowError, RecursionError) as error:
        return [Problem(None, f"{pattern!r} is not a regular expression: {error}")]
    return [Problem(None, f"{pattern!r} matches the empty text")] if empty else []


_DIRECTIVE = r"(?<!\d)(?<!\d\s)%[sd](?!\w)"  # in a translation: not that of 50 %s
# What is nothing else in a text of any kind; docs/markup.md says where these alone are kept.
CERTAIN = Placeholders(
    (),
    (
        r"%\(\w{1,80}\)[sdifr]|%\d{1,2}\$[sdif@]",
        r"[$]\{[A-Za-z_][\w.]{0,79}\}|\{\{\s?[\w.]{1,80}\s?\}\}",
        r"(?<!\{)\{[A-Za-z_][\w.]{0,79}\}(?!\})",
    ),
)


_FOREIGN = Placeholders((), (*CERTAIN.patterns, _DIRECTIVE), signs=("%", "{"))
_NONE = Placeholders(())


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


def has_forms(literal: str) -> bool:
    """Whether a placeholder is a message of ICU with words for numbers or other choices."""
    found, depth = _FORMS.match(literal), 0
    for character in literal if found else "":
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth > 0 and depth % 2 == 0 and character.isalpha():  # else it is of a name
            return True
    return found is not None and found[1] == "choice"


def occurrences(text: str, literals: Iterable[str]) -> list[tuple[int, int]] | None:
    """Where each of some texts occurs; None unless each occurs as often as it is listed.

    Args:
        text: a translation.
        literals: in the order of the result; a literal that is listed twice has to occur twice.
    """
    listed = [*literals]
    if not listed:
        return []
    wanted = Counter(listed)
    longest_first = sorted(wanted, key=lambda literal: (-len(literal), literal))
    pattern = "|".join(map(_bounded, longest_first))
    places: dict[str, list[tuple[int, int]]] = {literal: [] for literal in wanted}
    for found in re.finditer(pattern, text):
        places[found[0]].append(found.span())
    if any(len(places[literal]) != count for literal, count in wanted.items()):
        return None
    return [places[literal].pop(0) for literal in listed]


def listed(text: str, literals: Iterable[str]) -> list[str]:
    """The literals that a text has, as often and in the order that it has them."""
    longest_first = sorted({*literals}, key=lambda literal: (-len(literal), literal))
    return re.findall("|".join(map(_bounded, longest_first)), text)


def occurs(text: str, literal: str) -> bool:
    """Whether a literal occurs in a text, not as a part of a longer word."""
    return re.search(_bounded(literal), text) is not None


def _bounded(literal: str) -> str:
    """A pattern of a literal that is no part of a longer word."""
    before = r"(?<!\w)" if literal[:1].isalnum() else ""
    after = r"(?!\w)" if literal[-1:].isalnum() else ""
    return before + re.escape(literal) + after


def is_picture(literal: str) -> bool:
    """Whether a placeholder is an emoji or a sign, in whose place no name would be said."""
    return re.fullmatch(PATTERNS["emoji"], literal) is not None


# Directives that take the arguments of their call in turn, so that their order is a part of them.
_IN_TURN = re.compile(
    r"%[-+#0,' ]*(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*)?)?(?:hh|h|ll|l|L|q|j|z|t)?"
    r"(?:<PRI\w{1,20}>|(?![nlL])[A-Za-z@])|\{(?::[^{}]*)?\}"
)


def is_in_turn(literal: str) -> bool:
    """Whether a placeholder has no number or name, so that it has to stay in its order."""
    return _IN_TURN.search(literal.replace("%%", "")) is not None


def stand_ins(text: str, count: int) -> list[str] | None:
    """Words that most models copy, which a text does not contain; None if there are too few."""
    free = [word for word in _NAMES if word not in text]
    return free[:count] if len(free) >= count else None


# Short names: models copy them, and sentences stay sentences around them.
_NAMES = ("Tom", "Maria", "Anna", "Peter", "Paul", "Martin", "David", "Laura", "Daniel", "Eva")
