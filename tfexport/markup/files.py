"""Files of texts: pages, subtitles, catalogs of messages, JSON."""

import codecs
import gettext
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tfexport.errors import InputError, missing_dependency
from tfexport.markup.directives import PROGRAM, accelerator, doubtful, formats_of
from tfexport.markup.document import Markup
from tfexport.markup.placeholders import Placeholders
from tfexport.markup.tokens import KeptPart

if TYPE_CHECKING:  # the readers are slow to import, and each is of one format
    from tfexport.markup.markdown_reader import Place
    from tfexport.markup.speeches import Speech

FileFormat = Literal["text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings"]
FILE_FORMATS: tuple[FileFormat, ...] = (
    "text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings",
)  # fmt: skip
_TAG = re.compile(r"<!--|</?[A-Za-z][^<>]*>|</?\d{1,4} ?/?>|&(?:\w+|#\w+);")
# Where files say their encoding.
_DECLARED: dict[str, re.Pattern[str]] = {
    "xml": re.compile(r"\A\s*<\?xml[^<>]{0,200}?\bencoding\s*=\s*[\"']([\w.:-]{1,40})"),
    "html": re.compile(
        r"<meta\b[^<>]{0,200}?\bcharset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE
    ),
    "po": re.compile(r'^"Content-Type:[^"\n]{0,100}\bcharset=([\w.:-]{1,40})', re.MULTILINE),
}
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\],]', re.DOTALL)
_MESSAGE = re.compile(r"^(?:#~ *)?msgid\s", re.MULTILINE)
_SHORT = 60  # characters, which a catalog does not wrap
_ESCAPED = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e\xa0-\u02ff]")  # in a catalog, or perhaps wide
_HEADER = re.compile(r'^msgid ""\s*\nmsgstr\s', re.MULTILINE)
# The lines of times that srt and webvtt-py read; after them there may be where a cue is shown.
_LINE_END = r"[^\r\n]*(?:\r\n?|\n|\Z)"
_SRT_TIME = r"\d+[,.:，．。：]\d+[,.:，．。：]\d+[,.:，．。：]?\d*"
_SRT_TIMES = re.compile(
    rf"(?:^|(?<=\r))[^\S\r\n]*{_SRT_TIME} *-[ -] *> *{_SRT_TIME}{_LINE_END}", re.MULTILINE
)
_VTT_TIME = r"(?:\d+:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_VTT_TIMES = re.compile(
    rf"(?:^|(?<=\r))[^\S\r\n]*{_VTT_TIME}[^\S\r\n]*-->[^\S\r\n]*{_VTT_TIME}(?!\d){_LINE_END}",
    re.MULTILINE,
)
_OF_FILE = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)(?=\s|\Z)")  # blocks that are no cues
_QT_FORMATS = (("qt",), ("qt-plural",))  # of a message of Qt, and of one with a plural
_NO_NUMBER = "it holds a line of times: what is above that line is no number of a cue"
_NO_CUE = "it is no cue: it has no times in the form that the format asks for"


@dataclass(frozen=True)
class FileOptions:
    """How files of some formats are read and written.

    Attributes:
        fuzzy: whether the translations of a catalog are marked as drafts (``fuzzy``).
    """

    fuzzy: bool = False


USUAL_OPTIONS = FileOptions()


@dataclass(frozen=True)
class Text:
    """One text of a file.

    Attributes:
        text: the text.
        markup: what it is made of.
        line: the line of the file where it starts, from 1; None if it is the whole file.
    """

    text: str
    markup: Markup
    line: int | None = None


@dataclass(frozen=True)
class TextFile:
    """The texts of a file.

    Attributes:
        texts: in order.
        write: makes the file of translations, one for each text; None for one that is not
            translated, which is written as its format marks that, or as it is.
        kept: what the reader of the format does not know.
    """

    texts: list[Text]
    write: Callable[[Sequence[str | None]], str]
    kept: list[KeptPart] = field(default_factory=list)


def read_file(
    content: str, kind: FileFormat, markup: Markup, options: FileOptions = USUAL_OPTIONS
) -> TextFile:
    """Find the texts of a file.

    Args:
        content: of the file, without a byte order mark.
        kind: its format.
        markup: its placeholders, and rules for its elements.
        options: of its format.

    Raises:
        InputError: it is malformed.
        MissingDependencyError: its parser is not installed.
    """
    _check_encoding(content, kind)
    bilingual = _bilingual(content, markup) if kind == "xml" else None
    if bilingual:
        file = bilingual
    elif kind in ("text", "html", "xml"):
        whole = replace(markup, format=kind)
        file = TextFile([Text(content, whole)], lambda made: made[0] or content)
    else:
        readers = {
            "markdown": _markdown,
            "srt": _srt,
            "vtt": _vtt,
            "po": _po,
            "json-strings": _json,
        }
        file = readers[kind](content, markup, options)

    def write(made: Sequence[str | None]) -> str:
        written = file.write(made)
        _check_encoding(written, kind)
        return written

    return replace(file, write=write)


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


