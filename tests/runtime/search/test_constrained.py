"""Required phrases against brute force over all sequences of a small vocabulary."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.combinations import few_of
from tests.support.table_model import TableModel
from tests.support.table_search import EOS, facts, log_probs, search
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import Request
from tfexport.runtime.search.required import Required, Requirement

pytestmark = pytest.mark.no_model

SIZE, LONGEST = 5, 5
EVERY = 352  # hypotheses; a quarter is more than sequences with an end token, of four tokens
Phrases = tuple[tuple[int, ...], ...]


def occurrences(tokens: Sequence[int], phrases: Phrases) -> int:
    """The most occurrences that do not overlap: the one that ends first, then the next, …."""
    found, start = 0, 0
    for end in range(1, len(tokens) + 1):
        if any(end - len(phrase) >= start and tuple(tokens[end - len(phrase) : end]) == phrase
               for phrase in phrases):  # fmt: skip
            found, start = found + 1, end
    return found


def meets(tokens: Sequence[int], required: Required) -> bool:
    return all(occurrences(tokens, each.phrases) >= each.count for each in required.requirements)


def sequences(longest: int) -> Iterator[tuple[int, ...]]:
    """Every target: an end token after fewer than ``longest`` tokens, or so many without."""
    others = [token for token in range(SIZE) if token != EOS]
    for length in range(longest):
        for tokens in itertools.product(others, repeat=length):
            yield (*tokens, EOS)
    yield from itertools.product(others, repeat=longest)


def best_of_all(
    model: TableModel, row: Request, required: Required, options: DecodingOptions
) -> list[tuple[float, list[int]]]:
    known: dict[tuple[int, ...], list[float]] = {}
    found = []
    for tokens in sequences(options.max_length):
        kept = [token for token in tokens if token != EOS]
        if meets(kept, required):
            total = 0.0
            for place, token in enumerate(tokens):
                before = tokens[:place]
                if before not in known:
                    known[before] = log_probs(model, row, before)
                total += known[before][token]
            found.append((total / len(tokens) ** options.length_penalty, kept))
    return sorted(found, key=lambda one: -one[0])


def drawn_requirements(draw: random.Random) -> Required:
    tokens = [0, 2, 3, 4]

    def phrase() -> tuple[int, ...]:
        return tuple(draw.choice(tokens) for _ in range(draw.choice([1, 1, 2, 2, 3])))

    return Required(tuple(
        Requirement(tuple({phrase() for _ in range(draw.choice([1, 1, 2]))}),
                    count=draw.choice([1, 1, 1, 2]))
        for _ in range(draw.choice([1, 1, 2, 3]))
    ))  # fmt: skip


CASES = [(rules, half) for rules in ("tfexport", "transformers") for half in range(8)]


@pytest.mark.parametrize(("rules", "half"), few_of(CASES, *CASES[::8]))
def test_a_wide_beam_finds_the_best_sequence_that_has_the_phrases(rules: str, half: int) -> None:
    draw = random.Random(f"{rules} {half}")
    unmet = 0
    for seed in range(5 * half, 5 * half + 5):
        model, row = TableModel(SIZE, seed), [draw.randrange(9), 3]
        required = drawn_requirements(draw)
        options: dict[str, Any] = {
            "beam_size": EVERY, "num_hypotheses": 3, "max_length": draw.randint(2, 4),
            "length_penalty": draw.choice([0.0, 1.0]), "search_rules": rules,
        }  # fmt: skip
        (made,) = search(model, [Request(row, required=required)], **options)
        best = best_of_all(model, Request(row), required, DecodingOptions(**options))
        if not best:
            unmet += 1
            assert all(each.unmet for each in made)
            continue
        assert not any(each.unmet for each in made)
        assert [each.tokens for each in made] == [tokens for _, tokens in best[:3]]
        assert [each.score for each in made] == pytest.approx([it[0] for it in best[: len(made)]])
    assert unmet < 5


@pytest.mark.parametrize("beam", few_of([1, 2, 5], 1, 5))
def test_a_narrow_beam_meets_the_phrases_where_any_sequence_does(beam: int) -> None:
    draw = random.Random(beam)
    counted = [0, 0]
    for seed in range(40):
        longest = draw.randint(1, LONGEST)
        required = drawn_requirements(draw)
        rules = draw.choice(["tfexport", "transformers"])
        model, row = TableModel(SIZE, seed), Request([seed], required=required)
        (made,) = search(model, [row], beam_size=beam, max_length=longest, search_rules=rules)
        possible = any(meets([t for t in each if t != EOS], required)
                       for each in sequences(longest))  # fmt: skip
        counted[possible] += 1
        assert meets(made[0].tokens, required) == possible
        assert bool(made[0].unmet) != possible
    assert min(counted) > 2


@pytest.mark.parametrize("beam", [1, 4])
def test_rows_of_a_batch_are_decoded_as_alone(beam: int) -> None:
    draw = random.Random(7)
    model = TableModel(SIZE, 3)
    rows = [Request([seed, 2], number=seed) for seed in range(12)]
    for place in range(0, len(rows), 2):
        rows[place] = Request([place, 2], number=place, required=drawn_requirements(draw))
    options: dict[str, Any] = {"beam_size": beam, "max_length": 9}
    together = search(model, rows, **options)
    for row, found in zip(rows, together, strict=True):
        assert [facts(made) for made in search(model, [row], **options)[0]] == list(
            map(facts, found)
        )


@pytest.mark.parametrize("spare", few_of([0, 2], 0))
def test_phrases_of_more_tokens_than_the_beam_has_places_fit_exactly(spare: int) -> None:
    draw = random.Random(spare)
    phrases = [tuple(draw.choice([0, 2, 3, 4]) for _ in range(11)) for _ in range(3)]
    required = Required(tuple(Requirement((phrase,), number=i) for i, phrase in enumerate(phrases)))
    for seed in range(2):
        row = Request([seed], required=required)
        (made,) = search(TableModel(SIZE, seed), [row], max_length=33 + spare)
        assert meets(made[0].tokens, required)
        assert not made[0].unmet


def test_tokens_that_the_model_finds_unlikely_are_considered() -> None:
    """In a vocabulary that is larger than the candidates of a hypothesis."""
    for seed in range(8):
        required = Required((Requirement(((50 + seed, 80),)), Requirement(((90,), (60, 61, 62)))))
        row = Request([seed], required=required)
        (made,) = search(TableModel(100, seed), [row], max_length=12)
        assert meets(made[0].tokens, required)
