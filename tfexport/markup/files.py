"""Files of texts: pages, subtitles, catalogs of messages, JSON."""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from tfexport.errors import InputError, missing_dependency
from tfexport.markup.document import Markup
from tfexport.markup.markdown_reader import Place, find_texts, same_blocks, write_inline

FileFormat = Literal["text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings"]
FILE_FORMATS: tuple[FileFormat, ...] = (
    "text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings",
)  # fmt: skip
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|</?\d{1,4} ?/?>|&(?:\w+|#\w+);")
# Where files say their encoding.
_DECLARED: dict[str, re.Pattern[str]] = {
    "xml": re.compile(r"\A\s*<\?xml[^<>]{0,200}?\bencoding\s*=\s*[\"']([\w.:-]{1,40})"),
    "html": re.compile(
        r"<meta\b[^<>]{0,200}?\bcharset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE
    ),
    "po": re.compile(r'^"Content-Type:[^"\n]{0,100}\bcharset=([\w.:-]{1,40})', re.MULTILINE),
}
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)
_MESSAGE = re.compile(r"^(?:#~ *)?msgid\s", re.MULTILINE)
_HEADER = re.compile(r'^msgid ""\s*\nmsgstr\s', re.MULTILINE)
# How subtitles begin: where they are shown, and the dash of a speaker.
_POSITION = re.compile(r"\s*(?:\{\\[^{}]*\}\s*)*")
_DASH = re.compile(r"\s*(?:\{\\[^{}]*\}\s*|<[^<>]*>\s*)*[-–—]\s*(?=\S)")
_HEARD = re.compile(r"\s*(?:\[[^\[\]]*\]|\([^()]*\))\s*")
_ENDS = ".!?…\"'”»)]>♪"


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
        content: of the file, without a byte order mark.
        kind: its format.
        markup: its placeholders, and rules for its elements.

    Raises:
        InputError: it is malformed.
        MissingDependencyError: its parser is not installed.
    """
    _check_encoding(content, kind)
    if kind in ("text", "html", "xml"):
        whole = replace(markup, format=kind)
        file = TextFile([Text(content, whole)], lambda made: made[0])
    else:
        readers = {
            "markdown": _markdown,
            "srt": _srt,
            "vtt": _vtt,
            "po": _po,
            "json-strings": _json,
        }
        file = readers[kind](content, markup)

    def write(made: Sequence[str]) -> str:
        written = file.write(made)
        _check_encoding(written, kind)
        return written

    return TextFile(file.texts, write)


def _check_encoding(content: str, kind: FileFormat) -> None:
    """Refuse a file that says it is in another encoding than UTF-8, if that makes a difference.

    Raises:
        InputError: it does, and has characters that are not ASCII.
    """
    found = _DECLARED[kind].search(content) if kind in _DECLARED else None
    if found is None or content.isascii() or found[1] == "CHARSET":  # what xgettext writes
        return
    try:
        known = codecs.lookup(found[1]).name
    except (LookupError, ValueError):
        known = found[1]
    if known != "utf-8":
        raise InputError(
            f"it says that its encoding is {found[1]!r}, but it is read and written in UTF-8, and "
            "has characters that are not ASCII; change what it says, and convert it if it is true"
        )


def _markdown(content: str, markup: Markup) -> TextFile:
    newline = "\r\n" if "\r\n" in content else "\n"
    content = content.replace("\r\n", "\n")
    places, references = find_texts(content)

    def write(made: Sequence[str]) -> str:
        written, begin = list[str](), 0
        for place, text in zip(places, made, strict=True):
            if place.html:
                written += [content[begin : place.start], text]
                begin = place.end
                continue
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
    html = replace(markup, format="html")
    texts = [Text(place.text, html if place.html else inline) for place in places]
    return TextFile(texts, write)


def _kept_breaks(place: Place, made: str) -> list[str]:
    """The document's own line breaks, for those that a translation has kept."""
    if made.count("\n") == len(place.breaks):
        return list(place.breaks)
    hard = re.finditer(r"(\\| {2,})?\n", place.text)
    return [between for between, found in zip(place.breaks, hard, strict=True) if found[1]]


def _message(text: str, markup: Markup) -> Text:
    """A text of a program: HTML if it has tags or entities, else plain."""
    if not _TAG.search(text):
        return Text(text, replace(markup, format="text"))
    return Text(text, _with_tags(markup))


def _with_tags(markup: Markup) -> Markup:
    """The markup of messages and subtitles."""
    return replace(markup, format="html", rules=replace(markup.rules, program=True))


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
        begins = content.startswith("WEBVTT")
        reason = str(error)[:200] if begins else "its first line does not begin with WEBVTT"
        raise InputError(f"not WebVTT: {reason}") from None
    return _subtitles(content, [cue.raw_text for cue in captions], markup)


