"""Markdown there and back."""

from pathlib import Path
from typing import Any

import pytest

from tests.markup.stubs import Order, backwards, same, shuffled, translate, translated, upper
from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.errors import InputError
from tfexport.markup.document import Markup
from tfexport.markup.files import read_file
from tfexport.markup.markdown_reader import Place, read_inline, write_inline
from tfexport.runtime.text.sentences import SplitText

PAGES = [
    path.relative_to(REPOSITORY)
    for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
    if "_site" not in path.parts
]
TEXT = """---
title: a b
---
# One *two*

> para one
> two **b [link](u "t") x** `code`  \\
> hard <b>x</b>

- item _x_ y
  more ![alt](img)
- 1\\. two \\* 3 &amp; <http://a.b>

| a | b |
|---|---|
| c *d* | e \\| `f\\|g` |

```
code
```

[ref]: http://x

Setext
======

A [x][ref] and [ref]. Another line
goes on.

<div>html</div>

    indented code
"""
MADE = """---
title: a b
---
# ONE *TWO*

> PARA ONE TWO **B [LINK](u "t") X** `code`  \\
> HARD <b>X</b>

- ITEM _X_ Y MORE ![alt](img)
- 1\\. TWO \\* 3 & <http://a.b>

| A | B |
|---|---|
| C *D* | E \\| `f\\|g` |

```
code
```

[ref]: http://x

SETEXT
======

A [X][ref] AND [REF][ref]. ANOTHER LINE GOES ON.

<div>HTML</div>

    indented code
"""


# The shapes of READMEs: what GitHub and Sphinx read, and CommonMark does not have.
README = """<h1 align="center">
  <img src="a.png" alt="one"> one
</h1>

[![Build](https://x.org/a.svg)](https://x.org) [![b][badge]][page]

> [!NOTE]
> one
> *two*

- [One](#one "x")
  1. two

     three
* [x] four :tada:
* [ ] [five][page]

One[^1] costs $5, $a_b + c$ or ![x *y*][badge] two.[^two]

[^1]: A note
[^two]: https://x.org
[^3]: One more,
    on two lines

Term
: its meaning

<details>
<summary>One</summary>

two **three**

</details>

| a | b |
|:--|--:|
| `x\\|y` | one<br>*two* |

[page]: https://x.org "One"
[badge]: <b.svg>
"""
README_MADE = """<h1 align="center">
  <img src="a.png" alt="one"> ONE
</h1>

[![Build](https://x.org/a.svg)](https://x.org) [![b][badge]][page]

> [!NOTE]
> ONE *TWO*

- [ONE](#one "x")
  1. TWO

     THREE
* [x] FOUR :tada:
* [ ] [FIVE][page]

ONE[^1] COSTS $5, $a_b + c$ OR ![x *y*][badge] TWO.[^two]

[^1]: A NOTE
[^two]: https://x.org
[^3]: ONE MORE, ON TWO LINES

TERM
: ITS MEANING

<details>
<summary>ONE</summary>

TWO **THREE**

</details>

| A | B |
|:--|--:|
| `x\\|y` | ONE<br>*TWO* |

[page]: https://x.org "One"
[badge]: <b.svg>
"""


def there_and_back(text: str, order: Order = same, word: Any = upper) -> str:
    file = read_file(text, "markdown", Markup())
    return file.write([translate(one.text, one.markup, order, word) for one in file.texts])


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_words_change(newline: str) -> None:
    assert there_and_back(TEXT.replace("\n", newline)) == MADE.replace("\n", newline)