def _markdown(content: str, markup: Markup, options: FileOptions) -> TextFile:
    from tfexport.markup.markdown_reader import (  # noqa: PLC0415
        find_texts,
        same_blocks,
        write_inline,
    )

    newline = "\r\n" if "\r\n" in content else "\n"
    content = content.replace("\r\n", "\n")
    places, references, unread = find_texts(content, markup.dialect, markup.rules)

    def write(made: Sequence[str | None]) -> str:
        written, begin = list[str](), 0
        for place, text in zip(places, made, strict=True):
            if text is None or text == place.text:  # letter for letter
                written.append(content[begin : place.end])
                begin = place.end
                continue
            if place.html:
                written += [content[begin : place.start], text]
                begin = place.end
                continue
            again = write_inline(text, place, references)
            if not place.text[:1].isspace():
                again = again.lstrip()  # an item's text decides what is within the item
            if again.split() == place.text.split():  # nothing was translated
                written.append(content[begin : place.end])
                begin = place.end
                continue
            lines = iter(again.split("\n"))
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
    texts = [Text(place.text, html if place.html else inline, place.line) for place in places]
    return TextFile(texts, write, unread)


def _kept_breaks(place: "Place", made: str) -> list[str]:
    """The document's own line breaks, for those that a translation has kept."""
    if made.count("\n") == len(place.breaks):
        return list(place.breaks)
    hard = re.finditer(r"(\\| {2,})?\n", place.text)
    return [between for between, found in zip(place.breaks, hard, strict=True) if found[1]]


def _bilingual(content: str, markup: Markup) -> TextFile | None:
    """The texts of a file with translations, of which those that are there stay; None of others."""
    from tfexport.markup.bilingual import find_units, kind_of  # noqa: PLC0415

    kind = kind_of(content)
    if kind is None:
        return None
    units, kept = find_units(content, kind, markup)
    of_program, texts = _of_program(markup), list[Text]()
    by_formats = {names: _of_program(markup, names) for names in ((), ("qt",), ("qt-plural",))}
    for unit in units:
        if unit.rules is not None:
            inside = replace(of_program, format="xml", rules=unit.rules)
            texts.append(Text(unit.text, inside, unit.line))
        else:
            formats = _QT_FORMATS[unit.plural] if kind == "ts" else ()
            texts.append(_of_catalog(unit.text, by_formats[formats], formats, unit.line))

    def write(made: Sequence[str | None]) -> str:
        written, place = list[str](), 0
        for unit, source, text in zip(units, texts, made, strict=True):
            same = text is None or (text == unit.text and not _has_words(source))
            now = content[unit.begin : unit.end] if same else unit.write(text or "")
            written += [content[place : unit.begin], now]
            place = unit.end
        return "".join(written) + content[place:]

    return TextFile(texts, write, kept)


def _has_words(text: Text) -> bool:
    """Whether a text has a letter outside of its placeholders."""
    for segment in text.markup.read(text.text).segments:
        ends = [0, *(end for _, end in segment.kept)]
        starts = [*(start for start, _ in segment.kept), len(segment.text)]
        spans = zip(ends, starts, strict=True)
        if any(any(map(str.isalpha, segment.text[slice(*span)])) for span in spans):
            return True
    return False


def _of_catalog(text: str, markup: Markup, formats: Sequence[str], line: int) -> Text:
    """A message of a catalog, of which the sign of an accelerator stays.

    Args:
        text: of the message.
        markup: of the program's messages, with directives of the formats.
        formats: of the message's flags.
        line: of the message.
    """
    made = _message(text, markup, line)
    if made.markup.format == "text" and (place := accelerator(text, formats)) is not None:
        return replace(made, markup=replace(made.markup, accelerator=place))
    return made


