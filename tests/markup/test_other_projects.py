"""What other projects test of their markup, in texts of our own and with results made by hand.

The expectations say what a reader of the page should see, not what the other project gives: see
docs/markup.md. Words are translated to capitals, in their order and backwards.
"""

from typing import Any

import pytest

from tests.markup.stubs import backwards, same, translate
from tfexport.errors import InputError
from tfexport.markup.document import Markup
from tfexport.markup.tokens import TagRules

HTML = Markup("html")
XML = Markup("xml")

# bergamot-translator: the unit tests of its HTML, which has to find elements again by alignment.
BERGAMOT = {
    "an element within a word": ("so wo<u>nder</u>ful", "SO WO<u>NDER</u>FUL",
                                 "WO<u>NDER</u>FUL SO"),
    "an element at the start of a word": ("<b>Ka</b>tze da", "<b>KA</b>TZE DA",
                                          "DA <b>KA</b>TZE"),
    "names of tags in capitals": ("<P><B>Red</B> cat<BR>Where?</p>",
                                  "<P><B>RED</B> CAT<BR>WHERE?</p>",
                                  "<P>CAT <B>RED</B><BR>WHERE?</p>"),
    "a place for a line break in a word": ("a rain<wbr>coat", "A RAINCOAT<wbr>", "RAINCOAT<wbr> A"),
    "the same in capitals": ("a rain<WBR>coat", "A RAINCOAT<WBR>", "RAINCOAT<WBR> A"),
    "entities in text and attributes": (
        '<p title="&quot;&apos;">one &lt;two&gt; &amp; three</p>',
        '<p title="&quot;&apos;">ONE &lt;TWO&gt; &amp; THREE</p>',
        '<p title="&quot;&apos;">THREE &amp; &lt;TWO&gt; ONE</p>'),
    "an element of two sentences": (
        "<p>We <em>saw it. They did</em> too.</p>\n", "<p>WE <em>SAW IT. THEY DID</em> TOO.</p>\n",
        None),
    "several sentences": (
        "<p>well <b>done!</b> Why is this <img> <b>not <u>in one sentence?</u></b> Is it?</p>",
        "<p>WELL <b>DONE!</b> WHY IS THIS <img> <b>NOT <u>IN ONE SENTENCE?</u></b> IS IT?</p>",
        None),
    "a line break between paragraphs": ("<p>Wait<br>here?</p>", "<p>WAIT<br>HERE?</p>",
                                        "<p>WAIT<br>HERE?</p>"),
    "nothing": ("", "", ""),
    "an empty element": ("<p></p>", "<p></p>", "<p></p>"),
    "an empty tag at the end": ("cats <br>", "CATS <br>", "CATS <br>"),
    "an empty pair at the end": ("cats<u></u>", "CATS<u></u>", "CATS<u></u>"),
    "an image between words without spaces": ("<p>red<img/>cat</p>", "<p>RED<img/> CAT</p>",
                                              "<p>CAT RED<img/></p>"),
    "an image between spaces": ("red <img> <b>cat</b>", "RED <img> <b>CAT</b>",
                                "<b>CAT</b> RED <img>"),
    "empty elements in one another": (
        '<p id="1">red <img id="2"><span id="3"><u id="4"></u><b id="5"></b>cat</span></p>',
        '<p id="1">RED <img id="2"><span id="3"><u id="4"></u><b id="5"></b>CAT</span></p>',
        None),
    "a script between words": ('red <script>if ("<b>" < 1) {}</script>cat',
                               'RED <script>if ("<b>" < 1) {}</script>CAT', None),
    "tags in a comment": ("red <!-- <b> one -->cat", "RED <!-- <b> one -->CAT",
                          "<!-- <b> one -->CAT RED"),
    "elements that are kept, in one another": ("a <var><var>x</var></var> b",
                                               "A <var><var>x</var></var> B",
                                               "B A <var><var>x</var></var>"),
    "an entity in an element that is kept": ("a <var>&lt;</var> b", "A <var>&lt;</var> B",
                                             "B <var>&lt;</var> A"),
    "links in one another's elements": (
        '<p>a <img> <b>b</b> <u>c d <a href="#">e</a></u></p>',
        '<p>A <img> <b>B</b> <u>C D <a href="#">E</a></u></p>',
        '<p><u><a href="#">E</a> D C</u> <b>B</b> A <img></p>'),
}  # fmt: skip

