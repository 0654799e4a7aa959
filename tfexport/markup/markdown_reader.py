"""Markdown: where its texts are, and their markup as tokens. The parser is markdown-it-py."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tfexport.errors import InputError, missing_dependency
from tfexport.markup.tokens import Token, fold_kept, match_tags

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token as Found

References = Mapping[str, Any]
_FRONT = re.compile(r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\w{1,8}|\w{1,31});")
_SPECIAL = re.compile(r"[\\`*\[\]<~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_STARTS = re.compile(r"(\d{1,9})([.)])(?=\s|$)|[-+#>=](?=\s|$|[-+#>=])")
# Delimiters are written as characters for private use until it is known which form is read again
# as emphasis: the signs, or the elements of HTML that mean the same.
_DELIMITERS = ("*", "_", "**", "__", "~~")
_ELEMENTS = ("em", "em", "strong", "strong", "s")
_OPENING, _CLOSING = 0xE100, 0xE110
_MARKS = {
    chr(base + place): (signs, f"<{slash}{element}>")
    for base, slash in ((_OPENING, ""), (_CLOSING, "/"))
    for place, (signs, element) in enumerate(zip(_DELIMITERS, _ELEMENTS, strict=True))
}
_ANY_MARK = re.compile(f"[{''.join(_MARKS)}]")
_CELLS = ("td_open", "td_close", "th_open", "th_close")
_BAR = re.compile(r"(?<!\\)\|")
_IGNORED = ("text", "text_special", "softbreak")


@dataclass(frozen=True)
class Place:
    """A text of a document.

    Attributes:
        start: its first character in the document.
        end: after its last one.
        line: its line, from 1.
        text: its inline markup, without what its block writes before each line.
        breaks: for each line break of the text, what the document has in its place.
        cell: whether it is a cell of a table.
    """

    start: int
    end: int
    line: int
    text: str
    breaks: tuple[str, ...]
    cell: bool = False


@cache
def _parser() -> "MarkdownIt":
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise missing_dependency("reading Markdown needs markdown-it-py", "markup") from None
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def find_texts(content: str) -> tuple[list[Place], References]:
    """Find the texts of a document: paragraphs, headings, cells of tables.

    Returns:
        The texts in order, and the labels of links, which ``read_inline`` needs.

    Raises:
        InputError: a text was not found where the parser says.
        MissingDependencyError: markdown-it-py is not installed.
    """
    if _ANY_MARK.search(content):
        raise InputError("it has characters for private use, U+E100 to U+E114")
    front = _FRONT.match(content)
    skipped = content[: front.end()] if front else ""
    # The front is made a comment of as many lines, which the parser keeps out.
    hidden = "\n" * skipped.count("\n")
    lines = (hidden + content[len(skipped) :]).split("\n")
    offsets, place = list[int](), 0
    for line in content.split("\n"):
        offsets.append(place)
        place += len(line) + 1
    found, cursor, cell = list[Place](), 0, False
    env: dict[str, Any] = {}
    for token in _parser().parse("\n".join(lines), env):
        if token.type in _CELLS:
            cell = token.nesting > 0
        if token.type != "inline" or token.map is None or not token.content.strip():
            continue
        first = token.map[0]
        spans = list[tuple[int, int]]()
        for number, part in enumerate(token.content.split("\n"), first):
            if cell:  # where a "|" of the text is escaped
                part = part if part in lines[number] else part.replace("|", "\\|")
            start = content.find(part, max(cursor, offsets[number]))
            if start < 0 or start > offsets[number] + len(lines[number]):
                raise InputError(f"line {number + 1}: {part[:60]!r} was not found in it")
            cursor = start + len(part)
            spans.append((start, cursor))
        breaks = [content[end:start] for (_, end), (start, _) in pairwise(spans)]
        found.append(Place(spans[0][0], cursor, first + 1, token.content, tuple(breaks), cell))
    return found, env.get("references", {})


def read_inline(text: str, references: References) -> list[Token]:
    """The tokens of inline Markdown; delimiters are characters for private use.

    Args:
        text: of a paragraph.
        references: the labels of links.

    Raises:
        InputError: its markup was not found in it.
    """
    tokens = _Walk(text, references).tokens
    match_tags(tokens, {})
    folded = fold_kept(tokens)
    match_tags(folded, {})
    return folded


def escape_markdown(text: str) -> str:
    """Text as Markdown writes it."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", text)


def write_inline(made: str, place: Place, references: References) -> str:
    """A translated text with its delimiters.

    Args:
        made: the translation.
        place: of the text.
        references: the labels of links.

    Raises:
        InputError: it is not read with the same markup again.
    """
    written = _written(made, place, references)
    return _BAR.sub(r"\\|", written) if place.cell else written


def _written(made: str, place: Place, references: References) -> str:
    wanted = _kinds(place.text, references)
    start = _STARTS.match(made)
    if start is not None:  # not a list, a heading or a quotation
        at = start.end(1) if start[1] else 0
        made = f"{made[:at]}\\{made[at:]}"
    signs = _ANY_MARK.sub(lambda found: _MARKS[found[0]][0], made)
    if _kinds(signs, references) == wanted:
        return signs
    elements = _ANY_MARK.sub(lambda found: _MARKS[found[0]][1], made)
    count = len(_ANY_MARK.findall(made))
    for kind in ("em", "strong", "s"):
        for end in ("open", "close"):
            wanted.pop(f"{kind}_{end}", None)
    wanted["html_inline"] += count
    if _kinds(elements, references) == wanted:
        return elements
    raise InputError(f"line {place.line}: its translation has other markup: {signs[:80]!r}")


