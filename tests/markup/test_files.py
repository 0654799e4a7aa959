"""Files there and back: only their texts change."""

import json
from typing import Any

import pytest

from tests.markup.stubs import translate
from tfexport.errors import InputError
from tfexport.markup.document import Markup
from tfexport.markup.files import FileFormat, read_file

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>one two</i> three
four five

2
00:00:03,000 --> 00:00:04,000 X1:40
- One?
- Two {b}.

4
00:00:05,000 --> 00:00:06,000
♪ …
"""
SRT_MADE = """1
00:00:01,000 --> 00:00:02,500
<i>ONE TWO</i> THREE
FOUR FIVE

2
00:00:03,000 --> 00:00:04,000 X1:40
- ONE?
- TWO {b}.

4
00:00:05,000 --> 00:00:06,000
♪ …
"""
VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE one two

intro
00:01.000 --> 00:02.000 align:start position:10%
<v Tom>one <b>two</b> &amp; three</v>

00:00:02.000 --> 00:00:03.000
one two
"""
PO = """# Translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=n;\\n"

#. A note
#: a.c:1
msgctxt "menu"
msgid "one %s & two\\n"
msgstr ""

msgid "%d <b>day</b>"
msgid_plural "%d <b>days</b>"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "done"
msgstr "Fertig"

#~ msgid "old"
#~ msgstr ""
"""
# What catalogs of programs have, in their own order, spacing and wrapping.
CATALOG = """# A title.
# Copyright (C) 2024
#
#, fuzzy
msgid ""
msgstr ""
"Language: en\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#. Shown in the title
#: src/main.c:12 src/main.c:40
#, c-format
msgid "File %s was not found, and this line is longer than most tools would write it today."
msgstr ""

#, python-format
msgctxt "menu"
msgid "Hello %(name)s!"
msgstr ""
""

#, fuzzy, c-format
#| msgid "This is old."
msgid "This is new."
msgstr "Das ist alt."

#, c-format
msgid "%d book"
msgid_plural "%d books"
msgstr[0] ""
msgstr[1] ""

msgid ""
"One\\n"
"  two \\"three\\"\\n"
msgstr ""


msgid "Yes"
msgstr "Ja"

#~| msgid "older"
#~ msgid "old"
#~ msgstr ""
"""
CATALOG_MADE = (
    ('today."\nmsgstr ""', 'today."\nmsgstr ""\n"FILE %s WAS NOT FOUND, AND THIS LINE IS LONGER '
     'THAN MOST TOOLS WOULD WRITE "\n"IT TODAY."'),
    ('msgstr ""\n""', 'msgstr "HELLO %(name)s!"'),
    ('msgstr[0] ""', 'msgstr[0] "%d BOOK"'),
    ('msgstr[1] ""', 'msgstr[1] "%d BOOKS"'),
    ('\\"\\n"\nmsgstr ""', '\\"\\n"\nmsgstr ""\n"ONE\\n"\n"  TWO \\"THREE\\"\\n"'),
)  # fmt: skip
# What subtitles of films have: gaps in the numbers, positions, sounds, speakers.
FILM = """1
00:00:01,000 --> 00:00:02,500  X1:40 X2:600 Y1:20 Y2:50
{\\an8}One two
three.

3
00:00:03,000 --> 00:00:04,000
<font color="#ffff00">- One,
two.</font>
- Three?

4
00:00:05,000 --> 00:00:06,000

5
00:00:07,000 --> 00:00:08,000
[one two]
Three!
- Four

6
00:00:09.000 --> 00:00:10.000
♪ <i>one two
three four</i> ♪"""
FILM_MADE = """1
00:00:01,000 --> 00:00:02,500  X1:40 X2:600 Y1:20 Y2:50
{\\an8}ONE TWO
THREE.

3
00:00:03,000 --> 00:00:04,000
<font color="#ffff00">- ONE,
TWO.</font>
- THREE?

4
00:00:05,000 --> 00:00:06,000

5
00:00:07,000 --> 00:00:08,000
[ONE TWO]
THREE!
- FOUR

6
00:00:09.000 --> 00:00:10.000
♪ <i>ONE TWO
THREE FOUR</i> ♪"""
SPOKEN = """1
00:00:01,000 --> 00:00:02,000
TOM: Yes, one.
ANNA (quietly): Two
three.

2
00:00:02,000 --> 00:00:03,000
[laughs] Four. [music]

3
00:00:03,000 --> 00:00:04,000
- <i>TOM 2:</i> [laughs]
- Tom: five: six
- <i>[a door]</i>

4
00:00:04,000 --> 00:00:05,000
{\\an8}(a bird)
TOM:
Seven
eight [nine] ten.

5
00:00:05,000 --> 00:00:06,000
>> Tom: Note: it is at 10:30 (or so).
>> Once: yes.
"""
SPEECHES = [
    "Yes, one.",
    "Two\nthree.",
    "laughs",
    "Four.",
    "music",
    "laughs",
    "five: six",
    "a door",
    "a bird",
    "",
    "Seven\neight [nine] ten.",
    "Note: it is at 10:30 (or so).",
    "Once: yes.",
]
JSON = """{
  "one": "one {x} & two",  "list": ["a <b>b</b> &amp; c", 3, null, "…"],
    "more": {"key": "\\"a\\" \\n b", "key": ""}
}
"""


