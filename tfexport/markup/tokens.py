"""Markup as a row of tokens, and the runs of words between block elements."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tfexport.errors import InputError

Kind = Literal["text", "open", "close", "empty", "kept"]
Flow = Literal["inline", "block", "hidden"]
MOST_TAGS = 500_000  # of a text; each takes some 200 bytes
WHITE = re.compile(r"[ \t\n\r\f]+")
ONE_LINE = re.compile(r"(\r\n|\r|\n)")
# What programs read in a page: its branches are texts of their own. A block of code or a comment is
# kept whole; the text of one has no start of another one, so that it is looked through once.
_BLOCK_START = r"\{%-?\s*(?:highlight|raw|verbatim|comment)\b[^{}]{0,100}%\}"
CODE_BLOCK = (
    rf"{_BLOCK_START}(?:(?!{_BLOCK_START})(?:.|\n)){{0,5000}}?"
    r"\{%-?\s*end(?:highlight|raw|verbatim|comment)\s*-?%\}"
)
STATEMENT = re.compile(
    rf"({CODE_BLOCK}|\{{\{{--(?:(?!\{{\{{--)(?:.|\n)){{0,2000}}?--\}}\}}"
    r"|(?<!\{)\{%[^{}]{1,300}%\}(?!\})|(?<!\{\{=)<%(?![=-])(?:[^%<]|%(?!>)|<(?!%)){1,300}%>"
    r"|\{\{[-~]?\s?(?:[%<#/^!>]|(?:if|else|end|range|with|block|define|template)(?=\s|[-~]?\}\}))"
    r"[^{}]{0,300}\}\})"
)
# A line of Blade: a directive with what it is about, whose parentheses may have some in them.
_IN_BRACKETS = r"(?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*"
BLADE = re.compile(
    rf"((?:(?<=\n)|\A)[ \t]*@[a-z][A-Za-z]{{1,30}}(?:[ \t]*\({_IN_BRACKETS}\))?[ \t]*(?=\n|\Z))"
)
# Elements whose content is kept: programs and what computers write.
_KEPT = frozenset((
    "code", "kbd", "samp", "script", "style", "svg", "math", "template", "textarea", "var",
    "iframe", "xmp", "plaintext", "noframes", "canvas", "object", "noembed",
))  # fmt: skip


@dataclass(frozen=True)
class TagRules:
    """Which elements end a sentence, and which are kept.

    Attributes:
        ignored: names of elements whose content is not translated.
        splitting: names of elements that end a sentence.
        inline: names of elements that never do.
        outline: whether elements of XML without text around them end a sentence.
        program: whether the text is of a program or a subtitle: ``<1>``, ``</1>``, ``<1/>`` and the
            times ``<00:01.500>`` are tags, and an empty line and a line break after the end of a
            sentence end one.
        literals: placeholders that have the form of tags, such as Ruby's ``%<name>d``.
        codes: whether the text is of XLIFF, whose codes at either end of something are an element.
        preserved: whether the line breaks of XML count, as with ``xml:space="preserve"``.
    """

    ignored: frozenset[str] = frozenset()
    splitting: frozenset[str] = frozenset()
    inline: frozenset[str] = frozenset()
    outline: bool = True
    program: bool = False
    literals: tuple[str, ...] = ()
    codes: bool = False
    preserved: bool = False


NO_RULES = TagRules()


@dataclass(slots=True)
class Token:
    """A piece of markup.

    Attributes:
        kind: text, a start tag, an end tag, an element without content, or markup that is kept as
            it is.
        raw: its characters in the source; joined, those of all tokens are the source.
        flow: whether it belongs to a sentence ("inline"), ends one ("block"), or belongs to one
            without being seen ("hidden"), as a comment does.
        name: of the element.
        text: without entities; of inline markup that is kept, what a reader sees of it.
        keep: whether the content of this start tag's element is kept as it is.
        end: the place after the element that this start tag begins; 0 while it is not known.
        closed: whether the token before ``end`` is the element's own end tag.
    """

    kind: Kind
    raw: str
    flow: Flow = "inline"
    name: str = ""
    text: str = ""
    keep: bool = False
    end: int = 0
    closed: bool = False


@dataclass
class Run:
    """Tokens of which a sentence may consist: text, complete inline elements, markup that is kept.

    Attributes:
        tokens: in order.
        ends: for the place of each start tag, the place of its end tag.
    """

    tokens: list[Token] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptPart:
    """A part of a file that stays as it is, though it may have words.

    Attributes:
        line: where it starts in the file, from 1; None if that is not known.
        text: the part.
        reason: why it stays.
    """

    line: int | None
    text: str
    reason: str


def escape(text: str) -> str:
    """Text as HTML and XML write it between tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def too_many_tags() -> InputError:
    """The error for a text with more than ``MOST_TAGS``."""
    return InputError(f"it has more than {MOST_TAGS:,} tags; translate it in parts")


