"""Prefixes, end tokens, unknown words, callbacks and attention of hypotheses."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_rows import rows_of
from tfexport.runtime import Translator
from tfexport.runtime.options import Step


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def test_prefix_of_text_and_of_ids_begins_the_target(translator: Translator) -> None:
    texts = ["w5 w6", "w7", "w8 w9 w4"]
    found = translator.translate(texts, target_prefix=["w9 w10", [9, 10], None], max_length=6)
    assert [result.hypotheses[0].tokens[:2] for result in found[:2]] == [[9, 10], [9, 10]]
    assert found[0].text is not None
    assert found[0].text.startswith("w9 w10")
    assert found[2].hypotheses == translator.translate(texts[2:], max_length=6)[0].hypotheses


def test_end_tokens_and_the_end_token_kept(translator: Translator) -> None:
    rows = rows_of(10)
    plain = translator.generate(rows, max_length=20)
    kept = translator.generate(rows, max_length=20, return_end_token=True)
    for one, two in zip(plain, kept, strict=True):
        end = [2] if one.hypotheses[0].finished else []
        assert two.hypotheses[0].tokens == one.hypotheses[0].tokens + end
    first = plain[0].hypotheses[0].tokens[1]
    stopped = translator.generate(rows[:1], max_length=20, end_tokens=[first])
    assert stopped[0].hypotheses[0].tokens == plain[0].hypotheses[0].tokens[:1]


def test_unknown_words_are_replaced_by_what_they_attended_to(translator: Translator) -> None:
    # Only the unknown token may be chosen, so that every place shows its source word.
    everything = [i for i in range(19) if i not in (2, 3)]
    options: dict[str, Any] = {"suppress_tokens": everything, "min_length": 3, "max_length": 3}
    text = "w5 Käse w7"
    found = translator.translate([text], return_attention=True, replace_unknowns=True, **options)[0]
    assert found.text is not None
    words = text.split()
    aligned = {t: s for s, t in found.alignment()}
    assert found.text.split() == [words[aligned[t]] for t in range(3)]
    assert found.framing == (0, 1)
    quiet = translator.translate([text], replace_unknowns=True, **options)[0]
    assert quiet.text == found.text
    assert quiet.hypotheses[0].attention is None


def test_callback_ends_a_row(translator: Translator) -> None:
    seen: list[int] = []

    def call(step: Step) -> bool:
        seen.append(step.token)
        return step.position == 1 and step.row == 0

    found = translator.generate([[5, 6], [7]], max_length=9, min_length=9, callback=call)
    assert [len(result.hypotheses[0].tokens) for result in found] == [2, 9]
    assert len(seen) == 11
