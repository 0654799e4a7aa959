"""XLIFF and Qt's TS there and back: what is written beside each text, and what is left."""

import time

import pytest

from tests.markup.stubs import backwards, translate
from tfexport.errors import InputError
from tfexport.markup.bilingual import find_units, kind_of
from tfexport.markup.document import Markup
from tfexport.markup.files import read_file
from tfexport.markup.xml_reader import is_android

HEAD = '<?xml version="1.0"?>\n'


def xliff(inside: str) -> str:
    """A file of XLIFF 1.2 with one unit."""
    return f'<xliff version="1.2"><file><body><trans-unit id="a">{inside}</trans-unit></body></file></xliff>'  # noqa: E501


def segment(inside: str, attributes: str = "") -> str:
    """A file of XLIFF 2 with one segment."""
    return f'<xliff version="2.0"><file><unit id="a"><segment{attributes}>{inside}</segment></unit></file></xliff>'  # noqa: E501


def message(inside: str, attributes: str = "", language: str = ' language="de"') -> str:
    """A file of Qt Linguist with one message."""
    return f"<TS{language}><context><message{attributes}>{inside}</message></context></TS>"


def there_and_back(content: str) -> str:
    file = read_file(content, "xml", Markup())
    return file.write([translate(text.text, text.markup) for text in file.texts])


CODES = {
    "bpt": ('<bpt id="1">&lt;b></bpt>', '<ept id="1">&lt;/b></ept>'),
    "bpt of another id": ('<bpt id="1" rid="3">[</bpt>', '<ept id="2" rid="3">]</ept>'),
    "bx": ('<bx id="1"/>', '<ex id="1"/>'),
    "angular": ('<x equiv-text="&lt;a>" id="START_LINK_1"/>', '<x id="CLOSE_LINK"/>'),
    "sc": ('<sc id="1"/>', '<ec startRef="1"/>'),
    "sm": ('<sm id="1"/>', '<em startRef="1"/>'),
}


@pytest.mark.parametrize("name", CODES)
def test_the_codes_at_either_end_stay_around_their_words(name: str) -> None:
    """Fails if a language with another order of words puts an end before its beginning."""
    begin, end = CODES[name]
    file = read_file(xliff(f"<source>one {begin}two three{end} four</source>"), "xml", Markup())
    translation = [translate(text.text, text.markup, backwards) for text in file.texts]
    assert translation == [f"FOUR {begin}THREE TWO{end} ONE"]


def test_a_code_for_a_value_is_a_placeholder() -> None:
    values = {
        '<x id="1" equiv-text="{{ a &amp;&amp; b }}"/>': "one {{ a && b }}, two",
        '<ph id="0" equiv="0" disp="{a}"/>': "one {a}, two",
        '<x id="1" equiv-text="&lt;img/>"/>': "one , two",
        '<x id="1" equiv-text="&lt;br/>"/>': "one\n, two",  # a paragraph a line
        '<x id="1" ctype="lb" equiv-text="n"/>': "one\n, two",
        '<ph id="1" type="fmt" subType="xlf:lb" disp="n"/>': "one\n, two",
    }
    for code, seen in values.items():
        text = read_file(xliff(f"<source>one {code}, two</source>"), "xml", Markup()).texts[0]
        assert [*map(str.strip, text.markup.words(text.text).split("\n"))] == seen.split("\n")