def split_lines(token: Token, breaks: re.Pattern[str]) -> Iterator[Token]:
    """The lines of a text, each of which is a sentence or more."""
    raws = breaks.split(token.raw)
    texts = breaks.split(token.text)
    if len(raws) != len(texts):  # a line break that is written as an entity
        yield token
        return
    for place, (raw, line) in enumerate(zip(raws, texts, strict=True)):
        if place % 2:
            yield Token("empty", raw, "block")
        elif raw:
            yield Token("text", raw, text=line)


def is_kept(name: str, attributes: Mapping[str, str], rules: TagRules) -> bool:
    """Whether the content of an element stays as it is.

    Args:
        name: of the element, in small letters.
        attributes: of its start tag.
        rules: for elements, besides those of HTML.
    """
    return (
        name in _KEPT
        or name in rules.ignored
        or attributes.get("translate", "").strip().lower() == "no"
        or "notranslate" in attributes.get("class", "").split()
    )


def match_tags(tokens: Sequence[Token], ended_by: Mapping[str, frozenset[str]]) -> None:
    """Find where each element ends.

    An end tag ends the last open element of its name, and all in it. Elements without an end tag
    end with the element around them.

    Args:
        tokens: their ``end`` and ``closed`` are set.
        ended_by: for an element that needs no end tag, the elements whose start ends it.
    """
    stack, counts = list[Token](), dict[str, int]()

    def pop(place: int) -> Token:
        token = stack.pop()
        counts[token.name] -= 1
        token.end = place
        return token

    for place, token in enumerate(tokens):
        if token.kind in ("open", "empty"):
            while stack and token.name in ended_by.get(stack[-1].name, ()):
                pop(place)
        if token.kind == "open":
            stack.append(token)
            counts[token.name] = counts.get(token.name, 0) + 1
        elif token.kind == "close" and counts.get(token.name):
            while stack[-1].name != token.name:
                pop(place)
            pop(place + 1).closed = True
    while stack:
        pop(len(tokens))


def fold_kept(tokens: Sequence[Token]) -> list[Token]:
    """Make one token of each element whose content is kept as it is."""
    folded, place = list[Token](), 0
    while place < len(tokens):
        token = tokens[place]
        if token.kind != "open" or not token.keep:
            folded.append(token)
            place += 1
            continue
        inside = tokens[place : token.end]
        text = WHITE.sub(" ", "".join(one.text for one in inside)).strip()
        flow: Flow = token.flow if token.closed else "block"
        if flow == "inline" and not text:
            flow = "hidden"
        raw = "".join(one.raw for one in inside)
        folded.append(Token("kept", raw, flow, token.name, text))
        place = token.end
    return folded


def split_runs(tokens: Sequence[Token]) -> list[str | Run]:
    """Divide tokens into runs, and markup between them.

    A run ends at a block element, and at an inline tag whose element is not complete within the
    run: such a tag stays between the words that it was between.
    """
    if len(tokens) == 1 and tokens[0].kind == "text":  # as most messages are
        return [Run([*tokens])] if _seen(tokens[0]) else [tokens[0].raw]
    breaks = _breaks(tokens)
    parts, run, opened = list[str | Run](), Run(), list[int]()
    verbatim = list[str]()

    def end() -> None:
        nonlocal run
        if any(_seen(token) for token in run.tokens):
            if verbatim:
                parts.append("".join(verbatim))
            parts.append(run)
            verbatim.clear()
        else:
            verbatim.extend(token.raw for token in run.tokens)
        run = Run()

    for token, stops in zip(tokens, breaks, strict=True):
        if stops:
            end()
            verbatim.append(token.raw)
            continue
        if token.kind == "open":
            opened.append(len(run.tokens))
        elif token.kind == "close":
            run.ends[opened.pop()] = len(run.tokens)
        run.tokens.append(token)
    end()
    if verbatim:
        parts.append("".join(verbatim))
    return parts


def _seen(token: Token) -> bool:
    return token.kind == "text" and not token.text.isspace() and bool(token.text)


def _breaks(tokens: Sequence[Token]) -> list[bool]:
    """Whether each token ends a run."""
    breaks = [token.kind != "text" and token.flow == "block" for token in tokens]
    count = 0  # of breaks so far
    opened = list[tuple[int, int]]()  # start tags, and the count at each
    for place, token in enumerate(tokens):
        if breaks[place]:
            count += 1
        elif token.kind == "open":
            opened.append((place, count))
        elif token.kind == "close":
            # Start tags above the one that this ends have no end tag.
            while opened and tokens[opened[-1][0]].end <= place:
                breaks[opened.pop()[0]] = True
                count += 1
            top = tokens[opened[-1][0]] if opened else None
            if top is not None and top.closed and top.end == place + 1:
                start, before = opened.pop()
                if count == before:
                    continue
                breaks[start] = True
                count += 1
            breaks[place] = True
            count += 1
    for place, _ in opened:
        breaks[place] = True
    return breaks