def _message(text: str, markup: Markup, line: int) -> Text:
    """A text of a program: HTML if it has tags, comments or entities, else plain."""
    plain = Text(text, replace(markup, format="text"), line)
    if not _TAG.search(text):
        return plain
    spans = (markup.placeholders or Placeholders()).find(text)
    rest = text
    for start, end in reversed(spans):  # Ruby's %<name>d is no tag
        rest = rest[:start] + rest[end:]
    if not _TAG.search(rest):
        return plain
    literals = tuple(one for span in spans if "<" in (one := text[slice(*span)]))
    return Text(text, _with_tags(markup, literals), line)


def _with_tags(markup: Markup, literals: tuple[str, ...] = ()) -> Markup:
    """The markup of messages and subtitles; ``literals`` are in the form of tags, and none."""
    rules = replace(markup.rules, program=True, literals=literals)
    return replace(markup, format="html", rules=rules)


def _srt(content: str, markup: Markup, options: FileOptions) -> TextFile:
    try:
        import srt
    except ImportError:
        raise missing_dependency("subtitles need srt", "markup") from None
    unified, begin, cues = content.replace("\r\n", "\n"), 0, list[str]()

    def line_of(place: int) -> int:
        return unified.count("\n", 0, begin + place) + 1

    while True:
        cues.clear()
        try:
            cues += (cue.content for cue in srt.parse(unified[begin:]))
            break
        except srt.SRTParseError as error:
            unread = error.unmatched_content
            if not error.expected_start and unified[begin + error.actual_start :].strip():
                begin += error.actual_start  # what stands above the first cue is kept
                continue
            blank = len(unread) - len(unread.lstrip())
            raise InputError(
                f"not SubRip: line {line_of(error.expected_start + blank)}: "
                f"{unread.strip()[:60]!r} belongs to no subtitle; expected a number, a line of "
                "times (00:00:01,000 --> 00:00:02,500) and text. Correct or remove it."
            ) from None
        except (ValueError, OverflowError):  # of a time that is too large
            times = [*_SRT_TIMES.finditer(unified, begin)][len(cues) :]
            where = f"line {line_of(times[0].start() - begin)}: " if times else ""
            raise InputError(f"not SubRip: {where}its times cannot be read.") from None
    file = _subtitles(content, cues, markup, _SRT_TIMES)
    above = unified[:begin]
    if not above.strip():
        return file
    first = above[: len(above) - len(above.lstrip())].count("\n") + 1
    rest = [part for part in file.kept if part.line is None or part.line > line_of(0)]
    return replace(file, kept=[KeptPart(first, above.strip(), _NO_CUE), *rest])


def _vtt(content: str, markup: Markup, options: FileOptions) -> TextFile:
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
    return _subtitles(content, [cue.raw_text for cue in captions], markup, _VTT_TIMES)


def _subtitles(
    content: str, cues: Sequence[str], markup: Markup, times: re.Pattern[str]
) -> TextFile:
    """The lines of each cue, in their places in the file, of which all else stays as it is.

    Args:
        content: of the file.
        cues: the text of each, as its parser gives it.
        markup: of the texts.
        times: the line above the text of a cue, as the parser reads it.
    """
    from tfexport.markup.speeches import (  # noqa: PLC0415
        find_speakers,
        join_speeches,
        split_speeches,
    )

    newline = "\r\n" if "\r\n" in content else "\n"
    pieces, texts, place = list[str](), list[Text](), 0
    line, before, start_at = 1, 0, 0
    kept = list[KeptPart]()
    said, speakers = list["list[Speech]"](), find_speakers(cues)
    with_tags = _with_tags(markup)
    for cue in map(str.rstrip, cues):
        written = cue.replace("\n", newline)
        above = times.search(content, start_at)
        begin = content.find(written, above.end()) if above else -1
        if begin < 0:
            raise InputError(f"the subtitle {cue[:60]!r} was not found in its own file")
        start_at = begin + len(written)
        if times.search(cue):  # the parser takes a cue of which it cannot read the number for text
            kept.append(KeptPart(content.count("\n", 0, begin) + 1, cue, _NO_NUMBER))
            continue
        pieces.append(content[place:begin])
        place = begin + len(written)
        said.append(split_speeches(cue, speakers))
        line += content.count("\n", before, begin)
        before = begin
        of_speech = line
        for speech in said[-1]:
            of_speech -= speech.joined
            texts.append(Text(speech.text, with_tags, of_speech))
            of_speech += speech.text.count("\n") + 1

    def write(made: Sequence[str | None]) -> str:
        found, written = iter(zip(texts, made, strict=True)), list[str]()
        for piece, speeches in zip(pieces, said, strict=True):
            now = [
                source.text if translation is None else translation
                for source, translation in islice(found, len(speeches))
            ]
            written += [piece, newline.join(join_speeches(speeches, now))]
        return "".join(written) + content[place:]

    if not kept:
        kept = _unread_blocks([*pieces, content[place:]], times)
    return TextFile(texts, write, kept)


