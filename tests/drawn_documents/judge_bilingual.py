"""The texts of XLIFF and Qt's TS as a judge reads them, by ElementTree and the specifications.

A text that is to be translated has a word with ``wo``, or is a German sentence: of any other,
target and state may not change.
"""

import re
from collections import Counter
from collections.abc import Iterator
from copy import copy
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from tests.drawn_documents.units import Unit

_CODES = frozenset(("x", "bx", "ex", "ph", "bpt", "ept", "it", "sc", "ec", "sm", "em", "cp"))
_OPENING = {"bpt": ("rid", "id"), "bx": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
_CLOSING = {
    "ept": ("rid", "id"), "ex": ("rid", "id"), "ec": ("startRef",), "em": ("startRef",),
}  # fmt: skip
_WORD = re.compile(r"\bwo[a-z]+\b|\b[A-ZÄÖÜ][a-zäöüß]+")
_TO_TRANSLATE = re.compile(r"\bwo[a-z]|(?<!%)\b[A-ZÄÖÜ][a-zäöüß]")  # of drawn words, of German
_ESCAPED_TAG = re.compile(r"</?[a-z][^<>]*>")
_UNITS = {"trans-unit": "target", "segment": "target", "message": "translation"}
_TARGETS = re.compile(
    r"\s*<((?:\w+:)?(?:target|translation))\b(?:[^<>]*/>|[^<>]*(?<!/)>.*?</\1>)", re.DOTALL
)


def without_targets(content: str) -> str:
    """A file without its translations: what has to be the same, byte for byte."""
    return _TARGETS.sub("", content)


def read(content: str) -> list[Unit]:
    """The texts of a file, each with what it is to be a translation of."""
    builder = ElementTree.TreeBuilder(insert_comments=True, insert_pis=True)
    root = ElementTree.fromstring(content, ElementTree.XMLParser(target=builder))
    return list(_walk(root, False))


def _name(element: Element) -> str:
    return "" if callable(element.tag) else element.tag.rpartition("}")[2]


def _written(element: Element) -> str:
    """An element without what is after it."""
    alone = copy(element)
    alone.tail = None
    return ElementTree.tostring(alone, encoding="unicode")


def _walk(element: Element, preserved: bool) -> Iterator[Unit]:
    space = element.get("{http://www.w3.org/XML/1998/namespace}space")
    preserved = preserved if space is None else space == "preserve"
    if _name(element) in _UNITS:
        yield from _texts(element, preserved)
        return
    for child in element:
        yield from _walk(child, preserved)


def _texts(unit: Element, preserved: bool) -> Iterator[Unit]:
    name = _UNITS[_name(unit)]
    children = {_name(child): child for child in unit}
    source, target = children["source"], children.get(name)
    segmented = children.get("seg-source")
    where = f"{unit.get('id')} {sorted(unit.attrib.items())} {_written(source)}"
    if not _TO_TRANSLATE.search("".join(source.itertext()).replace("&", "")):
        yield Unit(f"{where} {'' if target is None else _written(target)}", "", "")
        return
    words = _words(source)
    read_from = source if segmented is None else segmented
    begun = target is not None and not unit.get("numerus") and _is_begun(target)
    inline = _inline(target if begun and target is not None else read_from, preserved)
    attributes = {} if target is None else dict(target.attrib)
    if name == "translation":
        done = target is not None and _words(target)
        attributes.setdefault("type", "finished" if done else "unfinished")
    place = f"{where} {sorted(attributes.items())}"
    forms = [] if target is None else [each for each in target if _name(each) == "numerusform"]
    for number, form in enumerate(forms):
        codes = _inline(form, preserved) if form.text else inline
        where = f"{place} {number}/{len(forms)}"
        yield Unit(where, words, form.text or "", codes, tuple(_WORD.findall(words)))
    if not forms:
        text = "" if target is None else _words(target)
        yield Unit(place, words, text, inline, tuple(_WORD.findall(words)))


def _is_begun(target: Element) -> bool:
    """Whether a target has words, or elements but those around segments."""
    codes = (_name(each) not in ("mrk", "") for each in target.iter() if each is not target)
    return bool(_words(target)) or any(codes)


def _words(element: Element) -> str:
    """What is not of a code: in one line."""

    def texts(each: Element) -> Iterator[str]:
        if _name(each) not in _CODES and _name(each):
            yield each.text or ""
            for child in each:
                yield from texts(child)
                yield child.tail or ""

    return " ".join("".join(texts(element)).split())


def _inline(element: Element, preserved: bool) -> Counter[str]:
    """Codes, elements in the elements that they are in, pairs in order, tags that are escaped."""
    codes, seen = Counter[str](), dict[str, bool]()

    def walk(each: Element, path: str) -> None:
        for child in each:
            here = f"{path}/{_name(child)} {sorted(child.attrib.items())}"
            if _name(child) in _CODES:
                codes[f"{here} {child.text}"] += 1
                _pair(child, seen, codes)
            else:
                codes[here] += 1
                walk(child, here)

    walk(element, "")
    codes += Counter(_ESCAPED_TAG.findall(_words(element)))
    if preserved:
        codes["\n"] = "".join(element.itertext()).count("\n")
    return codes


def _pair(code: Element, seen: dict[str, bool], codes: Counter[str]) -> None:
    """Count a pair whose end is after its beginning."""
    name, number = _name(code), code.get("id", "")
    begins, ends = _OPENING.get(name), _CLOSING.get(name)
    if name == "x" and number.startswith(("START_", "CLOSE_")):
        begins, ends = (("id",), None) if number.startswith("START_") else (None, ("id",))
    for names in filter(None, (begins, ends)):
        key = next((value for each in names if (value := code.get(each))), "")
        key = key.removeprefix("START_").removeprefix("CLOSE_")
        if begins:
            seen[key] = True
        elif key in seen:
            codes[f"pair {key}"] += 1