def there_and_back(content: str, kind: FileFormat) -> str:
    file = read_file(content, kind, Markup())
    return file.write([translate(text.text, text.markup) for text in file.texts])


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles(newline: str) -> None:
    made = there_and_back(SRT.replace("\n", newline), "srt")
    assert made == SRT_MADE.replace("\n", newline)
    found = there_and_back(VTT.replace("\n", newline), "vtt")
    parts = ("<v Tom>one <b>two</b> &amp; three", "3.000\none two")
    made = VTT
    for part, shown in zip(
        parts, ("<v Tom>ONE <b>TWO</b> &amp; THREE", "3.000\nONE TWO"), strict=True
    ):
        made = made.replace(part, shown)
    assert found == made.replace("\n", newline)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles_of_films(newline: str) -> None:
    assert there_and_back(FILM.replace("\n", newline), "srt") == FILM_MADE.replace("\n", newline)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_catalogs_of_programs(newline: str) -> None:
    made = CATALOG
    for own, translation in CATALOG_MADE:
        assert made.count(own) == 1
        made = made.replace(own, translation)
    assert there_and_back(CATALOG.replace("\n", newline), "po") == made.replace("\n", newline)
    assert there_and_back(made, "po") == made


def test_long_subtitles_are_divided_outside_of_tags() -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\n<font color='x y z'>one</font> two\nthree four five\n"
    lines = there_and_back(cue, "srt").split("\n")[2:4]
    assert " ".join(lines) == "<font color='x y z'>ONE</font> TWO THREE FOUR FIVE"


def test_lines_of_a_subtitle_stay_where_sentences_end() -> None:
    head = "1\r\n00:00:01,000 --> 00:00:02,000\r\n"
    cue = f"{head}<i>One two three four, five.</i>\r\nSix?\r\n\r\n\r\n"  # two empty lines
    assert there_and_back(cue, "srt") == (
        f"{head}<i>ONE TWO THREE FOUR, FIVE.</i>\r\nSIX?\r\n\r\n\r\n"
    )


def test_times_within_a_subtitle_are_kept() -> None:
    cue = "WEBVTT\n\n00:01.000 --> 00:03.000\none <00:01.500>two <00:00:02.000><c>three</c>\n"
    shown = "ONE <00:01.500>TWO <00:00:02.000><c>THREE</c>"
    assert there_and_back(cue, "vtt") == cue.replace(
        "one <00:01.500>two <00:00:02.000><c>three</c>", shown
    )


