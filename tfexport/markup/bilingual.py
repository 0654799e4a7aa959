"""XML files of texts and their translations: XLIFF and Qt's TS.

Sources: XLIFF 1.2 and 2.1 of OASIS, https://doc.qt.io/qt-6/linguist-ts-file-format.html.
"""

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from tfexport.markup.codes import CODES, attributes_of, local_name, start_tag
from tfexport.markup.document import Markup
from tfexport.markup.placeholders import Placeholders
from tfexport.markup.tokens import KeptPart, TagRules, Token, escape
from tfexport.markup.xml_reader import read_xml

Kind = Literal["xliff", "ts"]
_ROOT = re.compile(
    r"\A(?:\s|<\?[^<>]*\?>|<!DOCTYPE[^<>\[\]]*(?:\[[^\]]*\]\s*)?>|<!--(?:(?!-->).)*-->)*"
    r"<((?:[\w.-]+:)?)(xliff|TS)(?=[\s>])",
    re.DOTALL,
)
_UNITS = {"xliff": ("trans-unit", "segment"), "ts": ("message",)}
_TARGETS = {"xliff": "target", "ts": "translation"}
# What a translation comes after.
_BEFORE_TARGET = (
    "source", "seg-source", "oldsource", "comment", "oldcomment", "extracomment",
    "translatorcomment",
)  # fmt: skip
_UNTRANSLATED = frozenset({"new", "initial", "needs-translation"})  # states
_CDATA = "<![CDATA["
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINE_BREAK = re.compile(r"(?<=\S)[ \t]*[\r\n]\s*(?=\S)")
_SUB = re.compile(r"<(?:[\w.-]+:)?sub[\s>]")  # words within a code
_INDENT = re.compile(r"(?:\r\n|\n|\r)[ \t]*\Z")
_WIDEST = 200  # characters of white space at the start of a line
_INNER_YES = re.compile(r"\stranslate\s*=\s*[\"']yes")
_STRUCTURE = frozenset(
    (
        "file",
        "body",
        "group",
        "unit",
        "trans-unit",
        "segment",
        "source",
        "target",
        "seg-source",
        "note",
        "notes",
        "alt-trans",
    )
)  # elements that are in no text
_UNFINISHED = ' type="unfinished"'
_GONE = ("vanished", "obsolete")
_MESSAGES = Placeholders(("icu",))
_NUMBER = re.compile(r"%L?n")
_DONE = "its translation is empty, and is marked as done"
_UNKNOWN_FORMS = (
    "the number of forms of its plural is not known: the file names no language, or has no forms"
)
_NO_NUMBER = "it does not show its number, so that the forms of its plural may be other words"
_NO_TEXT = "its translation has elements, and no text"
_UNREAD = "it has elements that are not read here"
_ESCAPED = "it has elements, and tags or CDATA between them"
_ICU = "a message of ICU with elements is kept as a whole: translate its forms"
_WITHIN = "it has another text within it"
_INNER = "it has translate='yes' within translate='no'"


@dataclass(frozen=True)
class Unit:
    """A text that has no translation yet.

    Attributes:
        text: the text; with its tags if it has ``rules``.
        begin: where its translation is to be written.
        end: after what is there now.
        write: makes the element of a translation.
        rules: for the elements of the text; None if it has none, and is a program's message.
        plural: whether it has several forms.
        line: where it starts, from 1.
    """

    text: str
    begin: int
    end: int
    write: Callable[[str], str]
    rules: TagRules | None = None
    plural: bool = False
    line: int = 0


def kind_of(content: str) -> Kind | None:
    """The kind of an XML file, if it is one of those here."""
    match = _ROOT.match(content)
    return None if match is None else ("ts" if match[2] == "TS" else "xliff")


