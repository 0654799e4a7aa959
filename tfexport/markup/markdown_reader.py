"""Markdown: where its texts are, and their markup as tokens. The parser is markdown-it-py."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tfexport.errors import InputError, missing_dependency
from tfexport.markup.dialects import (
    ADMONITION,
    AROUND,
    FRONT,
    OWN_BLOCK,
    OWN_LINE,
    OWN_START,
    PARTS,
    PROGRAM,
    PROGRAM_END,
    TASK,
    Dialect,
    constructs,
    is_known,
)
from tfexport.markup.html_reader import end_of, kept_element
from tfexport.markup.tokens import (
    NO_RULES,
    Flow,
    KeptPart,
    TagRules,
    Token,
    fold_kept,
    is_kept,
    match_tags,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token as Found

References = Mapping[str, Any]
_ENTITY = re.compile(r"&(?:#\w{1,8}|\w{1,31});")
_SPECIAL = re.compile(r"[\\`*\[\]<~]|\{(?=:?\s?[#.:])|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")
_STARTS = re.compile(r"(?:!!!|\?\?\?)|(\d{1,9})([.)])(?=\s|$)|[-+#>=](?=\s|$|[-+#>=])")
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
_EMPTY = re.compile(  # without words, which signs cannot be around
    f"[{chr(_OPENING)}-{chr(_OPENING + 4)}][{chr(_CLOSING)}-{chr(_CLOSING + 4)}]"
)
_FOOTNOTE = re.compile(r"(\[\^[^\]\s]+\]):")
_IN_BLOCK = (
    "HTML in a list, a quotation or an admonition is not read; write it at the start of a line"
)
_IN_ADMONITIONS = "it is in too many admonitions; write it outside of some of them"
_NOT_ENDED = "its content is not translated, and it has no end tag: nothing below it is read"
_MOST_ADMONITIONS = 20  # in one another
_ENDING = ("fence", "html_block", "hr")  # blocks that end an admonition
_BREAK = re.compile(r"(?:\\| *)\n *")
_LINES = re.compile(r" *\n *")
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
        html: whether it is a block of HTML.
        quoted: whether it is in quotation marks, as the title of an admonition.
    """

    start: int
    end: int
    line: int
    text: str
    breaks: tuple[str, ...]
    cell: bool = False
    html: bool = False
    quoted: bool = False


@cache
def _parser() -> "MarkdownIt":
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise missing_dependency("reading Markdown needs markdown-it-py", "markup") from None
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def find_texts(
    content: str, dialect: Dialect | None = None, rules: TagRules = NO_RULES
) -> tuple[list[Place], References, list[KeptPart]]:
    """Find the texts of a document: paragraphs, headings, cells of tables, blocks of HTML.

    Args:
        content: the document.
        dialect: whose constructs are known; None for those of all dialects.
        rules: for elements of HTML, besides its own.

    Returns:
        The texts in order, the labels of links, which ``read_inline`` needs, and what has words,
        but is not read.

    Raises:
        InputError: a text was not found where the parser says.
        MissingDependencyError: markdown-it-py is not installed.
    """
    if _ANY_MARK.search(content):
        raise InputError("it has characters for private use, U+E100 to U+E114")
    known = constructs(dialect)
    front = FRONT.match(content) if "front" in known else None
    skipped = content[: front.end()] if front else ""
    # The front is made a comment of as many lines, which the parser keeps out.
    hidden = "\n" * skipped.count("\n")
    lines = (hidden + content[len(skipped) :]).split("\n")
    finder = _Finder(content, lines, known, rules)
    env: dict[str, Any] = {}
    for token in _parser().parse("\n".join(finder.lines), env):
        finder.add(token)
    finder.end()
    references = env.get("references", {})
    # A footnote of one word looks as the address of a link.
    labels = {name: one for name, one in references.items() if name[:1] != "^"}
    return sorted(finder.places, key=lambda place: place.start), labels, finder.unread