def test_numbered_tags_and_lines_of_messages() -> None:
    text = "one <1>two</1> <0/> three"
    assert there_and_back(json.dumps([text]), "json-strings") == ('["ONE <1>TWO</1> <0/> THREE"]')
    text = "<b>One.</b>\nTwo &amp;\nthree:\n\n- four"  # a line break within a sentence is a space
    assert json.loads(there_and_back(json.dumps([text]), "json-strings")) == [
        "<b>ONE.</b>\nTWO &amp; THREE:\n\n- FOUR"
    ]


def test_catalogs_of_messages() -> None:
    made = PO.replace('two\\n"\nmsgstr ""', 'two\\n"\nmsgstr "ONE %s & TWO\\n"')
    for number, text in enumerate(("%d <b>DAY</b>", "%d <b>DAYS</b>", "%d <b>DAYS</b>")):
        made = made.replace(f'msgstr[{number}] ""', f'msgstr[{number}] "{text}"')
    assert there_and_back(PO, "po") == made
    assert there_and_back(made, "po") == made  # nothing is left to translate
    assert there_and_back('msgid "a"\nmsgstr ""\n', "po").endswith('msgid "a"\nmsgstr "A"\n')


def test_texts_of_json() -> None:
    made = there_and_back(JSON, "json-strings")
    assert made == (
        JSON.replace("one {x} & two", "ONE {x} & TWO")
        .replace("a <b>b</b> &amp; c", "A <b>B</b> &amp; C")
        .replace('\\"a\\" \\n b', '\\"A\\" \\n B')
    )
    assert json.loads(there_and_back('["\\u00e9 a"]', "json-strings")) == ["É A"]
    assert there_and_back('["\\u00e9 a"]', "json-strings").isascii()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("xml", "<?xml version='1.0' encoding='ISO-8859-1'?><a>%s</a>"),
        ("html", '<META http-equiv=Content-Type content="text/html; charset=windows-1252"><p>%s'),
        ("html", "<meta charset=latin1><p>%s"),
        ("po", 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=ASCII\\n"\n\n'
         'msgid "%s"\nmsgstr ""\n'),
    ],
)  # fmt: skip
def test_another_encoding_is_refused_if_it_makes_a_difference(kind: Any, content: str) -> None:
    assert "ONE" in there_and_back(content % "one", kind)
    with pytest.raises(InputError, match="it says that its encoding is"):
        read_file(content % "\xe9", kind, Markup())
    with pytest.raises(InputError, match="it says that its encoding is"):
        read_file(content % "one", kind, Markup()).write(
            ["\xe9", "\xe9"] if kind == "po" else [content % "\xe9"]
        )
    utf = content.replace("ISO-8859-1", "utf8").replace("windows-1252", "UTF-8")
    utf = utf.replace("latin1", "Utf-8").replace("ASCII", "UTF-8")
    assert "\xc9" in there_and_back(utf % "\xe9", kind)


def test_a_subtitle_that_its_own_file_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="not SubRip"):
        read_file("one\ntwo", "srt", Markup())
    with pytest.raises(InputError, match="its first line does not begin with WEBVTT"):
        read_file(SRT, "vtt", Markup())


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_labels_of_speakers_and_what_is_heard(newline: str) -> None:
    """Fails if a model sees a label, or what is heard as a part of what is said."""
    content = SPOKEN.replace("\n", newline)
    file = read_file(content, "srt", Markup())
    assert [text.text.strip() for text in file.texts] == SPEECHES
    assert [text.line for text in file.texts] == [3, 4, 9, 9, 9, 13, 14, 15, 19, 20, 21, 26, 27]
    assert file.write([text.text for text in file.texts]) == content
    assert file.write([None] * len(file.texts)) == content
    made = there_and_back(content, "srt")
    for label in (
        "TOM: YES",
        "ANNA (quietly): TWO",
        "[LAUGHS] FOUR. [MUSIC]",
        "<i>TOM 2:</i> [LAUGHS]",
        "- Tom: FIVE: SIX",
        "<i>[A DOOR]</i>",
        "{\\an8}(A BIRD)",
        ">> Tom: NOTE: IT",
        ">> ONCE: YES",
    ):
        assert label in made


