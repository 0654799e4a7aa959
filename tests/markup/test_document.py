"""Texts with markup: what stays, where tags go, what a model reads."""

import random
import re
from typing import Any

import pytest

from tests.markup.stubs import backwards, same, shuffled, translate
from tests.support.combinations import few_of
from tfexport.errors import ConfigError, InputError
from tfexport.markup.document import Markup
from tfexport.markup.html_reader import read_html
from tfexport.markup.placeholders import Placeholders
from tfexport.markup.segments import make_segment
from tfexport.markup.tokens import Run, TagRules, Token, escape
from tfexport.runtime.text.sentences import split_text

HTML = Markup("html")
XML = Markup("xml")
# Sources, with the translations of all words in their order and backwards.
CASES = {
    "attributes": ("a <a href='x?a=1&amp;b'>b c</a> d", "A <a href='x?a=1&amp;b'>B C</a> D",
                   "D <a href='x?a=1&amp;b'>C B</a> A"),
    "nested": ("a <b>b <i>c</i></b> d", "A <b>B <i>C</i></b> D", "D <b><i>C</i> B</b> A"),
    "entities": ("a &lt; &eacute; <b>&amp;b</b>", "A &lt; É <b>&amp;B</b>",
                 "<b>&amp;B</b> É &lt; A"),
    "around all words": ("<p> <b> a b </b>\n</p>", "<p> <b> A B </b>\n</p>",
                         "<p> <b> B A </b>\n</p>"),
    "sentences": ("<b>One two.</b> Three <i>four. Five</i> six",
                  "<b>ONE TWO.</b> THREE <i>FOUR. FIVE</i> SIX",
                  "<b>TWO. ONE</b> <i>FOUR. THREE SIX FIVE</i>"),
    "without words": ("a <img src=x> b<br>c <b></b> d", "A <img src=x> B<br>C <b></b>D",
                      "B A <img src=x><br>D C<b></b>"),
    "a comment": ("a <!-- b --> c", "A <!-- b -->C", "C A<!-- b -->"),
    "code": ("a <code>b&lt;</code> c", "A <code>b&lt;</code> C", "C A <code>b&lt;</code>"),
    "not translated": ("a <i translate='no'>b c</i> <i class='x notranslate'>d</i>",
                       "A <i translate='no'>b c</i> <i class='x notranslate'>d</i>", None),
    "a script": ("a <script>if (a<b) '</p>'</script> b", "A <script>if (a<b) '</p>'</script>B",
                 None),
    "blocks": ("<td>a<td>b <ul><li>c<li>d</ul>e", "<td>A<td>B <ul><li>C<li>D</ul>E",
               "<td>A<td>B <ul><li>C<li>D</ul>E"),
    "preformatted": ("<pre>a  b\n c <b>d\n</b></pre>", "<pre>A B\n C <b>D\n</b></pre>", None),
    "tags that do not nest": ("<b>a b<i>c</b>d</i> e", "<b>A B<i>C</b>D</i> E",
                              "<b>B A<i>C</b>D</i> E"),
    "tags without an end": ("a <b>b <p>c</p> d", "A <b>B <p>C</p> D", "A <b>B <p>C</p> D"),
    "a tag that is cut": ("a b<i", "A B<i", "B A<i"),
    "white space": ("a\r\n  <b>b\tc</b>\r\n </p>", "A <b>B C</b>\r\n </p>",
                    "<b>C B</b> A\r\n </p>"),
    "without scripts": ("<noscript>a <b>b</b><noscript>c</noscript>d",
                        "<noscript>A <b>B</b><noscript>C</noscript>D",
                        "<noscript><b>B</b> A<noscript>C</noscript>D"),
    "a document": ("<!DOCTYPE html><title>a &amp; b</title><body x>c",
                   "<!DOCTYPE html><title>A &amp; B</title><body x>C", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_markup_is_around_the_words_that_it_was_around(name: str) -> None:
    text, forwards, reversed_ = CASES[name]
    assert translate(text, HTML) == forwards
    if reversed_ is not None:
        assert translate(text, HTML, backwards) == reversed_


@pytest.mark.parametrize("text", ["", " ", "<", "</>", "&", "<p>", "1 < 2", "<b>…</b> 🙂", "<b"])
def test_what_has_no_words_stays(text: str) -> None:
    assert translate(text, HTML) == text


INLINE = ("b", "i", "span class='a&amp;b'", 'a href="x?a=1&amp;b=&quot;2&quot;" title=x')
BLOCKS = ("p", "div", "li", "td", "h1 id=a")
SPACES = (" ", "  ", "\n", "\t ")


def drawn(rng: random.Random) -> tuple[str, str]:
    """HTML of words that occur once each, and the same with its blocks only."""
    count = iter(range(10_000))
    html, plain = list[str](), list[str]()

    def words(level: int) -> None:
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            if kind < 0.3 and level < 4:
                tag = rng.choice(INLINE)
                html.append(f"<{tag}>" + rng.choice(("", "", " ")))
                words(level + 1)
                html.append(rng.choice(("", "", " ")) + f"</{tag.split()[0]}>")
            elif kind < 0.4:
                html.append(rng.choice(("<img src='x'>", "<!-- x -->", "<wbr>", "<b></b>")))
            else:
                word = f"w{next(count)}" + rng.choice(("", "", "&amp;", "é"))
                space = rng.choice(SPACES)
                html.append(space + word + space)
                plain.append(f" {word} ")

    for _ in range(rng.randint(1, 3)):
        tag = rng.choice(BLOCKS)
        for made in (html, plain):
            made.append(f"<{tag}>")
        words(0)
        for made in (html, plain):
            made.append(f"</{tag.split()[0]}>\n")
    return "".join(html), "".join(plain)


def letters(html: str) -> str:
    """The text without white space."""
    import turbohtml

    found = turbohtml.parse_fragment(html)
    return "".join("".join(node.text for node in found).split())


@pytest.mark.parametrize("seed", few_of(range(20), 0, 7))
@pytest.mark.parametrize("order", [same, backwards, shuffled])
def test_drawn_html_keeps_its_structure_and_its_text(seed: int, order: Any) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        html, plain = drawn(rng)
        made = translate(html, HTML, order)
        assert tags(made) == tags(html), html
        assert letters(made) == letters(translate(plain, HTML, order)), html
        if order is not shuffled:  # an element's words stay together
            assert contents(made) == contents(html), html


def tags(html: str) -> list[str]:
    """All tags and comments, whatever their order, with the tags around each."""
    found, around = list[str](), list[str]()
    for token in tokens_of(html):
        if token.startswith("</"):
            around.pop()
        elif token.startswith("<"):
            found.append("/".join([*around, token]))
            if not token.startswith(("<!", "<img", "<wbr")):
                around.append(token)
    assert not around
    return sorted(found)


def contents(html: str) -> list[tuple[str, list[str]]]:
    """The words in each element."""
    found, around = list[tuple[str, list[str]]](), list[tuple[str, list[str]]]()
    for token in tokens_of(html):
        if token.startswith("</"):
            found.append(around.pop())
        elif token.startswith("<"):
            if not token.startswith(("<!", "<img", "<wbr")):
                around.append((token, []))
        else:
            for _, words in around:
                words += re.findall(r"w\d+", token.lower())
    return sorted((tag, sorted(words)) for tag, words in found)


def tokens_of(html: str) -> list[str]:
    return [part for part in re.split(r"(<!--.*?-->|<[^<>]*>)", html) if part]


def test_placeholders_that_were_left_out_are_no_part_of_a_word() -> None:
    def word(text: str) -> str:  # a model that knows neither them nor signs
        return text if text.strip(",") in ("a", "b") else "x"

    assert translate("a %d, b", HTML, same, word) == "a %d, b"
    assert translate("a (%d b", HTML, same, word) == "a x %d b"


@pytest.mark.parametrize("kept", [
    "https://x.org/wiki/A_(b)", "www.x.org/a(b)c", "%%", "%1", "%L2", "%n", "{ name }", "$t(a.b)",
    "\N{PARTY POPPER}", "\u2764\ufe0f", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "1\ufe0f\u20e3",
])  # fmt: skip
def test_placeholders_are_found_as_a_whole(kept: str) -> None:
    for text in (f"a {kept} b", f"a ({kept}).", f"{kept}, a", f"a {kept}"):
        start = text.index(kept)
        assert Placeholders().find(text) == [(start, start + len(kept))]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{% if x %}a{% else %}b{% endif %} c", "{% if x %}A{% else %}B{% endif %} C"),
        ("<% if x %>a<% else %>b<% end %>", "<% if x %>A<% else %>B<% end %>"),
        ("a <%= x.y < z %> c", "A <%= x.y < z %> C"),
        ("<b>a {{ x }}</b>{% endfor %}b", "<b>A {{ x }}</b>{% endfor %}B"),
        ("a 10 % b %} {% c", "A 10 % B %} {% C"),
        # icons
        ("<u>a <i class=x></i></u>", "<u>A <i class=x></i></u>"),
        ("<i class=x></i> a\n", "<i class=x></i> A\n"),
        ("a <i class=x></i> b", "A <i class=x></i> B"),
    ],
)  # fmt: skip
def test_statements_and_icons_stay_where_they_are(text: str, made: str) -> None:
    assert translate(text, HTML) == made


