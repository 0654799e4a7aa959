"""Phrases that are put into a translation, and what is decoded after them."""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, EOS, log_probs, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, drafts
from tfexport.runtime.search.drafts import Draft
from tfexport.runtime.search.placed import ModelReader, Reading, continue_drafts, place_phrases
from tfexport.runtime.search.required import Required, Requirement, Tokens

pytestmark = pytest.mark.no_model

SIZE, SIGN = 12, 11


class OneWordEach:
    """Places in which each token is a word; the phrase of requirement n comes from word n."""

    def __init__(self, phrases: Sequence[Tokens], source: Sequence[int]) -> None:
        self._phrases, self._words = phrases, tuple(range(len(source)))

    def words(self, ids: Sequence[int]) -> Tokens:
        return self._words

    def sources(self, number: int) -> list[tuple[int, int]]:
        return [(number, number + 1)]

    def forms(self, number: int, sign: str, first: bool, upper: bool) -> list[Tokens]:
        return [self._phrases[number]]

    def holds(self, number: int, tokens: Sequence[int]) -> bool:
        phrase = self._phrases[number]
        starts = range(len(tokens) - len(phrase) + 1)
        return any(tuple(tokens[start : start + len(phrase)]) == phrase for start in starts)

    def is_sign(self, token: int) -> bool:
        return token == SIGN

    def sign_after(self, token: int) -> str:
        return ""

    def is_upper(self, token: int) -> bool:
        return False


def resolved(**options: object) -> ResolvedOptions:
    chosen = DecodingOptions(max_length=12, **options)  # type: ignore[arg-type]
    return ResolvedOptions.of(chosen, BOS, (EOS,), 12, (), (), eos_id=EOS, seed=0)


def total(model: TableModel, row: Request, tokens: Sequence[int]) -> float:
    return sum(log_probs(model, row, tokens[:place])[token] for place, token in enumerate(tokens))


@pytest.mark.parametrize("beam", [1, 3])
def test_placed_hypotheses_have_the_phrases_and_the_scores_of_the_model(beam: int) -> None:
    draw, options = random.Random(beam), resolved(beam_size=beam, length_penalty=0.0)
    model, rows, free = TableModel(SIZE, 5, scale=1.0), list[Request](), list[Hypothesis]()
    for _ in range(12):
        source = [draw.randrange(9) for _ in range(3)]
        phrases = [tuple(draw.choices(range(2, 10), k=draw.choice([1, 2]))) for _ in range(2)]
        places = OneWordEach(phrases, source)
        each = tuple(Requirement((phrase,), number=i) for i, phrase in enumerate(phrases))
        rows.append(Request(source, required=Required(each, places=places)))
        tokens = draw.choices(range(2, SIZE), k=draw.choice([3, 5]))
        free.append(Hypothesis(tokens, 0.0))
    reader = ModelReader(model, options)  # type: ignore[arg-type]
    found = place_phrases(reader, rows, free, options)
    placed = [(row, made) for row, made in zip(rows, found, strict=True) if made is not None]
    assert len(placed) > 8
    for row, made in placed:
        assert row.required is not None
        assert not row.required.unmet(made.tokens)
        ends = [EOS] * made.finished
        assert made.score == pytest.approx(total(model, row, [*made.tokens, *ends]), abs=1e-5)
    alone = [
        place_phrases(reader, [row], [made], options)[0]
        for row, made in zip(rows, free, strict=True)
    ]
    assert [made and made.tokens for made in alone] == [made and made.tokens for made in found]


@pytest.mark.parametrize(("beam", "ngram"), [(1, 0), (3, 0), (3, 20)])  # none is of 20 tokens
def test_what_follows_forced_tokens_is_that_of_a_greedy_search_with_a_prefix(
    beam: int, ngram: int
) -> None:
    draw, model = random.Random(beam), TableModel(SIZE, 9)
    options = resolved(beam_size=beam, no_repeat_ngram_size=ngram)
    assert options.fits_reading == (not ngram)
    drafts = list[tuple[Draft, Reading]]()
    for number in range(8):
        row = Request([number, 3])
        tokens = tuple(draw.choices(range(2, SIZE), k=1 + number % 4))
        known = [log_probs(model, row, tokens[:i])[token] for i, token in enumerate(tokens)]
        drafts.append((Draft(row, tokens, False), Reading(known, None, len(tokens), EOS)))
    found = continue_drafts(model, drafts, options)  # type: ignore[arg-type]
    for (draft, _), made in zip(drafts, found, strict=True):
        row = Request(draft.request.ids, prefix=draft.tokens)
        ((expected, *_),) = search(model, [row], max_length=12)
        assert made is not None
        assert made.tokens == expected.tokens
        assert made.score == pytest.approx(expected.score, abs=1e-5)


def test_attention_is_of_words_without_signs_prefixes_and_special_tokens() -> None:
    draw, numbers = random.Random(2), np.random.default_rng(2)
    for _ in range(100):
        tokens = tuple(draw.choices(range(2, SIZE), k=draw.randint(0, 8)))
        places, row = OneWordEach([], []), Request([0], prefix=tokens[: draw.randint(0, 1)])
        of_words = sorted(draw.choices(range(6), k=draw.randint(0, 9)))
        places._words = (-1, *of_words, -1)
        padded = numbers.random((len(tokens), len(of_words) + 4), np.float32)
        row = dataclasses.replace(row, required=Required((), places=places))
        found = drafts._words(Draft(row, tokens, True), padded)
        if not tokens or not of_words:
            assert found is None
            continue
        assert found is not None
        assert found.spans == [(place, place + 1) for place in range(len(tokens))]
        assert found.sources == sorted(set(of_words))
        attended = padded[:, 1 : len(of_words) + 1].astype(np.float64)
        expected = attended @ (np.array(of_words)[:, None] == found.sources)
        np.testing.assert_allclose(found.attention, expected, atol=1e-12)
        none = [at < len(row.prefix) or token == SIGN for at, token in enumerate(tokens)]
        assert found.most == np.where(none, -1, expected.argmax(1)).tolist()
        np.testing.assert_allclose(found.whole, np.where(none, np.inf, expected.sum(1)))


def test_attention_of_words_of_several_tokens_is_summed() -> None:
    class Pairs:
        """Words of two tokens each."""

        def continues(self, token: int) -> bool:
            return token % 2 == 1

        def opens(self, token: int) -> bool:
            return False

    row = Request([0], required=Required((), Pairs(), places=OneWordEach([], [1, 2])))
    found = drafts._words(Draft(row, (2, 3, 4, 5), True), np.eye(4, 2, dtype=np.float32))
    assert found is not None
    assert found.spans == [(0, 2), (2, 4)]
    assert found.attention.tolist() == [[1, 1], [0, 0]]
