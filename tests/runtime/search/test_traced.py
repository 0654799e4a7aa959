"""Terms by the trace of a search: the translations are those of reading everything again."""

import random
from pathlib import Path

import pytest

from tfexport.runtime import Translator
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.terms import Terms

DEMO, LINES = Path("examples/de-en.bundle"), Path("examples/de-en/test.tsv")
WORDS = ("cat", "umbrella", "very", "goes", "New York", "not at all", "him", "yesterday")


@pytest.mark.parametrize(
    ("max_length", "beam", "most"),
    [
        *((length, beam, 256) for length in (3, 6, 9, 200) for beam in (1, 3)),
        (200, 1, 7),  # of some rows nothing is kept
    ],
)
def test_translations_are_those_without_a_trace(
    max_length: int, beam: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tfexport_native")
    monkeypatch.setattr("tfexport.runtime.model.native_model._MOST_TRACED", most)
    draw = random.Random(max_length)
    lines = draw.sample(LINES.read_text(encoding="utf-8").splitlines(), 24)
    sources = [line.split("\t")[0] for line in lines]
    terms = [
        Terms.of({word.strip(".,?!"): draw.choice(WORDS) for word in row.split()[:2]}.items())
        for row in sources
    ]
    with Translator(DEMO, threads=1, engine="native") as opened:
        plain = opened.translate(sources, max_length=max_length, beam_size=beam)
        found = opened.translate(sources, terms=terms, max_length=max_length, beam_size=beam)
        if most < max_length:
            left = opened.engine.model.trace([[2, 40, 3], [2, *range(40, 70), 3]], 200)
            assert left is not None
            assert set(left[1].without) == {1}
        monkeypatch.setattr(NativeModel, "trace", lambda *_: None)
        monkeypatch.setattr(NativeModel, "retrace", lambda *_: None)
        expected = opened.translate(sources, terms=terms, max_length=max_length, beam_size=beam)
    changed = [made.text != before.text for made, before in zip(found, plain, strict=True)]
    assert sum(changed) > 5
    for made, before, other in zip(found, plain, changed, strict=True):
        if not other:
            assert made.hypotheses[0].score == before.hypotheses[0].score
    assert [made.hypotheses[0].tokens for made in found] == [
        made.hypotheses[0].tokens for made in expected
    ]
    assert [made.unmet_terms for made in found] == [made.unmet_terms for made in expected]
    scores = [made.hypotheses[0].score for made in expected]
    assert [made.hypotheses[0].score for made in found] == pytest.approx(scores, abs=1e-5)