def _subtitles(content: str, cues: Sequence[str], markup: Markup) -> TextFile:
    """The lines of each cue, in their places in the file, of which all else stays as it is."""
    newline = "\r\n" if "\r\n" in content else "\n"
    pieces, texts, place = list[str](), list[Text](), 0
    shapes = list[list[tuple[str, int]]]()  # the start and the number of lines of each speech
    for cue in map(str.rstrip, cues):
        written = cue.replace("\n", newline)
        begin = content.find("-->", place)
        begin = content.find(written, content.find("\n", begin) + 1) if begin >= 0 else -1
        if begin < 0:
            raise InputError(f"the subtitle {cue[:60]!r} was not found in its own file")
        pieces.append(content[place:begin])
        place = begin + len(written)
        speeches = _speeches(cue)
        shapes.append([(start, text.count("\n") + 1) for start, text in speeches])
        texts += [Text(text, _with_tags(markup)) for _, text in speeches]

    def write(made: Sequence[str]) -> str:
        found, written = iter(made), list[str]()
        for piece, shape in zip(pieces, shapes, strict=True):
            lines = list[str]()
            for start, count in shape:
                first, *others = _wrapped(next(found), count)
                lines += [start + first, *others]
            written += [piece, newline.join(lines)]
        return "".join(written) + content[place:]

    return TextFile(texts, write)


def _speeches(cue: str) -> list[tuple[str, str]]:
    """The speeches of a cue, each with the dash and the tags before it, which are kept.

    A speech begins with a dash after another one, or after the end of a sentence; a line in
    brackets, which says what is heard, is on its own.
    """
    speeches, heard = list[tuple[str, str]](), False
    lines = cue.split("\n")
    dashes = sum(map(bool, map(_DASH.match, lines)))
    for line in lines:
        dash, before = _DASH.match(line), speeches[-1][1] if speeches else "."
        begins = dash and (dashes > 1 or before.rstrip()[-1:] in _ENDS)
        was_heard, heard = heard, _HEARD.fullmatch(line) is not None
        if not speeches or begins or heard or was_heard:
            start = (dash if begins else _POSITION.match(line)) or None
            length = start.end() if start else 0
            speeches.append((line[:length], line[length:]))
        else:
            start_of, text = speeches[-1]
            speeches[-1] = (start_of, f"{text}\n{line}")
    return speeches


def _wrapped(text: str, lines: int) -> list[str]:
    """Divide a text into lines: those that it has, and the longest of them at spaces."""
    made = text.split("\n")
    while len(made) < lines:
        place = max(range(len(made)), key=lambda number: len(_shown(made[number])))
        again = _divided(made[place], 1 + lines - len(made) if len(made) == 1 else 2)
        if len(again) == 1:
            break
        made[place : place + 1] = again
    return made


def _shown(line: str) -> str:
    return re.sub(r"<[^<>]*>", "", line)


def _divided(text: str, lines: int) -> list[str]:
    """Divide a text into lines of about the same length, at spaces outside of tags."""
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
    entries = [entry for entry in catalog if not entry.obsolete and _is_empty(entry)]
    texts = list[Text]()
    for entry in entries:
        texts += [_message(one, markup) for one in (entry.msgid, entry.msgid_plural) if one]

    def write(made: Sequence[str]) -> str:
        lines, found = content.splitlines(keepends=True), iter(made)
        written, place = list[str](), 0
        for entry in entries:
            forms: dict[int | None, str] = {None: next(found)}
            if entry.msgid_plural:
                several = next(found)
                forms = {n: several if n else forms[None] for n in entry.msgstr_plural or (0, 1)}
            begin, end = _translation_lines(lines, max(place, entry.linenum - 1))
            newline = "\r\n" if lines[begin].endswith("\r\n") else "\n"
            made_lines = [line for n, text in forms.items() for line in _po_lines(n, text)]
            written += ["".join(lines[place:begin]), *(f"{line}{newline}" for line in made_lines)]
            place = end
        whole = "".join(written) + "".join(lines[place:])
        if [entry.msgid for entry in polib.pofile(whole)] != [entry.msgid for entry in catalog]:
            raise InputError("its translation is read as other messages")
        return whole

    return TextFile(texts, write)


def _is_empty(entry: Any) -> bool:
    """Whether nothing of a message is translated; drafts, which are marked as fuzzy, are kept."""
    return not (entry.msgstr or any(entry.msgstr_plural.values()))


def _translation_lines(lines: Sequence[str], start: int) -> tuple[int, int]:
    """The lines of the translation of the message that is at a line or after it."""
    begin = start
    while begin < len(lines) and not lines[begin].lstrip().startswith("msgstr"):
        begin += 1
    if begin == len(lines):
        raise InputError(f"line {start + 1}: a message without msgstr")
    end = begin + 1
    while end < len(lines) and lines[end].lstrip().startswith(("msgstr", '"')):
        end += 1
    return begin, end


def _po_lines(number: int | None, text: str) -> list[str]:
    """A translation as a catalog writes it; ``number`` is that of a form of the plural."""
    import polib

    one = polib.POEntry(msgid="a", msgstr=text)
    if number is not None:
        one = polib.POEntry(msgid="a", msgid_plural="a", msgstr_plural={number: text})
    lines = str(one).rstrip("\n").split("\n")
    return lines[next(n for n, line in enumerate(lines) if line.startswith("msgstr")) :]


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