# What generators of sites add to a page.
SITE = """+++
title = "one"
+++

:::note One
one
two $$x$$ three
:::

one
$$
x = y
$$
two

{% include "one.md" %}

one {% if two %}three{% else %}four{% endif %} five {{< one "two" >}}
"""
SITE_MADE = """+++
title = "one"
+++

:::note One
ONE TWO $$x$$ THREE
:::

ONE
$$
x = y
$$
TWO

{% include "one.md" %}

ONE {% if two %}THREE{% else %}FOUR{% endif %} FIVE {{< one "two" >}}
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_generators_of_sites_read_stays(newline: str) -> None:
    assert there_and_back(SITE.replace("\n", newline)) == SITE_MADE.replace("\n", newline)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_readmes_have_stays(newline: str) -> None:
    text = README.replace("\n", newline)
    assert there_and_back(text) == README_MADE.replace("\n", newline)
    for order in (backwards, shuffled):
        made = there_and_back(text, order)
        for sign in ("[^1]", "[^two]", ":tada:", "$a_b + c$", "[x] ", "[!NOTE]", "](#one", "[^3]:"):
            assert made.count(sign) == README.count(sign)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a **b** c", "C **B** A"),
        ("a [b c](<x y> 'z') d", "D [C B](<x y> 'z') A"),
        ("`a b` c", "`a b` C"),
        ("a ``b`c`` d", "D A ``b`c``"),
        ("* a\n* b *c*", "* A\n* *C* B"),
        ("a <span x='*'>b</span>", "<span x='*'>B</span> A"),
        ("1. a\n\n   b\n2. c", "1. A\n\n   B\n2. C"),
        ("a\\\n*b* c", "A\\\nC *B*"),
        ("![a *b*](c) d", "![a *b*](c) D"),
        ("a ~~b~~ c", "C ~~B~~ A"),
        ("***a** b* c", "C *B **A***"),
        ("a `b\nc` <i\nx='y'>d</i>\ne", "E <i x='y'>D</i> A `b c`"),
        ("a [b\nc][]\n\n[b c]: d", "[C B][b c] A\n\n[b c]: d"),
        ("a \\_\\_b\\_\\_ \\_c\\_", "\\_C\\_ \\_\\_B\\_\\_ A"),
        ("", ""), ("\n", "\n"), ("---\n", "---\n"), ("[a]: b\n", "[a]: b\n"),
        ("{name} `a`", "{name} `a`"),
    ],
)  # fmt: skip
def test_markup_stays_around_its_words(text: str, made: str) -> None:
    assert there_and_back(text, backwards) == made


def test_words_are_no_markup() -> None:
    signs = {"a": "*b*", "c": "[d](e)", "f": "<g>", "h": "_i_", "j": "`k`", "l": "~~m~~"}
    made = there_and_back(" ".join(signs), same, signs.__getitem__)
    assert made == "\\*b\\* \\[d\\](e) \\<g> \\_i\\_ \\`k\\` \\~\\~m\\~\\~"
    for start in ("1.", "2)", "-", "+", "#", ">", "=", "##"):
        made = there_and_back("a b", same, lambda word, start=start: start if word == "a" else word)
        assert made.replace("\\", "") == f"{start} b"
        assert made.count("\\") == 1
    assert there_and_back("| a |\n|---|\n| b |", same, lambda word: f"{word}|{word}") == (
        "| a\\|a |\n|---|\n| b\\|b |"
    )


def test_emphasis_that_signs_cannot_make_is_written_as_elements() -> None:
    place = Place(0, 9, 1, "a **b** c", ())
    opening, closing = (token.raw for token in read_inline(place.text, {}) if token.name)
    assert write_inline(f"a {opening}b{closing} c", place, {}) == "a **b** c"
    assert write_inline(f"a {opening}(b){closing}c", place, {}) == "a <strong>(b)</strong>c"
    with pytest.raises(InputError, match="line 1: its translation has other markup"):
        write_inline(f"a {opening}b{closing} `c`", place, {})


@pytest.mark.parametrize("page", few_of(PAGES, Path("docs/decoding.md"), Path("README.md")))
@pytest.mark.parametrize("order", [same, backwards, shuffled])
def test_pages_are_translated(page: Path, order: Order) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    made = there_and_back(text, order)
    assert made.count("```") == text.count("```")
    assert made != text


def test_emphasis_without_words_is_written_as_elements() -> None:
    """Fails if signs that touch are read as one element in another."""
    file = read_file("~~a~~ *b* ~~c~~", "markdown", Markup())
    document = file.texts[0].markup.read(file.texts[0].text)
    document.cut(lambda text: SplitText([text], ["", ""]))
    rows = [translated(document.sentences[0], lambda count, rng: [1])]
    made = file.write([document.write(rows, document.choose(rows))])
    assert made == "<s></s><em>B</em><s></s>"
    text = "a ~~b ~~[c](d) e~~~~"  # "~~~~" begins a block of code
    assert there_and_back(text, lambda count, rng: [2, 3]) == "<s><s>[C](d) E</s></s>"


def test_what_is_not_translated_keeps_its_lines() -> None:
    text = "> 1 `a`\n> *2*\n\n> one\n> two\n"
    assert there_and_back(text) == "> 1 `a`\n> *2*\n\n> ONE TWO\n"
    assert there_and_back(text, same, str) == text


@pytest.mark.parametrize("start", ["[^a] ", ":tada: ", "![a](b) ", "~~[^a]~~ "])
def test_signs_at_the_start_stay_there_with_one_space(start: str) -> None:
    """Two spaces more make a list of one in it another block."""
    text = f"# {start}one\n\n- {start}two\n  - three\n\n| a |\n|---|\n| {start}b |\n"
    for order in (same, backwards):
        made = there_and_back(text, order)
        assert made.lower() == text


def test_a_footnote_may_be_one_word() -> None:
    file = read_file("a[^1] b\n\n[^1]: one two\n\nc\n", "markdown", Markup())
    assert file.write([None, "one", None]) == "a[^1] b\n\n[^1]: one\n\nc\n"


def test_characters_for_private_use_are_refused() -> None:
    with pytest.raises(InputError, match="private use"):
        there_and_back("a \ue100 b")