def _unread_blocks(pieces: Sequence[str], times: re.Pattern[str]) -> list[KeptPart]:
    """The blocks between the texts of cues that no parser reads, such as one with other times.

    Args:
        pieces: of the file; each but the last one ends where the text of a cue begins.
        times: a line of times that is read.
    """
    kept, line = list[KeptPart](), 1
    for number, piece in enumerate(pieces):
        blocks = re.split(r"(\r?\n[ \t]*\r?\n)", piece)  # and what is between them
        # The first one ends the cue before; the last one is the name and the times of the next.
        first, last = int(number > 0), len(blocks) - int(number < len(pieces) - 1)
        for place, block in enumerate(blocks):
            is_between = first <= place < last and place % 2 == 0 and block.strip()
            is_known = _OF_FILE.match(block.lstrip()) or _is_cue_without_text(block, times)
            if is_between and not is_known:
                leading = block[: len(block) - len(block.lstrip())]
                kept.append(KeptPart(line + leading.count("\n"), block.strip(), _NO_CUE))
            line += block.count("\n")
    return kept


def _is_cue_without_text(block: str, times: re.Pattern[str]) -> bool:
    match = times.search(block)
    return match is not None and not block[match.end() :].strip()


def _po(content: str, markup: Markup, options: FileOptions) -> TextFile:
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
    entries, texts, kept = _entries(catalog, markup)
    singular = _singular_forms(catalog.metadata.get("Plural-Forms", ""))

    def write(made: Sequence[str | None]) -> str:
        lines, found = content.splitlines(keepends=True), iter(made)
        written, place = list[str](), 0
        for entry in entries:
            forms: dict[int | None, str | None] = {None: next(found)}
            if entry.msgid_plural:
                one, several = forms[None], next(found)
                shown = _shows_number(entry, _of_program(markup, formats_of(entry.flags)))
                forms = {
                    n: one if n in (singular.alone | singular.some if shown else singular.alone)
                    else several
                    for n in entry.msgstr_plural or (0, 1)
                }  # fmt: skip
            if None in forms.values():  # an entry that is empty is not translated yet
                continue
            begin, end = _translation_lines(lines, max(place, entry.linenum - 1))
            newline = "\r\n" if lines[begin].endswith("\r\n") else "\n"
            made_lines = [line for n, text in forms.items() for line in _po_lines(n, text or "")]
            above = lines[place:begin]
            if options.fuzzy:
                _mark_fuzzy(above, newline)
            written += ["".join(above), *(f"{line}{newline}" for line in made_lines)]
            place = end
        whole = "".join(written) + "".join(lines[place:])
        if [entry.msgid for entry in polib.pofile(whole)] != [entry.msgid for entry in catalog]:
            raise InputError("its translation is read as other messages")
        return whole

    return TextFile(texts, write, kept)


def _entries(catalog: Any, markup: Markup) -> tuple[list[Any], list[Text], list[KeptPart]]:
    """The messages of a catalog that are translated, their texts, and those that are not."""
    entries, texts, kept = list[Any](), list[Text](), list[KeptPart]()
    markups = dict[tuple[str, ...], Markup]()  # by the formats of messages
    for entry in catalog:
        if entry.obsolete or not _is_empty(entry):
            continue
        sources = [one for one in (entry.msgid, entry.msgid_plural) if one]
        formats = formats_of(entry.flags)
        doubts = [part for one in sources if (part := doubtful(one, formats))]
        if doubts:
            reason = f"{doubts[0]!r} is a directive of {formats[0]}-format, or a word"
            kept.append(KeptPart(max(1, entry.linenum), entry.msgid, reason))
            continue
        entries.append(entry)
        if formats not in markups:
            markups[formats] = _of_program(markup, formats)
        for one in sources:
            texts.append(_of_catalog(one, markups[formats], formats, max(1, entry.linenum)))
    return entries, texts, kept


def _of_program(markup: Markup, formats: Sequence[str] = ()) -> Markup:
    """The markup of a program's message, whose placeholders are of formats too."""
    known = markup.placeholders or Placeholders()
    return replace(markup, placeholders=replace(known, directives=(PROGRAM, *formats)))


class _SingularForms(NamedTuple):
    """The forms of a plural that are for the number 1.

    Attributes:
        alone: for no other number.
        some: for some others too, as in Russian for 21, in French for 0.
    """

    alone: frozenset[int]
    some: frozenset[int]


