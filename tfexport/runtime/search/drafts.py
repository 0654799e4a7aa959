"""Translations with required phrases in the places where cross-attention finds their sources.

Axes: R rows, T tokens, S source tokens, W words of the source, N words of a target.
"""

import itertools
import math
import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfexport.runtime.model.interface import Floats
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.required import Boundaries, Places, Required, Tokens

Span = tuple[int, int]  # the first token, or word, and the one after the last
_MOST_DRAFTS = 8  # of a translation


class Draft(NamedTuple):
    """A translation with phrases put into it.

    Attributes:
        request: the row that it translates.
        tokens: its tokens, without an end token.
        ended: whether an end token follows.
        forced: the tokens up to the end of the last phrase.
        replaced: the tokens that the last phrase replaces.
        row: its place among the translations into which phrases are put.
        unmet: the numbers of the phrases that are missing.
    """

    request: Request
    tokens: Tokens
    ended: bool
    forced: int = 0
    replaced: Tokens = ()
    row: int = 0
    unmet: Tokens = ()

    @property
    def required(self) -> Required:
        """The phrases that it has to contain."""
        assert self.request.required is not None
        return self.request.required

    @property
    def places(self) -> Places:
        """Where its phrases come from."""
        assert self.required.places is not None
        return self.required.places


class _Words(NamedTuple):
    """The words of a translation, and their attention to the words of the source.

    Attributes:
        spans: (N,), the tokens of each.
        sources: (W,), the words of the source that have tokens, ascending.
        attention: (N, W), sums over the tokens of both.
        whole: (N,), of all words of the source; infinity for signs and a prefix, which have none.
        most: (N,), the column of the one with the most; -1 for signs and a prefix.
    """

    spans: list[Span]
    sources: list[int]
    attention: Floats
    whole: list[float]
    most: list[int]


class _Place(NamedTuple):
    """Where phrases belong in a translation.

    Attributes:
        span: the tokens that were translated from their sources.
        core: of these the word with the most attention.
        numbers: the requirements, in the order of their sources.
    """

    span: Span
    core: Span
    numbers: tuple[int, ...]

    def ways(self, draft: Draft) -> list[tuple[Span, Tokens]]:
        """The tokens that are replaced, and those that replace them."""
        found = list[tuple[Span, Tokens]]()
        places, start = draft.places, len(draft.request.prefix)
        for span in (self.span,) if self.core == self.span else (self.span, self.core):
            replaced = draft.tokens[slice(*span)]
            sign = places.sign_after(replaced[-1]) if replaced else ""
            forms = list[Sequence[Tokens]]()
            for rank, number in enumerate(self.numbers):
                first = span[0] == start and not rank
                upper = first and bool(replaced) and places.is_upper(replaced[0])
                own = sign if rank == len(self.numbers) - 1 else ""
                forms.append(places.forms(number, own, first, upper))
            for chosen in itertools.islice(itertools.product(*forms), _MOST_DRAFTS):
                found.append((span, tuple(itertools.chain(*chosen))))
        return found[:_MOST_DRAFTS]


def with_phrases(
    drafts: Sequence[Draft], attention: Sequence[Floats], options: ResolvedOptions
) -> Iterator[Draft]:
    """Translations with all phrases that they lack, each in several ways.

    Args:
        drafts: translations.
        attention: of each (T, S), of its tokens to the source.
        options: how they were decoded.
    """
    for draft, attended in zip(drafts, attention, strict=True):
        places = _places(draft, attended)
        if len(places) > 1:
            places = _merged(sorted(places, key=lambda place: place.span))
        ways = [place.ways(draft) for place in places]
        for chosen in itertools.islice(itertools.product(*ways), _MOST_DRAFTS) if ways else ():
            tokens, at, forced, replaced = list[int](), 0, 0, Tokens()
            for span, phrases in chosen:
                tokens += draft.tokens[at : span[0]]
                tokens += phrases
                at, forced, replaced = span[1], len(tokens), draft.tokens[slice(*span)]
            tokens += draft.tokens[at:]
            if forced < options.max_length:
                yield Draft(draft.request, tuple(tokens), draft.ended, forced, replaced, draft.row)