def find_units(content: str, kind: Kind, markup: Markup) -> tuple[list[Unit], list[KeptPart]]:
    """Find the texts without a translation, and those that are left to a translator.

    Args:
        content: of the file.
        kind: see ``kind_of``.
        markup: with rules for its elements.

    Raises:
        InputError: it is not well-formed.
    """
    reader = _Reader(content, kind, markup.rules)
    units, kept = list[Unit](), list[KeptPart]()
    line, before = 1, 0
    for place, part in reader.parts():
        line += content.count("\n", before, place)
        before = place
        if isinstance(part, Unit):
            units.append(replace(part, line=line))
        else:
            kept.append(replace(part, line=line))
    return units, kept


class _Reader:
    """Finds the units of a file."""

    def __init__(self, content: str, kind: Kind, rules: TagRules) -> None:
        match = _ROOT.match(content)
        self._prefix = match[1] if match else ""
        codes = frozenset(f"{self._prefix}{name}" for name in CODES if kind == "xliff")
        self._rules = replace(rules, ignored=rules.ignored | codes, outline=False)
        self._content, self._kind = content, kind
        self._tokens = read_xml(content, self._rules)
        self._starts = [0, *accumulate(len(token.raw) for token in self._tokens)]
        self._has_language = False
        self._names = frozenset(f"{self._prefix}{name}" for name in _UNITS[kind])
        self._unit_places = [
            place
            for place, token in enumerate(self._tokens)
            if token.kind == "open" and token.name in self._names
        ]

    def parts(self) -> Iterator[tuple[int, Unit | KeptPart]]:
        """The units, and what is kept though it may have words, with the places of their texts."""
        groups = {f"{self._prefix}{name}" for name in ("file", "body", "group", "unit")}
        spaces = [(len(self._tokens), False)]  # the ends of elements, and whether lines count
        for place, token in enumerate(self._tokens):
            while place >= spaces[-1][0]:
                spaces.pop()
            if token.kind == "kept" and token.name in groups and _INNER_YES.search(token.raw):
                yield self._starts[place], KeptPart(None, start_tag(token.raw), _INNER)
            if token.kind != "open":
                continue
            if "xml:space" in token.raw:
                preserved = attributes_of(token.raw).get("xml:space") == "preserve"
                spaces.append((token.end, preserved))
            if token.name == "TS":
                self._has_language = bool(attributes_of(token.raw).get("language"))
            if token.name in self._names:
                yield from self._parts_of(place, spaces[-1][1])

    def _parts_of(self, first: int, preserved: bool) -> Iterator[tuple[int, Unit | KeptPart]]:
        children = {
            self._tokens[place].name.removeprefix(self._prefix): place
            for place in self._children(first)
        }
        source = children.get("source")
        if source is None or not self._inside(source).strip():
            return
        space = attributes_of(self._tokens[source].raw).get("xml:space")
        preserved = preserved if space is None else space == "preserve"
        part: Unit | KeptPart | None
        if self._has_unit(first):
            part = KeptPart(None, self._inside(source), _WITHIN)
        elif self._kind == "ts" and attributes_of(self._tokens[first].raw).get("numerus") == "yes":
            part = self._plural(source, children.get("translation"))
        else:
            part = self._unit(first, children, preserved)
        if part is not None:
            yield self._starts[source], part

    def _has_unit(self, first: int) -> bool:
        """Whether there is another unit within one."""
        number = bisect_right(self._unit_places, first)
        rest = self._unit_places[number : number + 1]
        return bool(rest) and rest[0] < self._tokens[first].end

    def _children(self, first: int) -> Iterator[int]:
        """The places of the elements that are directly in one."""
        place, last = first + 1, self._tokens[first].end
        while place < last - 1:
            token = self._tokens[place]
            if token.name and token.kind in ("open", "empty"):
                yield place
            place = token.end if token.kind == "open" else place + 1

    def _inside(self, place: int) -> str:
        """The content of an element."""
        if self._tokens[place].kind == "empty":
            return ""
        return self._content[self._starts[place + 1] : self._starts[self._tokens[place].end - 1]]

    def _end(self, place: int) -> int:
        """The place after an element."""
        return self._tokens[place].end if self._tokens[place].kind == "open" else place + 1

    def _unit(
        self, first: int, children: dict[str, int], preserved: bool
    ) -> Unit | KeptPart | None:
        """The text of a source; None if it has a translation."""
        source, target = children["source"], children.get(_TARGETS[self._kind])
        raw = self._inside(children.get("seg-source", source))
        text = None if "seg-source" in children else self._message(source)
        reason = self._state(first, children)
        if reason is None:
            return None
        if reason:
            return KeptPart(None, raw if text is None else text, reason)
        if text is None:
            return self._with_elements(children, target, raw, preserved)
        in_cdata = self._kind == "xliff" and raw.strip().startswith(_CDATA)
        if self._kind == "xliff" and not preserved and not in_cdata:
            text = _LINE_BREAK.sub(" ", text)  # white space is as an editor shows it
        return self._new(children, target, text, _as_cdata if in_cdata else escape)

    def _state(self, first: int, children: dict[str, int]) -> str | None:
        """Why a unit gets no translation; empty if it gets one, None if it has one.

        It gets one if its target is missing, empty, or new and a copy of its source.
        """
        source, target = children["source"], children.get(_TARGETS[self._kind])
        of_unit = attributes_of(self._tokens[first].raw)
        of_target = {} if target is None else attributes_of(self._tokens[target].raw)
        state = of_unit.get("state", of_target.get("state"))
        if of_target.get("type") in _GONE:
            return None
        if target is not None and not self._is_empty(target, "seg-source" in children):
            copies = {self._inside(children.get("seg-source", source)), self._inside(source)}
            if state not in _UNTRANSLATED or self._inside(target) not in copies:
                return None if self._has_text(target) or not self._has_text(source) else _NO_TEXT
        is_new = state is None or state in _UNTRANSLATED
        return _DONE if of_unit.get("approved") == "yes" or not is_new else ""

    def _is_empty(self, target: int, segmented: bool) -> bool:
        """Whether a target has no text, and no elements but those around its segments."""
        tokens = self._tokens[target + 1 : self._end(target) - 1]
        return not self._has_text(target) and (segmented or not any(map(_is_markup, tokens)))

    def _has_text(self, place: int) -> bool:
        """Whether an element has text that is not of a code."""
        tokens = self._tokens[place + 1 : self._end(place) - 1]
        return any(
            token.text.strip() and (token.kind == "text" or local_name(token.name) not in CODES)
            for token in tokens
        ) or any(not _is_markup(token) and token.raw.strip() for token in tokens)

    def _message(self, source: int) -> str | None:
        """The text of a source as its reader sees it; None if there are elements or comments."""
        text = ""
        for token in self._tokens[source + 1 : self._end(source) - 1]:
            if token.raw.startswith(_CDATA):
                text += token.raw[len(_CDATA) : -3]
            elif _is_markup(token):
                return None
            else:
                text += html.unescape(token.raw)
        return text

    def _with_elements(
        self, children: dict[str, int], target: int | None, raw: str, preserved: bool
    ) -> Unit | KeptPart | None:
        """The text of a source of XLIFF with elements."""
        place = children.get("seg-source", children["source"])
        tokens = self._tokens[place + 1 : self._end(place) - 1]
        if reason := self._doubt(tokens, "seg-source" in children):
            return KeptPart(None, raw, reason)
        splitting = {f"{self._prefix}mrk"} if "seg-source" in children else set[str]()
        rules = replace(
            self._rules, codes=True, preserved=preserved,
            splitting=self._rules.splitting | splitting,
        )  # fmt: skip
        return replace(self._new(children, target, raw, str), rules=rules)

    def _doubt(self, tokens: Sequence[Token], segmented: bool) -> str:
        """Why a text with elements is left to a translator; empty if it is not."""
        pieces = [html.unescape(token.raw) for token in tokens if not _is_markup(token)]
        whole = _MESSAGES.messages("".join(pieces))
        if whole and len(whole) > sum(len(_MESSAGES.messages(piece)) for piece in pieces):
            return _ICU
        for token in tokens:
            name = local_name(token.name)
            if not token.name and token.raw.startswith(_CDATA):
                return _ESCAPED
            if not _is_markup(token) and _TAG.search(html.unescape(token.raw)):
                return _ESCAPED
            if self._kind == "ts" or name in _STRUCTURE or _SUB.search(token.raw):
                return _UNREAD
            if name == "sm" and attributes_of(token.raw).get("translate") == "no":
                return _UNREAD
            is_mark = segmented and name == "mrk" and token.kind == "open"
            if is_mark and attributes_of(token.raw).get("mtype") != "seg":
                return _UNREAD
        return ""

    def _new(
        self, children: dict[str, int], target: int | None, text: str, put: Callable[[str], str]
    ) -> Unit:
        """A unit whose translation is written in its target, or after its source."""
        if target is not None:
            opening, closing = self._tags(target)
            begin, end = self._starts[target], self._starts[self._end(target)]
            return Unit(text, begin, end, lambda text: f"{opening}{put(text)}{closing}")
        source = children["source"]
        before = self._content[max(0, self._starts[source] - _WIDEST) : self._starts[source]]
        match = _INDENT.search(before)
        indent = match[0] if match else ""
        name = f"{self._prefix}{_TARGETS[self._kind]}"
        opening = f"{indent}<{name}{_UNFINISHED if self._kind == 'ts' else ''}>"
        last = max(self._end(place) for name, place in children.items() if name in _BEFORE_TARGET)
        begin = self._starts[last]
        return Unit(text, begin, begin, lambda text: f"{opening}{put(text)}</{name}>")

    def _tags(self, place: int) -> tuple[str, str]:
        """The tags of an element to write in, which in TS is unfinished."""
        token = self._tokens[place]
        opening = re.sub(r"\s*/>\Z", ">", token.raw)
        if token.name == "translation" and "type" not in attributes_of(opening):
            opening = f"{opening[:-1]}{_UNFINISHED}>"
        return opening, f"</{token.name}>"

    def _plural(self, source: int, target: int | None) -> Unit | KeptPart | None:
        """The text of a message with several forms, each of which gets its translation."""
        text = self._message(source)
        if text is None:
            return KeptPart(None, self._inside(source), _UNREAD)
        if target is None or not self._inside(target).strip():
            return KeptPart(None, text, _UNKNOWN_FORMS)
        if attributes_of(self._tokens[target].raw).get("type") in _GONE or self._has_text(target):
            return None
        names = {place: self._tokens[place].name for place in self._children(target)}
        if {*names.values()} != {"numerusform"} or any(map(self._inside, names)):
            return KeptPart(None, text, _NO_TEXT)
        if not self._has_language:
            return KeptPart(None, text, _UNKNOWN_FORMS)
        if len(names) > 1 and not _NUMBER.search(text):
            return KeptPart(None, text, _NO_NUMBER)
        begin, end = self._starts[target], self._starts[self._end(target)]
        pieces = self._around_forms(target, list(names))
        return Unit(text, begin, end, lambda text: escape(text).join(pieces), plural=True)

    def _around_forms(self, target: int, forms: Sequence[int]) -> list[str]:
        """The markup before, between and after the texts of the forms of a plural."""
        pieces, place, closing = list[str](), self._starts[target + 1], self._tags(target)[0]
        for form in forms:
            opening, after = self._tags(form)
            pieces.append(closing + self._content[place : self._starts[form]] + opening)
            place, closing = self._starts[self._end(form)], after
        return [*pieces, closing + self._content[place : self._starts[self._end(target)]]]


def _is_markup(token: Token) -> bool:
    return token.raw.startswith("<")


def _as_cdata(text: str) -> str:
    inside = text.replace("]]>", f"]]]]>{_CDATA}>")
    return f"{_CDATA}{inside}]]>"
