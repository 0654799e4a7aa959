"""XML as tokens. The parser is Python's own, expat."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.parsers import expat

from tfexport.errors import InputError
from tfexport.markup.codes import pair_codes
from tfexport.markup.tokens import (
    MOST_TAGS,
    ONE_LINE,
    STATEMENT,
    TagRules,
    Token,
    escape,
    fold_kept,
    match_tags,
    split_lines,
    too_many_tags,
)

_PROLOG = re.compile(r"\s*<(?:\?xml\s|!DOCTYPE)")
_ROOT = "<r>", "</r>"  # around a text that is a part of a document
_MOST_LEVELS = 10_000
_LINES = "#lines"  # the name of a text whose line breaks count, until it is divided
# Of HTML 5, of ITS 2.0 (https://www.w3.org/TR/its20/), of Android's resources, of XLIFF 1.2.
_NOT_TRANSLATED = (
    ("translate", "no"), ("its:translate", "no"), ("translatable", "false"),
    ("mtype", "protected"),
)  # fmt: skip


_ANDROID = re.compile(r"\s*(?:<\?xml[^<>]*\?>|<!--(?:(?!-->).)*-->|\s)*<resources[\s>]", re.DOTALL)
_ANDROID_SPACE = r"(?:\\u(?:0020|00[aA]0))+"  # which stays at the start and at the end of a text
_ANDROID_LINE = re.compile(
    rf"(\\[nt]|(?<!\\)\"|\A{_ANDROID_SPACE}|{_ANDROID_SPACE}\Z)"
)  # a quotation mark is of the text with a backslash
_ANDROID_REFERENCE = re.compile(r"\s*[@?](?:\+?(?:[\w.]+:)?\w+/[\w.]+|null|empty)\s*")
_ANDROID_CHARACTERS = re.compile(r"(?<!\\)(?:\\u[0-9A-Fa-f]{4})+")
_ANDROID_ESCAPE = re.compile(r"\\([\"'@?])")


def is_android(text: str) -> bool:
    """Whether a document is Android's resources, whose texts have escapes of their own.

    Source: https://developer.android.com/guide/topics/resources/string-resource#escaping_quotes.
    """
    return _ANDROID.match(text) is not None


def unescape_android(tokens: Sequence[Token]) -> list[Token]:
    """Tokens whose texts are without escapes, and divided at line breaks that are written.

    A text that names another resource, such as ``@string/name``, stays as it is.
    """
    made = list[Token]()
    for token in tokens:
        if token.kind == "text" and _ANDROID_REFERENCE.fullmatch(token.raw):
            made.append(replace(token, kind="kept", flow="block"))
            continue
        parts = split_lines(token, _ANDROID_LINE) if token.kind == "text" else (token,)
        for part in parts:
            characters = _ANDROID_CHARACTERS.sub(_characters, part.text)
            part.text = _ANDROID_ESCAPE.sub(r"\1", characters)
            made.append(part)
    return made


def _characters(escapes: re.Match[str]) -> str:
    """The characters of escapes with ``u``; the escapes if they are none."""
    try:
        return bytes.fromhex(escapes[0].replace("\\u", "")).decode("utf-16-be")
    except UnicodeDecodeError:
        return escapes[0]


def escape_android(text: str) -> str:
    """Text as Android's resources write it."""
    return re.sub(r"([\"']|\A[@?](?=\w))", r"\\\1", escape(text))


def read_xml(text: str, rules: TagRules) -> list[Token]:
    """Read XML: a document, or the content of an element.

    Args:
        text: its tokens, joined, are this text again.
        rules: for its elements.

    Raises:
        InputError: it is not well-formed, declares entities, or has too many tags.
    """
    tokens = _Reader(text, rules).tokens
    match_tags(tokens, {})
    folded = fold_kept(tokens)
    if rules.codes:
        folded = pair_codes(folded)
    match_tags(folded, {})
    _set_flow(folded, rules)
    return folded