def same_blocks(content: str, made: str) -> bool:
    """Whether two documents have the same blocks in the same order."""
    return _blocks(content) == _blocks(made)


def _blocks(content: str) -> list[tuple[str, int]]:
    front = _FRONT.match(content)
    return [
        (token.type, token.level)
        for token in _parser().parse(content[front.end() :] if front else content)
    ]


def _kinds(text: str, references: References) -> Counter[str]:
    found = Counter(token.type for token in _inline(text, references) if token.type not in _IGNORED)
    return Counter({kind: count for kind, count in found.items() if count})


def _inline(text: str, references: References) -> Sequence["Found"]:
    (token,) = _parser().parseInline(text, {"references": dict(references)})
    return token.children or ()


class _Walk:
    """Goes through a text with the tokens that the parser found, for the characters of each."""

    def __init__(self, text: str, references: References) -> None:
        self._text, self._place = text, 0
        self.tokens = list[Token]()
        self._opened = list[int]()  # where the texts of links start
        for found in _inline(text, references):
            self.tokens += self._token(found)
        if self._place != len(text) and text[self._place :].strip():
            raise self._lost()

    def _lost(self) -> InputError:
        return InputError(f"markup was not understood: {self._text[self._place :][:60]!r}")

    def _take(self, length: int) -> str:
        taken = self._text[self._place : self._place + length]
        self._place += length
        return taken

    def _expect(self, expected: str) -> str:
        if not expected or not self._text.startswith(expected, self._place):
            raise self._lost()
        return self._take(len(expected))

    def _token(self, found: "Found") -> Iterator[Token]:
        kind, _, end = found.type.rpartition("_")
        if found.type in ("text", "text_special"):
            yield self._words(found.content)
        elif found.type in ("softbreak", "hardbreak"):
            match = re.compile(r"(?:\\| *)\n *").match(self._text, self._place)
            if match is None:
                raise self._lost()
            raw = self._take(len(match[0]))
            hard = found.type == "hardbreak"
            yield Token("empty", raw, "block") if hard else Token("text", " ", text=" ")
        elif found.type == "code_inline":
            signs = self._expect(found.markup)
            end_place = re.compile(rf"(?<!`){signs}(?!`)").search(self._text, self._place)
            if end_place is None:
                raise self._lost()
            raw = signs + self._take(end_place.end() - self._place)
            yield Token("kept", raw, "inline" if found.content.strip() else "hidden", "code",
                        found.content.strip())  # fmt: skip
        elif found.type == "html_inline":
            yield self._element(self._expect(found.content))
        elif found.type == "image":
            self._expect("!")
            yield Token("empty", "!" + self._bracketed() + self._target(), "inline", "img")
        elif kind in ("em", "strong", "s"):
            self._expect(found.markup)
            base = _OPENING if end == "open" else _CLOSING
            mark = chr(base + _DELIMITERS.index(found.markup))
            yield Token("open" if end == "open" else "close", mark, "inline", kind)
        elif kind == "link":
            yield from self._link(found, end)
        else:
            raise self._lost()

    def _link(self, found: "Found", end: str) -> Iterator[Token]:
        automatic = found.markup == "autolink"
        if end == "open":
            raw = self._expect("<" if automatic else "[")
            if not automatic:
                self._opened.append(self._place)
            yield Token("open", raw, "inline", "a",
                        keep=automatic)  # fmt: skip
        else:
            yield Token("close", self._expect(">") if automatic else self._end(), "inline", "a")

    def _end(self) -> str:
        """The end of a link; one whose text is its label gets the label too."""
        label = self._text[self._opened.pop() : self._place]
        target = self._expect("]") + self._target()
        return f"][{label}]" if target in ("]", "][]") else target

    def _words(self, content: str) -> Token:
        """The characters of a text, of which some are escaped or entities."""
        begin, place = self._place, 0
        while place < len(content):
            entity = _ENTITY.match(self._text, self._place)
            written = html.unescape(entity[0]) if entity else ""
            if entity and written != entity[0] and content.startswith(written, place):
                self._place += len(entity[0])
                place += len(written)
                continue
            if self._text.startswith("\\" + content[place], self._place):
                self._place += 1
            self._expect(content[place])
            place += 1
        return Token("text", self._text[begin : self._place], text=content)

    def _element(self, raw: str) -> Token:
        name = re.match(r"</?([A-Za-z][\w-]*)", raw)
        if name is None or raw.endswith("/>") or name[1].lower() in ("br", "img", "wbr", "hr"):
            seen = name is not None and name[1].lower() != "wbr"
            return Token("empty", raw, "inline" if seen else "hidden")
        return Token("close" if raw.startswith("</") else "open", raw, "inline", name[1].lower())

    def _bracketed(self) -> str:
        """Text in brackets, which may have brackets in it."""
        begin, depth = self._place, 0
        while self._place < len(self._text):
            character = self._take(1)
            if character == "\\":
                self._place += 1
            depth += {"[": 1, "]": -1}.get(character, 0)
            if depth == 0:
                return self._text[begin : self._place]
        raise self._lost()

    def _target(self) -> str:
        """The address or the label after the brackets of a link; empty if there is none."""
        following = self._text[self._place : self._place + 1]
        if following == "[":
            return self._bracketed()
        if following != "(":
            return ""
        match = _ADDRESS.match(self._text, self._place)
        if match is None:
            raise self._lost()
        return self._take(len(match[0]))


_ADDRESS = re.compile(
    r"""\(\s*(?:<[^<>\n]*>|(?:\\.|[^\s()<>\\]|\((?:\\.|[^\s()\\])*\))*)"""
    r"""(?:\s+(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?\s*\)"""
)