def test_placeholders_are_written_as_the_source_writes_them() -> None:
    for text in ("{{ x < y && z }}", "{{ x &lt; y &amp;&amp; z }}"):
        assert translate(f"<i>a {text}</i> b", HTML) == f"<i>A {text}</i> B"
    assert translate("a {*} b", Markup("markdown")) == "A {*} B"


def test_no_name_is_said_in_place_of_an_emoji() -> None:
    document = Markup("text").read("a \N{PARTY POPPER}, {x}!")
    document.cut(lambda segment: split_text(segment, "en", "punctuation", "spaces"))
    assert document.sentences == ["a \N{PARTY POPPER}, {x}!", "a, Tom!", "a,!"]


def test_placeholders_are_kept_once() -> None:
    text = "Hi {name}, %d of %s: https://x.org/a.html, me@x.org, {n, plural, one {#} other {#s}}."
    kept = ("{name}", "%d", "%s", "https://x.org/a.html", "me@x.org",
            "{n, plural, one {#} other {#s}}")  # fmt: skip
    for order in (same, backwards, shuffled):
        for word in (str.upper, str, lambda word: "x"):  # copied, or not
            made = translate(text, HTML, order, word)
            assert all(made.count(one) == 1 for one in kept), made
    assert translate("a %s b %s", HTML) == "A %s B %s"
    assert translate("a {x} b", Markup("html", Placeholders(()))) == "A {X} B"
    assert translate("a {x}\n\n b  c", Markup("text", Placeholders())) == "A {x}\n\n B C"
    own = Markup("text", Placeholders((), ["@[a-z]+@"]))
    assert translate("a @b@ & 1", own) == "A @b@ & 1"


