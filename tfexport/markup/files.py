"""Files of texts: pages, subtitles, catalogs of messages, JSON."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from tfexport.errors import InputError, missing_dependency
from tfexport.markup.document import Markup
from tfexport.markup.markdown_reader import Place, find_texts, same_blocks, write_inline

FileFormat = Literal["text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings"]
FILE_FORMATS: tuple[FileFormat, ...] = (
    "text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings",
)  # fmt: skip
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|&(?:\w+|#\w+);")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)
_MESSAGE = re.compile(r"^(?:#~ *)?msgid\s", re.MULTILINE)
_HEADER = re.compile(r'^msgid ""\s*\nmsgstr\s', re.MULTILINE)
_DASH = re.compile(r"\s*[-–—]\s*(?=\S)")


@dataclass(frozen=True)
class Text:
    """One text of a file.

    Attributes:
        text: the text.
        markup: what it is made of.
    """

    text: str
    markup: Markup


@dataclass(frozen=True)
class TextFile:
    """The texts of a file.

    Attributes:
        texts: in order.
        write: makes the file of translations, one for each text.
    """

    texts: list[Text]
    write: Callable[[Sequence[str]], str]


def read_file(content: str, kind: FileFormat, markup: Markup) -> TextFile:
    """Find the texts of a file.

    Args:
        content: of the file.
        kind: its format.
        markup: its placeholders, and rules for its elements.

    Raises:
        InputError: it is malformed.
        MissingDependencyError: its parser is not installed.
    """
    if kind in ("text", "html", "xml"):
        whole = replace(markup, format=kind)
        return TextFile([Text(content, whole)], lambda made: made[0])
    readers = {"markdown": _markdown, "srt": _srt, "vtt": _vtt, "po": _po, "json-strings": _json}
    return readers[kind](content, markup)


def _markdown(content: str, markup: Markup) -> TextFile:
    newline = "\r\n" if "\r\n" in content else "\n"
    content = content.replace("\r\n", "\n")
    places, references = find_texts(content)

    def write(made: Sequence[str]) -> str:
        written, begin = list[str](), 0
        for place, text in zip(places, made, strict=True):
            lines = iter(write_inline(text, place, references).split("\n"))
            # Line breaks that are left are those of the source.
            joined = next(lines)
            for line, between in zip(lines, _kept_breaks(place, text), strict=True):
                joined += between + line
            written += [content[begin : place.start], joined]
            begin = place.end
        whole = "".join(written) + content[begin:]
        if not same_blocks(content, whole):
            raise InputError("its translation is read as other blocks of Markdown")
        return whole.replace("\n", newline)

    inline = replace(markup, format="markdown", references=references)
    texts = [Text(place.text, inline) for place in places]
    return TextFile(texts, write)


def _kept_breaks(place: Place, made: str) -> list[str]:
    """The document's own line breaks, for those that a translation has kept."""
    if made.count("\n") == len(place.breaks):
        return list(place.breaks)
    hard = re.finditer(r"(\\| {2,})?\n", place.text)
    return [between for between, found in zip(place.breaks, hard, strict=True) if found[1]]


def _message(text: str, markup: Markup) -> Text:
    """A text of a program: HTML if it has tags or entities, else plain."""
    return Text(text, replace(markup, format="html" if _TAG.search(text) else "text"))


def _srt(content: str, markup: Markup) -> TextFile:
    try:
        import srt
    except ImportError:
        raise missing_dependency("subtitles need srt", "markup") from None
    try:
        cues = [cue.content for cue in srt.parse(content.replace("\r\n", "\n"))]
    except (srt.SRTParseError, srt.TimestampParseError, ValueError) as error:
        raise InputError(f"not SubRip: {str(error)[:200]}") from None
    return _subtitles(content, cues, markup)


def _vtt(content: str, markup: Markup) -> TextFile:
    try:
        import webvtt
    except ImportError:
        raise missing_dependency("subtitles need webvtt-py", "markup") from None
    try:
        captions = webvtt.from_string(content.replace("\r\n", "\n")).captions
    except webvtt.errors.MalformedFileError as error:
        raise InputError(f"not WebVTT: {str(error)[:200]}") from None
    return _subtitles(content, [cue.raw_text for cue in captions], markup)