class _Finder:
    """Collects the texts of a document with their places, from the parser's tokens in order."""

    def __init__(
        self, content: str, lines: Sequence[str], known: frozenset[str], rules: TagRules
    ) -> None:
        self.lines = lines
        self.places, self.unread = list[Place](), list[KeptPart]()
        self._content, self._cursor, self._known = content, 0, known
        self._rules = rules
        self._around, self._around_depth = "", 0  # an element around the blocks that keeps them
        self._around_line = 0
        self._in_admonition, self._depth = False, 0
        self._own = _own_lines("\n".join(lines), known)
        self._offsets = [0, *accumulate(len(line) + 1 for line in content.split("\n"))]
        self._cell = self._item = False  # whether a cell, or a list's item, has just begun

    def add(self, token: "Found", first: int = 0) -> None:
        """Take the texts of a token.

        Args:
            token: of the parser.
            first: the line with which the text begins that the parser has read.
        """
        if token.type in _CELLS:
            self._cell = token.nesting > 0
        if token.map is not None and token.content.strip():
            line = token.map[0] + first
            if token.type == "html_block":
                self._add_html(token.content.rstrip("\n"), line)
            elif self._around_depth:
                pass
            elif token.type == "inline":
                self._add_titles(token.content.split("\n"), line)
                self._add_lines(token.content.split("\n"), line)
            elif token.type == "code_block" and self._in_admonition:
                self._add_body(token.content, line)
        if token.type in _ENDING:
            self._in_admonition = False
        if token.type != "paragraph_open":
            self._item = token.type == "list_item_open"

    def end(self) -> None:
        """Tell of an element that keeps all to the end, as it is not ended."""
        if self._around_depth:
            text = f"<{self._around}>"
            self.unread.append(KeptPart(self._around_line, text, _NOT_ENDED))

    def _add_body(self, text: str, first: int) -> None:
        """Take the body of an admonition, which is no code to Python-Markdown."""
        if self._depth == _MOST_ADMONITIONS:
            self.unread.append(KeptPart(first + 1, text.rstrip("\n"), _IN_ADMONITIONS))
            return
        self._depth += 1
        self._in_admonition = False
        for token in _parser().parse(text):
            self.add(token, first)
        self._depth -= 1
        self._in_admonition = True

    def _add_titles(self, lines: Sequence[str], first: int) -> None:
        found = [ADMONITION.match(line) if "admonition" in self._known else None for line in lines]
        self._in_admonition = any(found)
        for number, title in enumerate(found, first):
            if title is not None and title["title"]:
                text = title["title"]
                start = self._content.find(f'"{text}"', self._offsets[number]) + 1
                if not start:
                    continue  # the parser has replaced characters of it
                place = Place(start, start + len(text), number + 1, text, (), quoted=True)
                self.places.append(place)

    def _add_html(self, text: str, first: int) -> None:
        kept, self._around_depth = (
            end_of(self._around, text, self._around_depth, self._rules)
            if self._around_depth
            else (0, 0)
        )
        if self._around_depth:
            return
        start = self._offsets[first]
        if not self._content.startswith(text, start):  # it has the signs of a block before it
            if any(map(str.isalpha, re.sub(r"<[^<>]*>", "", text))):
                self.unread.append(KeptPart(first + 1, text, _IN_BLOCK))
            return
        self._cursor = start + len(text)
        rest = text[kept:]
        if rest.strip():
            line = first + 1 + text.count("\n", 0, kept)
            self.places.append(Place(start + kept, self._cursor, line, rest, (), html=True))
        if around := kept_element(rest, self._rules):
            self._around, self._around_depth, self._around_line = around, 1, first + 1

    def _add_lines(self, parts: Sequence[str], first: int) -> None:
        spans = [self._span(part, number) for number, part in enumerate(parts, first)]
        own = [number in self._own for number in range(first, first + len(parts))]
        for begin, end in _groups(parts, own, self._known):
            pattern = TASK if self._item and begin == 0 else OWN_START
            found = pattern.match(parts[begin])
            length = found.end() if found and is_known(found, self._known) else 0
            text = "\n".join(parts[begin:end])[length:]
            breaks = [
                self._content[one:other] for (_, one), (other, _) in pairwise(spans[begin:end])
            ]
            if text.strip():
                start, stop = spans[begin][0] + length, spans[end - 1][1]
                place = Place(start, stop, first + begin + 1, text, tuple(breaks), self._cell)
                self.places.append(place)

    def _span(self, part: str, number: int) -> tuple[int, int]:
        """Where a line of a text is in the document."""
        line, offset = self.lines[number], self._offsets[number]
        if self._cell and part not in line:  # where a "|" of the text is escaped
            part = part.replace("|", "\\|")
        start = self._content.find(part, max(self._cursor, offset))
        if start < 0 or start > offset + len(line):
            raise InputError(f"line {number + 1}: {part[:60]!r} was not found in it")
        self._cursor = start + len(part)
        return start, self._cursor


