"""What is wrong with the translation of a drawn document, by parsers that are not the project's.

They are those of Python and lxml, srt, webvtt-py, polib and markdown-it-py, and GNU gettext's
``msgfmt --check-format``; lxml and msgfmt where they are installed.
"""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from io import StringIO
from itertools import zip_longest
from xml.etree import ElementTree

from tests.drawn_documents import judge_bilingual
from tests.drawn_documents.drawing import Drawn
from tests.drawn_documents.units import Unit

# Elements of drawn documents that are parts of a sentence.
_INLINE = frozenset((
    "b", "i", "a", "em", "strong", "s", "del", "span", "code", "kbd", "img", "font", "emphasis",
    "link", "literal", "xref", "{urn:oasis:names:tc:xliff:document:1.2}g",
))  # fmt: skip
_ALONE = frozenset({"img", "br", "hr", "meta"})
_WORD = re.compile(r"\bwo[a-z]+\b")
_MADE = re.compile(r"\bWO[A-Z]+\b")
BILINGUAL = ("xliff", "ts")  # formats of files that have the texts beside their translations
_MSGFMT = shutil.which("msgfmt")


@dataclass
class Verdict:
    """What a judge says.

    Attributes:
        difference: what is wrong; empty if nothing is.
        words: characters of words that are to be translated.
        translated: characters of those that were, if a translator writes capitals.
    """

    difference: str = ""
    words: int = 0
    translated: int = 0


def judge(
    drawn: Drawn, made: str | None, reported: Sequence[str] = (), marked: bool = True
) -> Verdict:
    """Compare a document with its translation.

    Args:
        drawn: the document.
        made: its translation; None if the project refuses it.
        reported: the texts of which the project says that they stay.
        marked: whether the translator writes its words in capitals.
    """
    before = _units(drawn.format, drawn.content)
    verdict = Verdict(words=sum(_letters(_WORD, unit.source) for unit in before))
    if made is None:
        return verdict
    try:
        after = _units(drawn.format, made)
        refused = _refused_by_others(drawn.format, made)
    except _PARSER_ERRORS as error:
        verdict.difference = f"not read: {str(error)[:200]}"
        return verdict
    verdict.translated = sum(_letters(_MADE, unit.text) for unit in after)
    verdict.difference = refused or _structure(before, after)
    if verdict.difference:
        return verdict
    said = "\n".join(reported)
    pattern = _literals(drawn.literals)
    for unit in after:
        if not unit.text and any(each in said for each in unit.whole):
            continue  # a message of a catalog that stays empty
        wanted, found = (Counter(pattern.findall(each)) for each in (unit.source, unit.text))
        if wanted != found:
            verdict.difference = (
                f"placeholders {dict(wanted - found)} lost, {dict(found - wanted)} added"
            )
        elif left := [word for word in _WORD.findall(unit.text) if marked and word not in said]:
            verdict.difference = f"not translated, not reported: {left[0]}"
        elif not unit.text and unit.source:
            verdict.difference = "empty, not reported"
        if verdict.difference:
            verdict.difference += f": {unit.source!r} is {unit.text!r}"
            return verdict
    lost = [part for part in drawn.kept if drawn.content.count(part) != made.count(part)]
    verdict.difference = f"kept part lost: {lost[0]!r}" if lost else ""
    if drawn.format in BILINGUAL:
        verdict.difference = _outside(drawn.content, made)
    return verdict


def _outside(content: str, translation: str) -> str:
    """What changed outside of translations; empty if nothing did."""
    old, new = map(judge_bilingual.without_targets, (content, translation))
    place = next((n for n, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) > 1), 0)
    return "" if old == new else f"not a target: {old[place:][:60]!r} is {new[place:][:60]!r}"


def _structure(before: list[Unit], after: list[Unit]) -> str:
    for old, new in zip_longest(before, after):
        if old is None or new is None or old.place != new.place:
            return f"structure: {old and old.place!r} is {new and new.place!r}"
        if old.inline != new.inline:
            lost, added = old.inline - new.inline, new.inline - old.inline
            return f"inline markup: {dict(lost)} lost, {dict(added)} added: {new.text!r}"
        new.source = old.source
    return ""


def _letters(pattern: re.Pattern[str], text: str) -> int:
    return sum(map(len, pattern.findall(text)))


def _literals(literals: set[str]) -> re.Pattern[str]:
    ordered = sorted(literals, key=lambda each: (-len(each), each))
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


# ---- parsers ------------------------------------------------------------------------------------


def _units(kind: str, content: str) -> list[Unit]:
    readers = {
        "text": _lines, "html": _page, "xml": _tree, "markdown": _rendered, "srt": _srt,
        "vtt": _vtt, "po": _catalog, "json-strings": _json,
        "arb": _json, "strings": _tree, "xliff": judge_bilingual.read, "ts": judge_bilingual.read,
    }  # fmt: skip
    return [
        unit if kind in ("po", *BILINGUAL) else Unit(unit.place, unit.text, unit.text, unit.inline)
        for unit in readers[kind](content)
    ]


def _lines(content: str) -> list[Unit]:
    lines = content.split("\n")
    return [Unit(line[: len(line) - len(line.lstrip())], "", line.strip()) for line in lines]


