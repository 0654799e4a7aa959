"""The grammars and the judge; and drawn documents of each format, translated by three translators.

``make fuzz-documents CASES=20000`` draws as many as one likes.
"""

import subprocess
import sys

import pytest

from tests.drawn_documents.cases import FORMATS, Result, draw, list_bad, run, run_case, table
from tests.drawn_documents.drawing import Drawn
from tests.drawn_documents.engines import ENGINES, Engine, of_bundle, stub, translate_drawn
from tests.drawn_documents.judge import judge
from tests.support.paths import REPOSITORY

CASES = 240
# Catalogs whose sentences drew placeholders of one another, and a text that began with a space.
MORE = {"po": (5198, 6350, 8774, 14446), "markdown": (400970,)}
CATALOG = (
    'msgid ""\nmsgstr ""\n"Project-Id-Version: a\\n"\n'
    '"PO-Revision-Date: 2024-01-01 00:00+0000\\n"\n'
    '"Last-Translator: A <a@b.c>\\n"\n"Language-Team: A <a@b.c>\\n"\n"Language: de\\n"\n'
    '"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Content-Transfer-Encoding: 8bit\\n"\n\nmsgid "wobo"\nmsgstr ""\n'
)


def _unit(source: str, more: str = "") -> str:
    """A file of XLIFF with one text."""
    inside = f"<source>{source}</source>{more}"
    return f'<xliff version="1.2"><trans-unit id="a">{inside}</trans-unit></xliff>'


def _message(source: str, target: str = '<translation type="unfinished"/>') -> str:
    """A file of Qt Linguist with one text."""
    return f"<TS><message><source>{source}</source>{target}</message></TS>"


def test_judge_imports_nothing_of_the_project() -> None:
    """Fails if the judge shares code with what it judges."""
    code = (
        "import sys, tests.drawn_documents.judge; "
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'tfexport'))"
    )
    given = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert given.stdout.split() == []


def test_one_seed_gives_one_document_and_others_give_others() -> None:
    contents = [draw(seed).content for seed in range(80)]
    assert contents[::-1] == [draw(seed).content for seed in reversed(range(80))]
    assert len(set(contents)) == 80
    assert {draw(seed).format for seed in range(len(FORMATS))} == set(FORMATS)


@pytest.mark.parametrize(
    ("kind", "content", "made", "said"),
    [
        ("text", "wobo {peko}.", "WOBO.", "lost"),
        ("text", "wobo {peko}.", "WOBO {peko} {peko}.", "added"),
        ("text", "wobo wora.", "WOBO wora.", "not translated, not reported: wora"),
        ("text", "wobo\nwora", "WOBO WORA", "structure"),
        ("html", "<p>wobo <b>wora</b></p>", "<p>WOBO WORA</p>", "inline markup"),
        ("html", "<p>wobo</p><hr>", "<p>WOBO</p>", "structure"),
        ("html", "<p>wobo <code>keko</code></p>", "<p>WOBO <code>KEKO</code></p>", "kept part"),
        ("xml", "<a>wobo</a>", "<a>WOBO", "not read"),
        ("markdown", "# wobo", "WOBO", "structure"),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\nwobo\n",
         "2\n00:00:01,000 --> 00:00:02,000\nWOBO\n", "structure"),
        ("vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nwobo\n",
         "WEBVTT\n\n00:01.000 --> 00:03.000\nWOBO\n", "structure"),
        ("po", CATALOG, CATALOG, "empty, not reported"),
        ("json-strings", '{"a": "wobo"}', '{"b": "WOBO"}', "structure"),
        ("xliff", _unit("wobo"), _unit("WOBO"), "structure"),
        ("xliff", _unit("wobo"), _unit("wobo"), "empty, not reported"),
        ("xliff", _unit("wobo", "<note/>"), _unit("wobo", "<target>WOBO</target>"), "not a target"),
        ("xliff", _unit('wobo <x id="1"/>'), _unit('wobo <x id="1"/>', "<target>WOBO</target>"),
         "inline markup"),
        ("xliff", _unit('<bx id="1"/>wobo<ex id="1"/>'),
         _unit('<bx id="1"/>wobo<ex id="1"/>', '<target>WOBO<ex id="1"/><bx id="1"/></target>'),
         "inline markup"),
        ("xliff", _unit("wobo {peko}"), _unit("wobo {peko}", "<target>WOBO</target>"), "lost"),
        ("xliff", _unit("keko", "<target/>"), _unit("keko", "<target>a</target>"), "structure"),
        ("xliff", _unit("wobo", '<target state="new"/>'),
         _unit("wobo", '<target state="final">WOBO</target>'), "structure"),
        ("ts", _message("wobo"), _message("wobo", "<translation>WOBO</translation>"), "structure"),
        ("ts", _message("keko"), _message("KEKO"), "structure"),
        ("arb", '{"a": "wobo", "@a": "b"}', '{"a": "WOBO", "@b": "b"}', "structure"),
        ("strings", '<resources><string name="a">wobo</string></resources>',
         '<resources><string name="b">WOBO</string></resources>', "structure"),
    ],
)  # fmt: skip
def test_judge_finds_what_is_wrong(kind: str, content: str, made: str, said: str) -> None:
    kept = ["keko"] if kind == "html" and "keko" in content else []
    drawn = Drawn(0, kind, content, {"{peko}"}, kept)
    assert said in judge(drawn, made, []).difference
    if kind != "xml":
        reported = [content, "wobo", "wora"]
        assert judge(drawn, content, reported).difference == ""


def test_tables_count_what_became_of_documents() -> None:
    results = [
        Result(0, "html", "mark", words=10, translated=5), Result(1, "xml", "mark", "a reason"),
        Result(8, "html", "mark", difference="a loss", words=10, translated=10, reported=2),
    ]  # fmt: skip
    rows = {line.split()[0]: line.split()[1:] for line in table(results).splitlines()}
    assert rows["html"] == ["2", "0", "1", "2", "75.00", "%"]
    assert rows["all"] == ["3", "1", "1", "2", "75.00", "%"]
    assert list_bad(results).startswith("1 × xml: a reason: seeds 1\n")


@pytest.mark.parametrize("engine", ENGINES)
def test_drawn_documents_keep_their_structure_and_placeholders(engine: Engine) -> None:
    """Fails if one is refused, or the judge finds a difference."""
    translate = stub(engine)
    results = run(range(CASES), engine, translate)
    for kind, seeds in MORE.items():
        results += [run_case(draw(seed, kind=kind), engine, translate) for seed in seeds]
    assert list_bad(results) == "nothing bad"
    if engine == "mark":
        assert sum(one.translated for one in results) == sum(one.words for one in results) > 0


def test_drawn_documents_are_translated_by_the_demo_bundle() -> None:
    translate = of_bundle(REPOSITORY / "examples" / "de-en.bundle")
    results = run(range(16), "bundle", translate)
    assert list_bad(results) == "nothing bad"
    drawn = draw(3, german=True)
    assert translate_drawn(drawn, translate)[0] != drawn.content