@pytest.mark.parametrize(
    ("content", "translation"),
    [
        (f'<!DOCTYPE TS []>\n{message("<source>one</source><translation/>")}',
         '<source>one</source><translation type="unfinished">ONE</translation>'),
        (f'{HEAD}<x:xliff><x:trans-unit><x:source>one <x:g id="1">two</x:g></x:source>'
         "</x:trans-unit></x:xliff>",
         '</x:source><x:target>ONE <x:g id="1">TWO</x:g></x:target></x:trans-unit>'),
        (xliff("<source><![CDATA[one <b>two</b>]]></source><target/>"),
         "<target><![CDATA[ONE <b>TWO</b>]]></target>"),
        (xliff("<source>one &lt;b&gt;two&lt;/b&gt; &#252;</source>"),
         "<target>ONE &lt;b&gt;TWO&lt;/b&gt; Ü</target>"),
        (xliff("<source>one\n   two</source>"), "<target>ONE TWO</target>"),
        (xliff("<source>one\n   two</source>").replace("<file", '<file xml:space="preserve"'),
         "<target>ONE\n   TWO</target>"),
        (xliff('<source>one\n <g id="1">two</g></source>').replace(
            "<trans-unit", '<trans-unit xml:space="preserve"'),
         '<target>ONE\n <g id="1">TWO</g></target>'),
        (xliff('<source>one <mrk mtype="protected">two</mrk></source>'),
         '<target>ONE <mrk mtype="protected">two</mrk></target>'),
        (xliff('<source>one two</source><seg-source><g id="1"><mrk mtype="seg" mid="0">one</mrk> '
               '<mrk mtype="seg" mid="1">two</mrk></g></seg-source><target><g id="1">'
               '<mrk mtype="seg" mid="0"/> <mrk mtype="seg" mid="1"/></g></target>'),
         '<target><g id="1"><mrk mtype="seg" mid="0">ONE</mrk> '
         '<mrk mtype="seg" mid="1">TWO</mrk></g></target>'),
        (xliff('<source>one</source><seg-source><mrk mtype="seg" mid="0">one</mrk></seg-source>'),
         '</seg-source><target><mrk mtype="seg" mid="0">ONE</mrk></target>'),
        (segment("<source>one</source><target>one</target>", ' state="initial"'),
         "<target>ONE</target>"),
        (message("<source>one</source><comment>two</comment>"),
         '<comment>two</comment><translation type="unfinished">ONE</translation>'),
        (message("<source>%n one, %L1</source><translation type='unfinished'><numerusform/>\n"
                 "<numerusform></numerusform></translation>", ' numerus="yes"'),
         "<translation type='unfinished'><numerusform>%n ONE, %L1</numerusform>\n"
         "<numerusform>%n ONE, %L1</numerusform></translation>"),
        (message("<source>one (%nx) &amp; two</source><translation><numerusform/></translation>",
                 ' numerus="yes"'),
         '<translation type="unfinished"><numerusform>ONE (%nx) &amp; TWO</numerusform>'),
    ],
)  # fmt: skip
def test_a_translation_is_written_beside_its_text(content: str, translation: str) -> None:
    assert translation in there_and_back(content)
    assert read_file(content, "xml", Markup()).kept == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (xliff("<source>one</source><target/>").replace("id=", 'approved="yes" id='), "as done"),
        (xliff('<source>one</source><target state="final"/>'), "as done"),
        (segment("<source>one</source>", ' state="translated"'), "as done"),
        (xliff('<source>one</source><target><x id="1"/></target>'), "and no text"),
        (xliff('<source>{n, plural, one {a} other {<x id="1"/> b}}</source>'), "message of ICU"),
        (xliff('<source>one <g id="1">&lt;b&gt;two&lt;/b&gt;</g></source>'), "between them"),
        (xliff('<source>one <g id="1"><![CDATA[two]]></g></source>'), "between them"),
        (xliff('<source>one <ph id="1">a="<sub>two</sub>"</ph></source>'), "not read here"),
        (xliff('<source>one</source><seg-source><mrk mtype="seg" mid="0">one <mrk mtype="x">two'
               "</mrk></mrk></seg-source>"), "not read here"),
        (segment('<source>one <sm id="1" translate="no"/>two<em startRef="1"/></source>'),
         "not read here"),
        (segment("<source>one</source>").replace("<unit", '<unit translate="yes"').replace(
            "<file", '<file translate="no"'), "within translate='no'"),
        (xliff("<source>one <note>two</note></source>"), "not read here"),
        (xliff("<source>one</source><target><trans-unit><source>two</source><target>three</target>"
               "</trans-unit></target>"), "within it"),
        (message("<source>one<message><source>two</source><translation>three</translation>"
                 "</message></source>"), "within it"),
        (message('<source>one <byte value="x7"/></source><translation/>'), "not read here"),
        (message("<source>one</source><translation><lengthvariant/></translation>"),
         "and no text"),
        (message("<source>one</source><translation><numerusform/><numerusform/></translation>",
                 ' numerus="yes"'), "show its number"),
        (message("<source>%n one</source><translation/>", ' numerus="yes"'), "forms of its plural"),
        (message("<source>%n one</source><translation><numerusform/></translation>",
                 ' numerus="yes"', ""), "number of forms"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_left_and_named(content: str, reason: str) -> None:
    assert there_and_back(content) == content
    file = read_file(f"\n\n{content}", "xml", Markup())
    assert [(part.line, reason in part.reason) for part in file.kept] == [(3, True)]


@pytest.mark.parametrize(
    "content",
    [
        xliff('<source>{name} <x id="1"/> 12</source>'),
        xliff("<source> \n </source><target/>"),
        xliff("<source>one</source><target>two</target>"),
        xliff('<source>one</source><target state="new">two</target>'),
        xliff('<source>one</source><target note="state=\'new\'">one</target>'),
        segment('<source>one</source><target state="initial">one</target>', ' state="final"'),
        message("<source>%1</source><translation type='unfinished'/>"),
        message("<source>one</source><translation type='obsolete'/>"),
        message("<source>%n one</source><translation type='unfinished'><numerusform>two"
                "</numerusform><numerusform/></translation>", ' numerus="yes"'),
        message("<source>%n one</source><translation type='vanished'><numerusform/></translation>",
                ' numerus="yes"'),
    ],
)  # fmt: skip
def test_what_has_a_translation_or_no_words_stays(content: str) -> None:
    assert there_and_back(content) == content
    assert read_file(content, "xml", Markup()).kept == []


def test_a_target_has_the_line_breaks_of_its_file() -> None:
    content = xliff("\r\n  <source>one</source>\r\n").replace("<file", '<file xml:space="preserve"')
    assert "</source>\r\n  <target>ONE</target>\r\n" in there_and_back(content)


def test_a_document_with_many_comments_is_read_at_once() -> None:
    """Fails if the time to find the kind of a document grows with the power of its comments."""
    content = "<!-- a -->\n" * 40 + "<a/>"
    begin = time.perf_counter()
    assert (kind_of(content), is_android(content)) == (None, False)
    assert time.perf_counter() - begin < 2


def test_lines_are_those_of_the_file() -> None:
    content = "".join(f"\n{message(f'<source>a{n}</source>')}" for n in range(3))
    units, _ = find_units(f"<TS>{content}</TS>", "ts", Markup())
    assert [unit.line for unit in units] == [2, 3, 4]


def test_an_entity_is_refused_with_its_line() -> None:
    content = f'{HEAD}<!DOCTYPE xliff [\n<!ENTITY a "b">]>\n{xliff("<source>&a;</source>")}'
    with pytest.raises(InputError, match="line 3: it declares the entity 'a'"):
        read_file(content, "xml", Markup())


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("@string/one", "@string/one"), ("?android:attr/one", "?android:attr/one"),
        (r"\@string one", r"\@STRING ONE"), (r"\u00e4h one", "ÄH ONE"),
        (r"\u0020one\u00A0", r"\u0020ONE\u00A0"), (r"one\ttwo", r"ONE\tTWO"),
    ],
)  # fmt: skip
def test_escapes_and_references_of_androids_resources(text: str, translation: str) -> None:
    content = f'<resources><string name="a">{text}</string></resources>'
    assert there_and_back(content) == content.replace(text, translation)