# LibreTranslate with argos-translate and translate-html: trees of tags whose text is translated.
ARGOS = {
    "one element": ("<p>Hello</p>", "<p>HELLO</p>", "<p>HELLO</p>"),
    "a name in a sentence": ("They flew to <a>Rome</a> in June.",
                             "THEY FLEW TO <a>ROME</a> IN JUNE.",
                             "JUNE. IN <a>ROME</a> TO FLEW THEY"),
    "an element before a full stop": ("I see a <b>tree</b>.", "I SEE A <b>TREE</b>.", None),
    "depth": ("<div><div><p><i>a b</i></p></div></div>", "<div><div><p><i>A B</i></p></div></div>",
              "<div><div><p><i>B A</i></p></div></div>"),
    "code, styles and programs": (
        "<style>p{a:b}</style><script>a</script><p>c <code>d</code></p><canvas>e</canvas>",
        "<style>p{a:b}</style><script>a</script><p>C <code>d</code></p><canvas>e</canvas>", None),
    "not to be translated": ('<p translate="no">a</p><p>b</p>', '<p translate="no">a</p><p>B</p>',
                             None),
    "no letters": ("<p>\U0001f600</p>", "<p>\U0001f600</p>", "<p>\U0001f600</p>"),
    "white space": ("<p>\n  a\n\t b\n</p>\n", "<p>\n  A B\n</p>\n", "<p>\n  B A\n</p>\n"),
}  # fmt: skip

# The translate toolkit: the units that it takes out of pages. Attributes are not translated here.
TOOLKIT = {
    "an image and a line break in a heading": ("<h3>One <img><br><img></h3>",
                                               "<h3>ONE <img><br><img></h3>", None),
    "a script that does not end": ("<p>a b</p><script>c </x>d<script></p>",
                                   "<p>A B</p><script>c </x>d<script></p>", None),
    "a paragraph in a heading": ("<h3><p>a b<p></h3>", "<h3><p>A B<p></h3>", "<h3><p>B A<p></h3>"),
    "rows without an end": (
        "<table><caption>a b</caption><tr><th>c<th>d e<tr><td>1.<td>f g</table>",
        "<table><caption>A B</caption><tr><th>C<th>D E<tr><td>1.<td>F G</table>",
        "<table><caption>B A</caption><tr><th>C<th>E D<tr><td>1.<td>G F</table>"),
    "a link around a whole heading": ('<h3><a href="x"><img src="y" /><b>a b</b></a></h3>',
                                      '<h3><a href="x"><img src="y" /><b>A B</b></a></h3>',
                                      '<h3><a href="x"><img src="y" /><b>B A</b></a></h3>'),
    "elements at both ends": ("<p><b>a</b> b <a>c</a></p>", "<p><b>A</b> B <a>C</a></p>",
                              "<p><a>C</a> B <b>A</b></p>"),
    "a caption of a figure": ('<figure> <img alt="a b"> <figcaption>1. - c d</figcaption></figure>',
                              '<figure> <img alt="a b"> <figcaption>1. - C D</figcaption></figure>',
                              None),
    "preformatted lines": ("<pre>\na b\nc d\n</pre>", "<pre>\nA B\nC D\n</pre>",
                           "<pre>\nB A\nD C\n</pre>"),
    "preformatted code": ("<pre><code>\na b\n</code></pre>", "<pre><code>\na b\n</code></pre>",
                          None),
    "buttons": ("<button><span>a</span> b</button><button>c</button>",
                "<button><span>A</span> B</button><button>C</button>",
                "<button>B <span>A</span></button><button>C</button>"),
    "a document with languages": (
        '<!DOCTYPE html>\n<html lang="en"><head><title>a</title></head><body><p lang="en">b c',
        '<!DOCTYPE html>\n<html lang="en"><head><title>A</title></head><body><p lang="en">B C',
        None),
}  # fmt: skip