def _words(draft: Draft, attention: Floats) -> _Words | None:
    """The words of a draft; None if it or its source has none."""
    tokens, words = draft.tokens, draft.places.words(draft.request.ids)
    spans = _spans(tokens, draft.required.boundaries)
    first = [
        place
        for place, word in enumerate(words)
        if word >= 0 and not (place and words[place - 1] == word)
    ]
    if not spans or not first:
        return None
    end = len(words) - words[::-1].index(words[first[-1]])
    pooled = np.add.reduceat(attention[: len(tokens), :end], first, axis=1, dtype=np.float64)
    pooled = np.add.reduceat(pooled, [start for start, _ in spans], axis=0)
    prefix, is_sign = len(draft.request.prefix), draft.places.is_sign
    # Most words begin with a token that is no sign.
    none = [
        place
        for place, (start, stop) in enumerate(spans)
        if start < prefix or (is_sign(tokens[start]) and all(map(is_sign, tokens[start:stop])))
    ]
    whole, most = pooled.sum(1).tolist(), pooled.argmax(1).tolist()
    for place in none:
        whole[place], most[place] = math.inf, -1
    return _Words(spans, [words[place] for place in first], pooled, whole, most)


def _spans(tokens: Tokens, bounds: Boundaries | None) -> list[Span]:
    """The words of a target."""
    if bounds is None:
        return [(place, place + 1) for place in range(len(tokens))]
    continues, opens = bounds.continues, bounds.opens
    starts = [
        place
        for place, token in enumerate(tokens)
        if not place or not (continues(token) or opens(tokens[place - 1]))
    ]
    return list(itertools.pairwise([*starts, len(tokens)]))


def _merged(places: Sequence[_Place]) -> list[_Place]:
    """Places, those that overlap as one."""
    found = list[_Place]()
    for place in places:
        if found and place.span[0] < found[-1].span[1]:
            before = found.pop()
            span = before.span[0], max(before.span[1], place.span[1])
            place = _Place(span, span, before.numbers + place.numbers)
        found.append(place)
    return found


def _places(draft: Draft, attention: Floats) -> list[_Place]:
    """Where each phrase belongs that is missing where its source was translated."""
    required, tokens, places = draft.required, draft.tokens, draft.places
    words = _words(draft, attention)
    if words is None:
        return []
    found, unmet, spans = list[_Place](), draft.unmet, words.spans
    met = [each.number for each in required.requirements if each.number not in unmet]
    several = [each.number for each in required.requirements if each.count > 1]
    for number in unmet:
        for source in places.sources(number):
            translated = _translated_from(words, source)
            if translated is None:
                continue
            first, end, core = translated
            span = spans[first][0], spans[end - 1][1]
            replaced = tokens[slice(*span)]
            if number in several and places.holds(number, replaced):
                continue
            for other in met:  # the words are another phrase: this one is put beside them
                if places.holds(other, replaced):
                    place = span[min(places.sources(other)) < source]
                    found.append(_Place((place, place), (place, place), (number,)))
                    break
            else:
                found.append(_Place(span, spans[core], (number,)))
    return found


def _translated_from(words: _Words, source: Span) -> tuple[int, int, int] | None:
    """The target words that were translated from words of the source.

    These are neighbours that attend more to one of the words than to any other; without any, the
    word that attends most to them.

    Args:
        words: of the target.
        source: the words of the source.

    Returns:
        The first, the one after the last, and the clearest of them.
    """
    start, stop = (bisect_left(words.sources, word) for word in source)
    if start == stop:
        return None
    attended = words.attention[:, start:stop].sum(1).tolist()
    mass = [of / (whole or 1) for of, whole in zip(attended, words.whole, strict=True)]
    own = [start <= word < stop for word in words.most]
    ranked = list(map(operator.add, own, mass))
    core = ranked.index(max(ranked))
    if not mass[core] > 0:
        return None
    first = end = core
    while own[core] and first and own[first - 1]:
        first -= 1
    while own[core] and end + 1 < len(own) and own[end + 1]:
        end += 1
    return first, end + 1, core