class _Reader:
    """Collects what expat finds, with the places in the text."""

    def __init__(self, text: str, rules: TagRules) -> None:
        self._rules = rules
        document = _PROLOG.match(text) is not None
        before, after = ("", "") if document else _ROOT
        self._content = f"{before}{text}{after}".encode()
        self._found = list[tuple[int, Token]]()
        self._texts = list[list[str]]()
        self._levels = 0
        self._preserved = [rules.preserved]  # whether the lines of a text are those of its element
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartCdataSectionHandler = lambda: self._add(Token("empty", "", "block"))
        parser.EndCdataSectionHandler = lambda: self._add(Token("empty", "", "block"))
        parser.EntityDeclHandler = self._entity
        parser.DefaultHandler = self._other
        try:
            parser.Parse(self._content, True)
        except expat.ExpatError as error:
            shift = len(before) if error.lineno == 1 else 0
            reason = expat.ErrorString(error.code)
            raise InputError(
                f"not well-formed XML: {reason}: line {error.lineno}, "
                f"column {max(0, error.offset - shift) + 1}"
            ) from None
        ends = [place for place, _ in self._found[1:]] + [len(self._content)]
        for (place, token), end, texts in zip(self._found, ends, self._texts, strict=True):
            token.raw, token.text = self._content[place:end].decode(), "".join(texts)
        self.tokens = _divided(_joined([token for _, token in self._found]))
        if not document:
            self.tokens = self.tokens[1:-1]

    def _add(self, token: Token, text: str = "") -> None:
        if len(self._found) > MOST_TAGS:
            raise too_many_tags()
        self._found.append((self._parser.CurrentByteIndex, token))
        self._texts.append([text])

    def _start(self, name: str, attributes: list[str]) -> None:
        self._levels += 1
        if self._levels > _MOST_LEVELS:
            raise InputError(f"it has more than {_MOST_LEVELS} elements in one another")
        named = dict(zip(attributes[::2], attributes[1::2], strict=True))
        keep = name in self._rules.ignored or any(
            named.get(attribute, "").lower() == value for attribute, value in _NOT_TRANSLATED
        )
        space = named.get("xml:space")
        self._preserved.append(self._preserved[-1] if space is None else space == "preserve")
        self._add(Token("open", "", "inline", name, keep=keep))

    def _end(self, name: str) -> None:
        self._levels -= 1
        self._preserved.pop()
        place = self._parser.CurrentByteIndex
        at, token = self._found[-1]
        if token.kind == "open" and self._is_empty(at, place):
            token.kind = "empty"
        else:
            self._add(Token("close", "", "inline", name))

    def _is_empty(self, start: int, place: int) -> bool:
        """Whether a start tag is all of its element, as ``<x/>``."""
        return place == start or self._content[place - 2 : place] == b"/>"

    def _text(self, text: str) -> None:
        if self._found and self._found[-1][1].kind == "text":
            self._texts[-1].append(text)
        else:
            self._add(Token("text", "", name=_LINES if self._preserved[-1] else ""), text)

    def _other(self, data: str) -> None:
        hidden = data.startswith(("<!--", "<?")) and not data.startswith("<?xml ")
        self._add(Token("empty", "", "hidden" if hidden else "block"))

    def _entity(self, name: str, *_: Any) -> None:
        line = self._parser.CurrentLineNumber
        raise InputError(
            f"line {line}: it declares the entity {name!r}; entities of a document are not read"
        )


def _joined(tokens: list[Token]) -> list[Token]:
    """Tokens with the pieces of each text in one; the text of CDATA is kept as it is."""
    joined, inside = list[Token](), False
    for token in tokens:
        last = joined[-1] if joined else None
        if token.raw.startswith("<![CDATA["):
            inside = True
            joined.append(Token("kept", token.raw, "inline"))
        elif inside and last is not None:
            last.raw += token.raw
            last.text += token.text
            inside = not token.raw.startswith("]]>")
            if not inside:
                last.flow = "inline" if last.text.strip() else "hidden"
        elif token.kind == "text" and last is not None and last.kind == "text":
            last.raw += token.raw
            last.text += token.text
        else:
            joined.append(token)
    return joined


def _divided(tokens: Sequence[Token]) -> list[Token]:
    """Tokens with texts divided at statements, and at line breaks that ``xml:space`` preserves."""
    made = list[Token]()
    for token in tokens:
        if token.kind != "text":
            made.append(token)
            continue
        breaks = ONE_LINE if token.name == _LINES and "\n" in token.text else STATEMENT
        token.name = ""
        made += split_lines(token, breaks)
    return made


def _set_flow(tokens: list[Token], rules: TagRules) -> None:
    """Decide which elements end a sentence.

    With an outline, these are the elements whose parent has no text of its own, unless a sentence
    is around them.
    """
    stack, parents, mixed = [-1], list[int](), set[int]()
    for place, token in enumerate(tokens):
        if token.kind == "close":
            stack.pop()
        parents.append(stack[-1])
        if token.kind == "text" and token.text.strip():
            mixed.add(stack[-1])
        if token.kind == "open":
            stack.append(place)
    for token, parent in zip(tokens, parents, strict=True):
        if not token.name or token.kind == "close" or token.flow == "hidden":
            continue
        inside = parent >= 0 and tokens[parent].flow == "inline"
        inline = inside or parent in mixed or not rules.outline or token.name in rules.inline
        token.flow = "inline" if inline and token.name not in rules.splitting else "block"
        if token.kind == "open":
            tokens[token.end - 1].flow = token.flow
