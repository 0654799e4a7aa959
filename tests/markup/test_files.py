"""Files there and back: only their texts change."""

import json

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


def test_long_subtitles_are_divided_outside_of_tags() -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\n<font color='x y z'>one</font> two\nthree four five\n"
    lines = there_and_back(cue, "srt").split("\n")[2:4]
    assert " ".join(lines) == "<font color='x y z'>ONE</font> TWO THREE FOUR FIVE"


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


def test_a_subtitle_that_its_own_file_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="not SubRip"):
        read_file("one\ntwo", "srt", Markup())