@pytest.mark.parametrize(
    ("word", "made"),
    [
        (str, "Hi {name}, how are you"),  # copied as it is
        (lambda word: word.replace("{name}", "name"), "Hi {name}, how are you"),  # the stand-in
        (lambda word: word if "{" not in word and "Tom" not in word else "it,",
         "Hi {name}, how are you"),  # left out
    ],
)  # fmt: skip
def test_what_a_model_does_not_copy_is_put_back(word: Any, made: str) -> None:
    assert translate("Hi {name}, how are you", HTML, same, word) == made


@pytest.mark.parametrize(
    ("kind", "kept", "others"),
    [
        ("printf", ["%s", "%-5.2f", "%(name)d", "%1$s", "%lld", "%@"], ["100 %", "5% ig", "%und"]),
        ("braces", ["{0}", "{}", "{name!r}", "{{x}}", "${x}", "#{x}", "%{x}"], ["{a b}", "{"]),
        ("icu", ["{n, plural, one {# a} other {{n} b}}", "{d, date}"], ["{n, plural", "{a, b}"]),
        ("url", ["https://x.org/?a=b#c", "www.x.org/a"], ["https://", "http"]),
        ("email", ["a.b+c@x.org"], ["a@b", "@x"]),
        ("number", ["1,000.5", "12:30", "-3%"], ["a1", "x2y"]),
    ],
)
def test_placeholders_are_found(kind: Any, kept: list[str], others: list[str]) -> None:
    for one in kept:
        text = f"a {one} b"
        assert [text[slice(*span)] for span in Placeholders([kind]).find(text)] == [one]
        assert Placeholders([kind]).find(f"{one}. c")[0] == (0, len(one))
    for one in others:
        assert not Placeholders([kind]).find(f"a {one} b"), one


@pytest.mark.parametrize("pattern", ["(", "a*", "x" * 300])
def test_wrong_patterns_are_named(pattern: str) -> None:
    with pytest.raises(ConfigError):
        Placeholders((), [pattern])