def test_a_speaker_may_follow_a_sound() -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\n"
    said = "[a door] TOM: one.\n- [two] ANNA (aside): three\n[four] five"
    made = there_and_back(f"{cue}{said}\n\n2\n{cue[2:]}[a] Eve: b\nEve: c\n", "srt")
    assert "[A DOOR] TOM: ONE.\n- [TWO] ANNA (aside): THREE\n[FOUR] FIVE\n" in made
    assert "[A] Eve: B\nEve: C\n" in made


def test_what_is_about_other_values_of_json_stays() -> None:
    content = (
        '{"@@locale": "en", "a": "one", "@a": {"description": "two", "x": ["three", {"y": "z"}]},\n'
        ' "b": {"@type": "Thing", "c": "four"}, "@b": [], "d": ["five"], "@d": "six", "e": "7"}'
    )
    made = there_and_back(content, "json-strings")
    for word in ("one", "four", "five"):
        content = content.replace(f'"{word}"', f'"{word.upper()}"')
    assert made == content


XLIFF = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file><body>
  <trans-unit id="a">
    <source>one <g id="1">two</g> &amp; <ph id="2">{x}</ph></source>
  </trans-unit>
  <trans-unit id="b"><source>three</source><target/></trans-unit>
  <trans-unit id="c"><source>four</source><target state="new">four</target></trans-unit>
  <trans-unit id="d"><source>five</source><target state="final">fünf</target>
    <alt-trans><source>six</source><target/></alt-trans></trans-unit>
  <trans-unit id="e" translate="no"><source>seven</source><target/></trans-unit>
  <note>eight</note>
</body></file></xliff>
"""
XLIFF_MADE = (
    ("</source>\n  </trans", '</source>\n    <target>ONE <g id="1">TWO</g> &amp; '
     '<ph id="2">{x}</ph></target>\n  </trans'),
    ("<source>three</source><target/>", "<source>three</source><target>THREE</target>"),
    ('"new">four', '"new">FOUR'),
)  # fmt: skip
TS = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de_DE">
<context>
    <name>Window</name>
    <message>
        <location filename="a.cpp" line="1"/>
        <source>one %1 &lt;b&gt;two&lt;/b&gt;</source>
        <translation type="unfinished"></translation>
    </message>
    <message><source>&amp;Open</source><comment>verb</comment><translation/></message>
    <message><source>Done</source><translation>Fertig</translation></message>
    <message><source>Old</source><translation type="vanished"></translation></message>
    <message numerus="yes"><source>%n file(s)</source><translation type="unfinished">
        <numerusform></numerusform><numerusform></numerusform></translation></message>
</context>
</TS>
"""
TS_MADE = (
    ('"unfinished"></translation>\n    </message>\n    <message><source>&amp;Open',
     '"unfinished">ONE %1 &lt;b&gt;TWO&lt;/b&gt;</translation>\n    </message>\n'
     "    <message><source>&amp;Open"),
    ("<translation/>", '<translation type="unfinished">&amp;OPEN</translation>'),
    ("<numerusform></numerusform><numerusform></numerusform>",
     "<numerusform>%n FILE(S)</numerusform><numerusform>%n FILE(S)</numerusform>"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "made"), [(XLIFF, XLIFF_MADE), (TS, TS_MADE)], ids=["xliff", "ts"]
)
def test_translations_are_written_beside_their_texts(
    content: str, made: tuple[tuple[str, str], ...]
) -> None:
    """Fails if a source is overwritten, or a translation that is there."""
    wanted = content
    for old, new in made:
        assert old in wanted
        wanted = wanted.replace(old, new, 1)
    assert there_and_back(content, "xml") == wanted
    file = read_file(content, "xml", Markup())
    assert file.write([None] * len(file.texts)) == content
    assert file.kept == []