def _singular_forms(rule: str) -> _SingularForms:
    """Find the forms for the number 1 in a catalog's rule; without a rule, form 0 is for 1 alone.

    Args:
        rule: the value of ``Plural-Forms``.
    """
    found = re.search(r"nplurals\s*=\s*(\d{1,3})\s*;\s*plural\s*=([^;]+)", rule)
    try:
        form_of = gettext.c2py(found[2].strip()) if found else None
        numbers = [form_of(number) for number in range(1000)] if form_of else []
    except (ValueError, ArithmeticError, RecursionError):  # such as EXPRESSION, of a template
        numbers = []
    if found is None or not numbers or max(numbers) >= int(found[1]):
        numbers = [1, 0, 1]  # as in German
    form = numbers[1]
    if numbers.count(form) == 1:
        return _SingularForms(frozenset([form]), frozenset())
    every = len(set(numbers)) == 1
    return _SingularForms(frozenset(), frozenset() if every else frozenset([form]))


def _shows_number(entry: Any, markup: Markup) -> bool:
    """Whether both forms of a message have the same placeholders, so that each shows the number."""
    known = markup.placeholders or Placeholders()
    one, several = (
        sorted(text[slice(*span)] for span in known.find(text))
        for text in (entry.msgid, entry.msgid_plural)
    )
    return bool(one) and one == several


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


def _mark_fuzzy(lines: list[str], newline: str) -> None:
    """Mark a message as a draft; ``lines`` are those above its translation."""
    first = len(lines)
    while first and lines[first - 1].lstrip().startswith(('"', "msg", "#|")):
        first -= 1
    flags = first
    while flags and lines[flags - 1][:1] == "#" and lines[flags - 1][:2] != "#,":
        flags -= 1
    if flags and lines[flags - 1].startswith("#,"):
        lines[flags - 1] = f"#, fuzzy,{lines[flags - 1][2:]}"
    else:
        lines.insert(first, f"#, fuzzy{newline}")


def _po_lines(number: int | None, text: str) -> list[str]:
    """A translation as a catalog writes it; ``number`` is that of a form of the plural."""
    if number is None and len(text) < _SHORT and not _ESCAPED.search(text):
        return [f'msgstr "{text}"']
    import polib

    one = polib.POEntry(msgid="a", msgstr=text)
    if number is not None:
        one = polib.POEntry(msgid="a", msgid_plural="a", msgstr_plural={number: text})
    lines = str(one).rstrip("\n").split("\n")
    return lines[next(n for n, line in enumerate(lines) if line.startswith("msgstr")) :]


def _json(content: str, markup: Markup, options: FileOptions) -> TextFile:
    """The texts of values, without the names of objects, in their places in the file."""
    try:
        json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {str(error)[:200]}") from None
    spans = list(_json_texts(content))
    texts = [json.loads(content[slice(*span)], strict=False) for span in spans]
    for text in texts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError("not valid Unicode text: surrogates not allowed")
    ascii_only = content.isascii() and "\\u" in content

    def write(made: Sequence[str | None]) -> str:
        written, place = list[str](), 0
        for (start, end), text, own in zip(spans, made, texts, strict=True):
            same = content[start:end] if text is None or text == own else None
            written += [content[place:start], same or json.dumps(text, ensure_ascii=ascii_only)]
            place = end
        return "".join(written) + content[place:]

    lines = _line_numbers(content, [start for start, _ in spans])
    of_message = _of_program(markup)
    return TextFile(
        [_message(text, of_message, line) for text, line in zip(texts, lines, strict=True)], write
    )


def _json_texts(content: str) -> Iterator[tuple[int, int]]:
    """Where the texts of JSON are, without names, and without what names with ``@`` have.

    These are about other values, as ``@@locale`` and ``@title`` of ARB, or ``@type`` of JSON-LD.
    """
    depth, kept = 0, -1  # the depth at which a value is kept
    for found in _STRING.finditer(content):
        sign = found[0]
        if found[1] is None:
            depth += (sign in "{[") - (sign in "}]")
            if depth < kept or (depth == kept and sign == ","):
                kept = -1
        elif found[2]:
            if kept < 0 and sign.startswith('"@'):
                kept = depth
        elif kept < 0:
            yield found.span(1)


def _line_numbers(content: str, places: Sequence[int]) -> list[int]:
    """The lines of places, which are in order, from 1."""
    breaks = (content.count("\n", *span) for span in pairwise([0, *places]))
    return [number + 1 for number in accumulate(breaks)]