def _own_lines(content: str, known: frozenset[str]) -> set[int]:
    """The lines of blocks that are no words, from 0."""
    own, line, before = set[int](), 0, 0
    for found in OWN_BLOCK.finditer(content):
        line += content.count("\n", before, found.start())
        before = found.start()
        if is_known(found, known):
            own |= {*range(line, line + found[0].count("\n") + 1)}
    return own


def _groups(
    lines: Sequence[str], own: Sequence[bool], known: frozenset[str]
) -> Iterator[tuple[int, int]]:
    """The lines of a paragraph that are a text: a footnote, a definition, or what is between these.

    Fences and formulas of several lines are no texts.
    """
    begin, formula = 0, False
    if "program" in known and PROGRAM.match(lines[0]) and PROGRAM_END.search(lines[-1]):
        return
    for number, line in enumerate(lines):
        signs = line.count("$$") if formula or line.lstrip().startswith("$$") else 0
        signs = signs if "formula" in known else 0
        kept = own[number] or is_known(OWN_LINE.match(line), known)
        start = OWN_START.match(line)
        if kept or formula or signs == 1:
            if number > begin:
                yield begin, number
            begin = number + 1
            formula = formula != (signs % 2 == 1)
        elif start and start["alert"] and "alert" in known:  # its title is one line
            if number > begin:
                yield begin, number
            yield number, number + 1
            begin = number + 1
        elif number > begin and is_known(start, known):
            yield begin, number
            begin = number
    if begin < len(lines):
        yield begin, len(lines)


def read_inline(
    text: str, references: References, rules: TagRules = NO_RULES, dialect: Dialect | None = None
) -> list[Token]:
    """The tokens of inline Markdown; delimiters are characters for private use.

    Args:
        text: of a paragraph.
        references: the labels of links.
        rules: for elements of HTML, besides its own.
        dialect: see ``find_texts``.

    Raises:
        InputError: its markup was not found in it.
    """
    tokens = _Walk(text, references, rules, constructs(dialect)).tokens
    for token in tokens:
        if not _BREAK.fullmatch(token.raw):  # in code, a tag or an address it is white space
            token.raw = _LINES.sub(" ", token.raw)
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
    if place.quoted:
        return written.replace('"', "'")
    return _BAR.sub(r"\\|", written) if place.cell else written


def _written(made: str, place: Place, references: References) -> str:
    wanted = _kinds(place.text, references)
    start = _STARTS.match(made)
    if start is not None and not place.text.startswith(start[0]):
        # not a list, a heading or a quotation
        at = start.end(1) if start[1] else 0
        made = f"{made[:at]}\\{made[at:]}"
    signs = _ANY_MARK.sub(lambda found: _MARKS[found[0]][0], made)
    touching = _EMPTY.search(made) or "~~~" in signs  # which may begin a block of code
    if not touching and _kinds(signs, references) == wanted:
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
    front = FRONT.match(content)
    # A footnote of one word is a paragraph too, not the address of a link.
    body = _FOOTNOTE.sub(r"\1 :", content[front.end() :] if front else content)
    return [(token.type, token.level) for token in _parser().parse(body)]