def _subtitles(content: str, cues: Sequence[str], markup: Markup) -> TextFile:
    """The lines of each cue, in their places in the file, of which all else stays as it is."""
    newline = "\r\n" if "\r\n" in content else "\n"
    pieces, texts, place = list[str](), list[Text](), 0
    shapes = list[int | list[str]]()  # the number of lines, or the dash of each
    for cue in cues:
        written = cue.replace("\n", newline)
        begin = content.find("-->", place)
        begin = content.find(written, content.find("\n", begin) + 1) if begin >= 0 else -1
        if begin < 0:
            raise InputError(f"the subtitle {cue[:60]!r} was not found in its own file")
        pieces.append(content[place:begin])
        place = begin + len(written)
        spoken = _speeches(cue)
        shapes.append([dash for dash, _ in spoken] if len(spoken) > 1 else cue.count("\n") + 1)
        texts += [Text(part, replace(markup, format="html")) for _, part in spoken]

    def write(made: Sequence[str]) -> str:
        found, written = iter(made), list[str]()
        for piece, shape in zip(pieces, shapes, strict=True):
            if isinstance(shape, int):
                lines = _wrapped(next(found), shape)
            else:
                lines = [dash + next(found) for dash in shape]
            written += [piece, *newline.join(lines)]
        return "".join(written) + content[place:]

    return TextFile(texts, write)


def _speeches(cue: str) -> list[tuple[str, str]]:
    """The lines of several speakers, which begin with dashes; or all lines of one."""
    lines = cue.split("\n")
    dashes = [found[0] if (found := _DASH.match(line)) else "" for line in lines]
    if sum(map(bool, dashes)) < 2:
        return [("", cue)]
    return [(dash, line[len(dash) :]) for dash, line in zip(dashes, lines, strict=True)]


def _wrapped(text: str, lines: int) -> list[str]:
    """Divide a text into lines of about the same length, at spaces outside of tags."""
    if "\n" in text:  # it was not translated
        return [text]
    shown = re.sub(r"<[^<>]*>", lambda tag: "\0" * len(tag[0]), text)
    seen = [0, *accumulate(character != "\0" for character in shown)]  # before each place
    spaces = [found.start() for found in re.finditer(" ", shown)]
    made, begin = list[str](), 0
    for line in range(1, lines):
        wanted = seen[begin] + (seen[-1] - seen[begin]) / (lines - line + 1)
        after = [place for place in spaces if place > begin]
        if not after:
            break
        cut = min(after, key=lambda place: abs(seen[place] - wanted))
        made.append(text[begin:cut])
        begin = cut + 1
    return [*made, text[begin:]]


def _po(content: str, markup: Markup) -> TextFile:
    try:
        import polib
    except ImportError:
        raise missing_dependency("catalogs of messages need polib", "markup") from None
    if "msgid" not in content:  # polib takes such a text for a path
        raise InputError("not a catalog of messages: it has no msgid")
    try:
        catalog = polib.pofile(content)
    except (OSError, ValueError, UnicodeError) as error:
        raise InputError(f"not a catalog of messages: {str(error)[:200]}") from None
    # polib leaves out what it cannot read.
    if len(_MESSAGE.findall(content)) != len(catalog) + len(_HEADER.findall(content)):
        raise InputError("not a catalog of messages: some of them cannot be read")
    entries = [entry for entry in catalog if not entry.obsolete and not entry.translated()]
    texts = list[Text]()
    for entry in entries:
        texts += [_message(one, markup) for one in (entry.msgid, entry.msgid_plural) if one]

    def write(made: Sequence[str]) -> str:
        found = iter(made)
        for entry in entries:
            single = next(found)
            if entry.msgid_plural:
                several = next(found)
                for number in entry.msgstr_plural or (0, 1):
                    entry.msgstr_plural[number] = several if number else single
            else:
                entry.msgstr = single
        # polib begins with an empty comment if there is none.
        text = str(catalog) if content.startswith("#") else str(catalog).removeprefix("#\n")
        return text if text.endswith("\n") else f"{text}\n"

    return TextFile(texts, write)


def _json(content: str, markup: Markup) -> TextFile:
    """The texts of values, without the names of objects, in their places in the file."""
    try:
        json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {str(error)[:200]}") from None
    spans = [found.span(1) for found in _STRING.finditer(content) if not found[2]]
    texts = [json.loads(content[slice(*span)], strict=False) for span in spans]
    for text in texts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError("not valid Unicode text: surrogates not allowed")
    ascii_only = content.isascii() and "\\u" in content

    def write(made: Sequence[str]) -> str:
        written, place = list[str](), 0
        for (start, end), text, own in zip(spans, made, texts, strict=True):
            same = content[start:end] if text == own else None
            written += [content[place:start], same or json.dumps(text, ensure_ascii=ascii_only)]
            place = end
        return "".join(written) + content[place:]

    return TextFile([_message(text, markup) for text in texts], write)