# What pages have, and these projects do not test.
PAGES = {
    "the number of a note": ("a book<sup><a href='#1'>[1]</a></sup>, b",
                             "A BOOK<sup><a href='#1'>[1]</a></sup>, B",
                             "B BOOK<sup><a href='#1'>[1]</a></sup>, A"),
    "a formula": ("the H<sub>2</sub>O is", "THE H<sub>2</sub>O IS", "IS H<sub>2</sub>O THE"),
    "links that touch": ("<a href=x>a b</a><a href=y>c d</a>", "<a href=x>A B</a><a href=y>C D</a>",
                         "<a href=x>B A</a><a href=y>D C</a>"),
    "links that touch after a full stop": (
        "<a href=x>A b.</a><a href=y>C d?</a><a href=z>e</a>",
        "<a href=x>A B.</a><a href=y>C D?</a><a href=z>E</a>",
        "<a href=x>B. A</a><a href=y>D? C</a><a href=z>E</a>"),
    "elements that touch in a script without spaces": ("<b>東京</b><i>大学</i>",
                                                       "<b>東京</b><i>大学</i>", None),
    "marks around an element": ("“<i>a b</i>” (<b>c</b>)", "“<i>A B</i>” (<b>C</b>)", None),
}  # fmt: skip


@pytest.mark.parametrize(
    "cases", [BERGAMOT, ARGOS, TOOLKIT, PAGES], ids=["bergamot", "argos", "toolkit", "pages"]
)
def test_html(cases: dict[str, tuple[str, str, str | None]]) -> None:
    for name, (text, forwards, reversed_) in cases.items():
        assert translate(text, HTML) == forwards, name
        if reversed_ is not None:
            assert translate(text, HTML, backwards) == reversed_, name


def test_a_part_of_a_word_that_its_translation_lacks() -> None:
    def other(word: str) -> str:
        return "x"

    assert translate("a wo<u>nder</u>ful", HTML, same, other) == "x <u>x</u>"
    assert translate("a H<sub>2</sub>O b<sup>th</sup>", HTML, same, other) == (
        "x x<sub></sub> x<sup></sup>"
    )
    assert translate("a <b>b</b>x<u>y</u>", HTML, same, other) == "x <b>x</b><u></u>"


def rules(**names: Any) -> Markup:
    sets: dict[str, Any] = {
        key: frozenset(value.split()) for key, value in names.items() if key != "outline"
    }
    return Markup("xml", rules=TagRules(**sets, outline=names.get("outline", True)))


DOCUMENT = "<d>\n <meta><t>a b</t></meta>\n <par>c d. E f.</par>\n <par>g h.</par>\n</d>"
DEEPL = {
    "marked words": (XML, "Push <i>Go on</i> to start", "PUSH <i>GO ON</i> TO START",
                     "START TO <i>ON GO</i> PUSH"),
    "tags without content": (XML, "a <x/> b<y/> c", "A <x/> B<y/> C", "C B<y/> A <x/>"),
    "elements that are ignored": (rules(ignored="x"), "Open <x>My Page</x> now",
                                  "OPEN <x>My Page</x> NOW", "NOW OPEN <x>My Page</x>"),
    "an outline that is found": (XML, DOCUMENT, DOCUMENT.replace("a b", "A B").replace(
        "c d. E f.", "C D. E F.").replace("g h", "G H"), None),
    "an outline by names": (rules(splitting="par t", outline=False), DOCUMENT, DOCUMENT.replace(
        "a b", "A B").replace("c d. E f.", "C D. E F.").replace("g h", "G H"), None),
    "elements that never split": (
        rules(inline="par"), "<d><par>a b</par><par> c d</par></d>",
        "<d><par>A B</par> <par>C D</par></d>", "<d><par>D C</par> <par>B A</par></d>"),
    "elements of a sentence that split": (rules(splitting="i"), "a b <i>c d</i> e f",
                                          "A B <i>C D</i> E F", "B A <i>D C</i> F E"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEPL)
def test_xml_as_deepl_describes_it(name: str) -> None:
    markup, text, forwards, reversed_ = DEEPL[name]
    assert translate(text, markup) == forwards
    if reversed_ is not None:
        assert translate(text, markup, backwards) == reversed_


def test_xml_that_is_not_well_formed_is_refused() -> None:
    with pytest.raises(InputError, match="not well-formed XML"):
        translate("Push <i>Go on to start", XML)