def _kinds(text: str, references: References) -> Counter[str]:
    found = Counter(token.type for token in _inline(text, references) if token.type not in _IGNORED)
    return Counter({kind: count for kind, count in found.items() if count})


def _inline(text: str, references: References) -> Sequence["Found"]:
    (token,) = _parser().parseInline(text, {"references": dict(references)})
    return token.children or ()


class _Walk:
    """Goes through a text with the tokens that the parser found, for the characters of each."""

    def __init__(
        self, text: str, references: References, rules: TagRules, known: frozenset[str]
    ) -> None:
        self._text, self._place, self._rules, self._known = text, 0, rules, known
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
            yield from self._around(found.content)
        elif found.type in ("softbreak", "hardbreak"):
            match = _BREAK.match(self._text, self._place)
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
        label = " ".join(self._text[self._opened.pop() : self._place].split())
        target = self._expect("]") + self._target()
        return f"][{label}]" if target in ("]", "][]") else target

    def _around(self, content: str) -> Iterator[Token]:
        """A text, with elements of signs that the parser does not know."""
        place = 0
        for found in AROUND.finditer(content):
            here = self._place + found.start() - place
            if not is_known(found, self._known) or not self._text.startswith(found[0], here):
                continue  # some of it is escaped
            yield from self._parts(content[place : found.start()])
            begin, words, end = (
                ("[", found["label"], found["target"]) if found["label"] else
                ("[", found["named"], found["names"]) if found["named"] else
                ("~", found["index"], "~") if found["index"] else
                ("==", found["words"], "==")
            )  # fmt: skip
            yield Token("open", self._expect(begin), "inline", begin)
            yield from self._parts(words)
            yield Token("close", self._expect(end), "inline", begin)
            place = found.end()
        yield from self._parts(content[place:])

    def _parts(self, content: str) -> Iterator[Token]:
        """A text, with notes, formulas and names of signs as they are."""
        place = 0
        for part in PARTS.finditer(content):
            if not is_known(part, self._known):
                continue
            if not self._text.startswith(part[0], self._place + part.start() - place):
                continue  # some of it is escaped
            if part.start() > place:
                yield self._words(content[place : part.start()])
            if self._text.startswith(part[0], self._place):
                raw = self._take(len(part[0]))
                if part["statement"]:
                    yield Token("empty", raw, "block")
                else:
                    seen = part["formula"] or part["wiki"] or part["keys"] or part["hashtag"] or ""
                    hidden = ("attributes", "comment", "aside", "anchor")
                    flow: Flow = "hidden" if any(part[name] for name in hidden) else "inline"
                    yield Token("kept", raw, flow, "sup", seen)
                place = part.end()
            else:
                place = part.start()
        if place < len(content):
            yield self._words(content[place:])

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
            flows: dict[str, Flow] = {"": "hidden", "wbr": "hidden", "br": "block", "hr": "block"}
            return Token("empty", raw, flows.get(name[1].lower() if name else "", "inline"))
        if raw.startswith("</"):
            return Token("close", raw, "inline", name[1].lower())
        attributes = {key.lower(): value for key, value in _ATTRIBUTE.findall(raw)}
        keep = is_kept(name[1].lower(), attributes, self._rules)
        return Token("open", raw, "inline", name[1].lower(), keep=keep)

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


_ATTRIBUTE = re.compile(r"""\s(translate|class)\s*=\s*["']?([^"'>]*)""", re.IGNORECASE)
_ADDRESS = re.compile(
    r"""\(\s*(?:<[^<>\n]*>|(?:\\.|[^\s()<>\\]|\((?:\\.|[^\s()\\])*\))*)"""
    r"""(?:\s+(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?\s*\)"""
)
