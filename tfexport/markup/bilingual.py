"""XML files of texts and their translations: XLIFF and Qt's TS.

Sources: XLIFF 1.2 and 2.1 of OASIS, https://doc.qt.io/qt-6/linguist-ts-file-format.html.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from tfexport.markup.codes import CODES, attributes_of, local_name
from tfexport.markup.document import Markup
from tfexport.markup.tokens import KeptPart, TagRules, Token, escape
from tfexport.markup.xml_reader import read_xml

Kind = Literal["xliff", "ts"]
_ROOT = re.compile(
    r"\A(?:\s|<\?[^<>]*\?>|<!DOCTYPE[^<>\[\]]*(?:\[[^<>\[\]]*\]\s*)?>|<!--(?:(?!-->).)*-->)*"
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
_NUMBER = re.compile(r"%L?n")
_DONE = "its translation is empty, and is marked as done"
_UNKNOWN_FORMS = "the number of forms of its plural is not known: the file has no form to write"
_NO_NUMBER = "it does not show its number, so that the forms of its plural may be other words"
_VARIANTS = "its translation has variants of several lengths"
_UNREAD = "it has comments, or elements that are not read here"
_ESCAPED = "it has elements, and tags or CDATA between them"
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

    def parts(self) -> Iterator[tuple[int, Unit | KeptPart]]:
        """The units, and what is kept though it may have words, with the places of their texts."""
        names = {f"{self._prefix}{name}" for name in _UNITS[self._kind]}
        spaces = [(len(self._tokens), False)]  # the ends of elements, and whether lines count
        for place, token in enumerate(self._tokens):
            while place >= spaces[-1][0]:
                spaces.pop()
            if token.kind == "kept" and re.search(r"\stranslate\s*=\s*[\"']yes", token.raw):
                tag = token.raw[: token.raw.find(">") + 1]
                yield self._starts[place], KeptPart(None, tag, _INNER)
            if token.kind != "open":
                continue
            if "xml:space" in token.raw:
                preserved = attributes_of(token.raw).get("xml:space") == "preserve"
                spaces.append((token.end, preserved))
            if token.name == "TS":
                self._has_language = bool(attributes_of(token.raw).get("language"))
            if token.name in names:
                yield from self._parts_of(place, spaces[-1][1])

    def _parts_of(self, first: int, preserved: bool) -> Iterator[tuple[int, Unit | KeptPart]]:
        children = {
            self._tokens[place].name.removeprefix(self._prefix): place
            for place in self._children(first)
        }
        source = children.get("source")
        if source is None or self._tokens[source].kind != "open" or not self._inside(source).strip():
            return
        part: Unit | KeptPart | None
        if self._kind == "ts" and attributes_of(self._tokens[first].raw).get("numerus") == "yes":
            part = self._plural(source, children.get("translation"))
        else:
            part = self._unit(first, children, preserved)
        if part is not None:
            yield self._starts[source], part

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

    def _unit(self, first: int, children: dict[str, int], preserved: bool) -> Unit | KeptPart | None:
        """The text of a source, if its target is empty, missing, or new and a copy of it."""
        source, target = children["source"], children.get(_TARGETS[self._kind])
        of_unit = attributes_of(self._tokens[first].raw)
        of_target = {} if target is None else attributes_of(self._tokens[target].raw)
        state = of_target.get("state", of_unit.get("state"))
        if of_target.get("type") in ("vanished", "obsolete"):
            return None
        raw = self._inside(children.get("seg-source", source))
        if target is not None and not self._is_empty(target):
            copies = (raw, self._inside(source))
            if state not in _UNTRANSLATED or self._inside(target) not in copies:
                return None
        reason = ""
        if of_unit.get("approved") == "yes" or not (state is None or state in _UNTRANSLATED):
            reason = _DONE
        elif target is not None and "<lengthvariant" in self._inside(target):
            reason = _VARIANTS
        text = self._message(source)
        if reason:
            return KeptPart(None, raw if text is None else text, reason)
        if "seg-source" in children:
            return self._with_elements(children, target, raw, preserved)
        if text is None:
            return self._with_elements(children, target, raw, preserved)
        if not text.strip():
            return None
        in_cdata = self._kind == "xliff" and raw.strip().startswith(_CDATA)
        if self._kind == "xliff" and not preserved and not in_cdata:
            text = _LINE_BREAK.sub(" ", text)  # white space is as an editor shows it
        return self._new(children, target, text, _as_cdata if in_cdata else escape)

    def _is_empty(self, target: int) -> bool:
        """Whether a target has no text, and no elements but those around its segments."""
        tokens = self._tokens[target + 1 : self._end(target) - 1]
        names = {local_name(token.name) for token in tokens if token.name}
        text = any(token.text.strip() for token in tokens) or any(
            token.kind in ("kept", "empty") and not token.name for token in tokens
        )
        return not text and names <= {"mrk", "lengthvariant"}

    def _message(self, source: int) -> str | None:
        """The text of a source as its reader sees it; None if there are elements or comments."""
        text = ""
        for token in self._tokens[source + 1 : self._end(source) - 1]:
            if token.raw.startswith(_CDATA):
                text += token.raw[len(_CDATA) : -3]
            elif token.raw.startswith("<"):
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
        for token in tokens:
            name, tag = local_name(token.name), token.raw[: token.raw.find(">") + 1]
            named = attributes_of(tag)
            if not token.name and token.raw.startswith(_CDATA):
                return _ESCAPED
            if not token.raw.startswith("<") and _TAG.search(html.unescape(token.raw)):
                return _ESCAPED
            if self._kind == "ts" or token.raw.startswith("<!--") or _SUB.search(token.raw):
                return _UNREAD
            if name == "sm" and named.get("translate") == "no":
                return _UNREAD
            if segmented and name == "mrk" and token.kind == "open" and named.get("mtype") != "seg":
                return _UNREAD
        return ""

    def _new(
        self, children: dict[str, int], target: int | None, text: str, put: Callable[[str], str]
    ) -> Unit:
        """A unit whose translation is written in its target, or after its source."""
        if target is not None:
            opening, closing = self._tags(target)
            begin, end = self._starts[target], self._starts[self._end(target)]
            return Unit(text, begin, end, lambda made: f"{opening}{put(made)}{closing}")
        source = children["source"]
        before = self._tokens[source - 1].raw if self._tokens[source - 1].kind == "text" else ""
        indent = before[before.rfind("\n") :] if "\n" in before else ""
        name = f"{self._prefix}{_TARGETS[self._kind]}"
        opening = f"{indent}<{name}{' type=' + chr(34) + 'unfinished' + chr(34)}>"
        if self._kind == "xliff":
            opening = f"{indent}<{name}>"
        last = max(self._end(place) for name, place in children.items() if name in _BEFORE_TARGET)
        begin = self._starts[last]
        return Unit(text, begin, begin, lambda made: f"{opening}{put(made)}</{name}>")

    def _tags(self, place: int) -> tuple[str, str]:
        """The tags of an element to write in, which in TS is unfinished."""
        token = self._tokens[place]
        opening = re.sub(r"\s*/>\Z", ">", token.raw)
        if token.name == "translation" and "type" not in attributes_of(opening):
            opening = f'{opening[:-1]} type="unfinished">'
        return opening, f"</{token.name}>"

    def _plural(self, source: int, target: int | None) -> Unit | KeptPart | None:
        """The text of a message with several forms, of which each gets its translation."""
        forms = [] if target is None else [
            place
            for place in self._children(target)
            if self._tokens[target].kind == "open" and self._tokens[place].name == "numerusform"
        ]  # fmt: skip
        kind = None if target is None else attributes_of(self._tokens[target].raw).get("type")
        inside = "" if target is None else self._inside(target)
        text = self._message(source)
        if kind in ("vanished", "obsolete") or any(self._inside(form).strip() for form in forms):
            return None
        if not forms and inside.strip():
            return None
        reason = ""
        if text is None:
            text, reason = self._inside(source), _UNREAD
        elif target is None or not forms or not self._has_language:
            reason = _UNKNOWN_FORMS
        elif len(forms) > 1 and not _NUMBER.search(text):
            reason = _NO_NUMBER
        if reason or target is None:
            return KeptPart(None, text, reason)
        begin, end = self._starts[target], self._starts[self._end(target)]
        return Unit(text, begin, end, self._forms_writer(target, forms), plural=True)

    def _forms_writer(self, target: int, forms: Sequence[int]) -> Callable[[str], str]:
        """What writes a translation into each form of a plural."""
        opening, _ = self._tags(target)
        pieces, place = [opening], self._starts[target + 1]
        for form in forms:
            begin, end = self._tags(form)
            pieces += [self._content[place : self._starts[form]] + begin, end]
            place = self._starts[self._end(form)]
        pieces[-1] += self._content[place : self._starts[self._end(target)]]
        first = pieces[0] + pieces[1]
        return lambda made: "".join([first, *(
            piece if number % 2 else escape(made) + piece
            for number, piece in enumerate(pieces[2:])
        )])  # fmt: skip


def _as_cdata(text: str) -> str:
    inside = text.replace("]]>", f"]]]]>{_CDATA}>")
    return f"{_CDATA}{inside}]]>"