class _Collector:
    """Collects texts between block elements, with the inline elements of each."""

    def __init__(self) -> None:
        self.units = list[Unit]()
        self._events, self._text = list[str](), list[str]()
        self._inline, self._path = Counter[str](), list[str]()

    def block(self, event: str) -> None:
        self.end()
        self._events.append(event)

    def enter(self, name: str, attributes: dict[str, str | None]) -> None:
        event = f"{name} {sorted(attributes.items(), key=str)}"
        if name not in _INLINE:
            self.block(f"<{event}>")
        else:
            self._inline["/".join([*self._path, event])] += 1
            if name not in _ALONE:
                self._path.append(name)

    def leave(self, name: str) -> None:
        if name not in _INLINE:
            self.block(f"</{name}>")
        elif name in self._path:
            del self._path[len(self._path) - 1 - self._path[::-1].index(name) :]

    def add(self, text: str) -> None:
        self._text.append(text)

    def mark(self, event: str) -> None:
        self._inline[event] += 1

    def end(self) -> None:
        text = " ".join("".join(self._text).split())
        if text or self._inline:
            self.units.append(Unit(" ".join(self._events), "", text, self._inline))
            self._events, self._inline = [], Counter()
        self._text.clear()
        self._path.clear()


class _Page(HTMLParser, _Collector):
    def __init__(self) -> None:
        HTMLParser.__init__(self)
        _Collector.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.enter(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self.leave(tag)

    def handle_data(self, data: str) -> None:
        self.add(data)

    def handle_comment(self, data: str) -> None:
        self.mark(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.block(decl)

    def handle_pi(self, data: str) -> None:
        self.block(data)


def _page(content: str) -> list[Unit]:
    page = _Page()
    page.feed(content)
    page.close()
    page.block("the end")
    page.units.append(Unit(" ".join(page._events), "", ""))
    return page.units


def _tree(content: str) -> list[Unit]:
    collector = _Collector()
    builder = ElementTree.TreeBuilder(insert_comments=True, insert_pis=True)

    def walk(element: ElementTree.Element) -> None:
        if callable(element.tag):
            collector.block(f"<!{element.text}>")
        else:
            collector.enter(element.tag, dict(element.attrib))
            collector.add(element.text or "")
            for child in element:
                walk(child)
            collector.leave(element.tag)
        collector.add(element.tail or "")

    walk(ElementTree.fromstring(content, ElementTree.XMLParser(target=builder)))
    collector.block("the end")
    collector.units.append(Unit(" ".join(collector._events), "", ""))
    return collector.units


def _rendered(content: str) -> list[Unit]:
    from markdown_it import MarkdownIt

    content = re.sub(r"(\[\^[^\]\s]+\]):", r"\1 :", content)  # a footnote, not an address
    return _page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(content))


def _srt(content: str) -> list[Unit]:
    import srt

    return [
        Unit(f"{cue.index} {cue.start} {cue.end}", "", cue.content) for cue in srt.parse(content)
    ]


def _vtt(content: str) -> list[Unit]:
    import webvtt

    return [
        Unit(f"{cue.identifier} {cue.start} {cue.end}", "", cue.raw_text)
        for cue in webvtt.from_buffer(StringIO(content)).captions
    ]


def _catalog(content: str) -> list[Unit]:
    """Translations, with what each is to be translated of; a form of a plural by its number."""
    import polib

    def units(entry: polib.POEntry) -> Iterator[Unit]:
        place = f"{entry.msgctxt} {entry.msgid} {entry.flags} {entry.obsolete}"
        if not entry.msgid_plural:
            yield Unit(place, entry.msgid, entry.msgstr, whole=(entry.msgid,))
        for number, text in entry.msgstr_plural.items():
            alone = number == 0 and len(entry.msgstr_plural) > 1
            source = entry.msgid if alone else entry.msgid_plural
            whole = (entry.msgid, entry.msgid_plural)
            yield Unit(f"{place} {number}", source, text, whole=whole)

    found = [unit for entry in polib.pofile(content) for unit in units(entry)]
    return [unit for unit in found if not unit.source.startswith("ke")]


def _json(content: str) -> list[Unit]:
    def walk(value: object, place: str) -> Iterator[Unit]:
        if isinstance(value, dict):
            for key, each in value.items():
                yield from walk(each, f"{place}/{key}")
        elif isinstance(value, list):
            for number, each in enumerate(value):
                yield from walk(each, f"{place}/{number}")
        elif isinstance(value, str):
            yield Unit(place, "", value)
        else:
            yield Unit(f"{place} {value}", "", "")

    return list(walk(json.loads(content), ""))


_PARSER_ERRORS = (ValueError, SyntaxError, OSError)


def _refused_by_others(kind: str, made: str) -> str:
    """What parsers say that are not always installed; empty if nothing is wrong."""
    if kind == "po" and _MSGFMT:
        run = subprocess.run(
            [_MSGFMT, "--check-format", "--check-header", "-o", "/dev/null", "-"],
            input=made, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return f"msgfmt: {run.stderr[:300]}" if run.returncode else ""
    if kind in ("html", "xml", "strings", *BILINGUAL):
        try:
            from lxml import etree, html
        except ImportError:
            return ""
        if kind == "html":
            html.document_fromstring(made)
        else:
            etree.fromstring(made.encode())
    return ""