def test_xml_follows_its_rules() -> None:
    text = '<?xml version="1.0"?>\n<d><p>a <b x="1">b</b><br/></p><p><i>c</i></p><!-- x --></d>\n'
    made = '<?xml version="1.0"?>\n<d><p>A <b x="1">B</b><br/></p><p><i>C</i></p><!-- x --></d>\n'
    assert translate(text, XML) == made
    assert translate("a &#233; <![CDATA[a<b]]> c", XML) == "A É <![CDATA[a<b]]> C"
    joined = Markup("xml", rules=TagRules(outline=False))
    assert translate("<d><p>a</p><p>b</p></d>", joined, backwards) == "<d><p>A</p><p>B</p></d>"
    split = Markup("xml", rules=TagRules(frozenset("k"), frozenset("s"), frozenset("n")))
    assert translate("a <k>b</k> <s>c d</s>", split, backwards) == "A <k>b</k> <s>D C</s>"


HOSTILE = {
    "levels": ("<b>" * 10_000 + "a" + "</b>" * 10_000, None),
    "levels with words": ("x<b>" * 10_000 + "a" + "</b>" * 10_000, "in one another"),
    "tags": ("<b>" * 3_400_000, "more than 500,000 tags"),
    "tags of a paragraph": ("a<b></b>" * 100_000, "more than 2000 tags"),
    "comments": ("<!--" * 2_500_000, None),
    "signs": ("<" * 1_000_000, None),
    "attributes": ("<a " + "x='1' " * 100_000, None),
    "starts": ("<a<" * 300_000, None),
    "ends": ("</b" * 300_000 + "</b>" * 100_000, None),
    "placeholders": ("{a, plural, " * 20_000 + "%s " * 50_000, "tags and placeholders"),
    "list items": ("<ul><li>" * 50_000, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_html_is_refused_or_stays(name: str) -> None:
    text, said = HOSTILE[name]
    if said is None:
        assert "".join(token.raw for token in read_html(text)) == text
        assert len(translate(text, HTML)) >= len(text)
        return
    with pytest.raises(InputError, match=said):
        HTML.read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<a>", "not well-formed XML: mismatched tag: line 1"),
        ("a</r><r>b", "junk after document element"),
        ("a &nbsp; b", "undefined entity: line 1, column 3"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "declares the entity 'b'"),
        ("<b>" * 20_000, "in one another"),
        ("<b/>" * 600_000, "tags; translate it in parts"),
    ],
)
def test_hostile_xml_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        XML.read(text)


def test_every_token_is_kept() -> None:
    pieces = ["<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "<", "a ", "&amp;", "&", "<!--", "-->",
              "<script>", "</script>", "</", "\r\n", "\r", "\0", "<?x", "<![CDATA[", "]]>", "é",
              "🙂", "'", '"', "=", "<a href='", "/>", ">", "<title>", "</title>", "<br>", "<code>",
              "</code>", "<svg>", "<!doctype", "\x0c", "<li>", "<pre>", "</pre>"]  # fmt: skip
    rng = random.Random(3)
    for _ in range(1500):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 14)))
        assert "".join(token.raw for token in read_html(text)) == text
        translate(text, HTML, shuffled)


def test_words_are_read_without_markup() -> None:
    assert HTML.words("<p class='the'>a <b>b</b> &amp; c<p>d<script>x</script>") == "a b & c\nd"


def test_text_is_escaped() -> None:
    assert escape("a & b < c > d \"'") == "a &amp; b &lt; c &gt; d \"'"


WORDS = (
    "one",
    "Zwei.",
    " ",
    "  ",
    "\t",
    "\N{NO-BREAK SPACE}",
    "{n}",
    "%s",
    "\N{PARTY POPPER}",
    "'s",
)


@pytest.mark.parametrize("seed", range(20))
def test_one_piece_of_text_is_read_as_several_are(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        pieces = [rng.choice(WORDS) for _ in range(rng.randint(2, 6))]
        text = "".join(pieces)
        if not text.strip():
            continue
        several = Run([Token("text", piece, text=piece) for piece in pieces])
        whole = make_segment(Run([Token("text", text, text=text)]), Placeholders(), str)
        divided = make_segment(several, Placeholders(), str)
        assert whole == divided, pieces
