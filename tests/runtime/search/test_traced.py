"""Terms by the trace of a search: the translations are those of reading everything again."""

import random
from pathlib import Path

import pytest

from tfexport.runtime import Translator
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.terms import Terms

DEMO, LINES = Path("examples/de-en.bundle"), Path("examples/de-en/test.tsv")
WORDS = ("cat", "umbrella", "very", "goes", "New York", "not at all", "him", "yesterday")


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("max_length", [3, 6, 9, 200])
def test_translations_are_those_without_a_trace(
    max_length: int, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tfexport_native")
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
        monkeypatch.setattr(NativeModel, "trace", lambda *_: None)
        monkeypatch.setattr(NativeModel, "retrace", lambda *_: None)
        expected = opened.translate(sources, terms=terms, max_length=max_length, beam_size=beam)
    changed = [made.text != before.text for made, before in zip(found, plain, strict=True)]
    assert sum(changed) > 5
    assert [made.hypotheses[0].tokens for made in found] == [
        made.hypotheses[0].tokens for made in expected
    ]
    assert [made.unmet_terms for made in found] == [made.unmet_terms for made in expected]
    scores = [made.hypotheses[0].score for made in expected]
    assert [made.hypotheses[0].score for made in found] == pytest.approx(scores, abs=1e-5)
