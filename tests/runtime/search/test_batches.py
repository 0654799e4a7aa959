"""A sentence decodes in a batch as it does alone, whatever the other rows are."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Batches
from tfexport.runtime import Translator

# Of these, some rows saw another's source, or another's candidates counted for their scores.
ONCE_WRONG = [7, 10, 20, 48, 80, 139]


@pytest.fixture(name="batches", scope="module")
def _batches(tiny_bundle: Path) -> Batches:
    return Batches(tiny_bundle)


@pytest.mark.parametrize("seed", [*ONCE_WRONG, *range(1000, 1100)])
def test_a_sentence_decodes_in_a_batch_as_it_does_alone(batches: Batches, seed: int) -> None:
    drawn = batches.draw(seed)
    assert not batches.differences(drawn), drawn


@pytest.mark.parametrize("seed", range(2000, 2060))
def test_so_it_does_with_forced_tokens_and_other_rules(batches: Batches, seed: int) -> None:
    drawn = batches.draw_forced(seed)
    assert not batches.differences(drawn), drawn


def test_a_beam_goes_on_with_its_own_source_when_a_neighbour_ends(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, threads=1)
    options: dict[str, Any] = {
        "beam_size": 2,
        "patience": 0.5,
        "no_repeat_ngram_size": 4,
        "max_length": 10,
    }
    rows = [[12, 8, 4, 16], [4, 5, 15, 10, 15]]
    together = translator.generate(rows, **options)[1]
    (alone,) = translator.generate(rows[1:], **options)
    assert together.hypotheses[0].tokens == alone.hypotheses[0].tokens
    assert together.hypotheses[0].score == pytest.approx(alone.hypotheses[0].score, abs=1e-5)


def test_an_alternative_counts_with_the_models_own_probability(tiny_bundle: Path) -> None:
    allowed = {-1: [2, 4, 5], 4: [6, 7, 8, 9], 5: [10]}
    mapped = Translator(tiny_bundle, threads=1, vocabulary_map=allowed)
    options: dict[str, Any] = {"return_alternatives": True, "num_hypotheses": 2, "max_length": 5}
    for rows in ([[16, 2]], [[16, 2], [4, 5, 2]]):
        found = mapped.generate(rows, **options)[0].hypotheses
        (ended,) = [made for made in found if not made.tokens]
        whole = Translator(tiny_bundle, threads=1).score([rows[0]], [[]])[0]
        assert ended.score == pytest.approx(whole.score, abs=1e-5)
