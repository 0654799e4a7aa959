"""Translations with required phrases in the places where cross-attention finds their sources.

Axes: R rows, T tokens, S source tokens, W words of the source, N words of a target.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfexport.runtime.model.interface import Floats
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.required import Boundaries, Places, Required, Tokens

Span = tuple[int, int]  # the first token, or word, and the one after the last
_MOST_DRAFTS = 8  # of a translation
_AT_ONCE = 1 << 20  # values that are looked at together
# Shares of attention are counted in these parts, as sums of integers are the same in any order.
_PARTS = float(1 << 30)


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
    """The words of a translation, and what they attend to.

    Attributes:
        spans: (N,), the tokens of each.
        shares: (N, W), of its attention to the words of the source; 0 for signs and a prefix.
        most: (N,), the word that it attends to most.
    """

    spans: list[Span]
    shares: list[list[float]]
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

    def ways(self, draft: Draft) -> Iterator[tuple[Span, Tokens]]:
        """The tokens that are replaced, and those that replace them."""
        places, start = draft.places, len(draft.request.prefix)
        for span in (self.span,) if self.core == self.span else (self.span, self.core):
            replaced = draft.tokens[slice(*span)]
            sign = places.sign_after(replaced[-1]) if replaced else ""
            upper = bool(replaced) and places.is_upper(replaced[0])
            forms = list[Sequence[Tokens]]()
            for rank, number in enumerate(self.numbers):
                first = span[0] == start and not rank
                own = sign if rank == len(self.numbers) - 1 else ""
                forms.append(places.forms(number, own, first, upper))
            for chosen in itertools.product(*forms):
                yield span, tuple(itertools.chain(*chosen))


def with_phrases(
    drafts: Sequence[Draft], attention: Sequence[Floats], options: ResolvedOptions
) -> Iterator[Draft]:
    """Translations with all phrases that they lack, each in several ways.

    Args:
        drafts: translations.
        attention: of each (T, S), of its tokens to the source.
        options: how they were decoded.
    """
    for draft, words in zip(drafts, _words(drafts, attention), strict=True):
        places = _merged(sorted(_places(draft, words), key=lambda place: place.span))
        ways = [list(itertools.islice(place.ways(draft), _MOST_DRAFTS)) for place in places]
        for chosen in itertools.islice(itertools.product(*ways), _MOST_DRAFTS) if ways else ():
            tokens, at, forced, replaced = list[int](), 0, 0, Tokens()
            for span, phrases in chosen:
                tokens += draft.tokens[at : span[0]]
                tokens += phrases
                at, forced, replaced = span[1], len(tokens), draft.tokens[slice(*span)]
            tokens += draft.tokens[at:]
            if forced < options.max_length:
                yield Draft(draft.request, tuple(tokens), draft.ended, forced, replaced, draft.row)


def _words(drafts: Sequence[Draft], attention: Sequence[Floats]) -> Iterator[_Words]:
    """The words of each draft, in parts of bounded memory."""
    first, size = 0, [0, 0]
    for end, attended in enumerate(attention):
        size = [max(pair) for pair in zip(size, attended.shape, strict=True)]
        # Of tokens and source tokens, and of these and words, which are no more.
        if end > first and (end + 1 - first) * max(size) * size[1] > _AT_ONCE:
            yield from _words_at_once(drafts[first:end], attention[first:end])
            first, size = end, list(attended.shape)
    yield from _words_at_once(drafts[first:], attention[first:])


def _words_at_once(drafts: Sequence[Draft], attention: Sequence[Floats]) -> Iterator[_Words]:
    spans = [_spans(draft.tokens, draft.required.boundaries) for draft in drafts]
    of_sources = [draft.places.words(draft.request.ids) for draft in drafts]
    width = max((max(words, default=-1) for words in of_sources), default=-1) + 1
    longest = max(len(draft.tokens) for draft in drafts)
    most_words = max(len(words) for words in of_sources)
    if not longest or not width:
        yield from (_Words([], [], []) for _ in drafts)
        return
    parts = np.zeros((len(drafts), longest, most_words))
    words = np.full((len(drafts), most_words), -1)
    starts, none = list[int](), list[int]()  # of all words, and words without a source
    for row, (draft, attended) in enumerate(zip(drafts, attention, strict=True)):
        tokens, count = draft.tokens, len(of_sources[row])
        parts[row, : len(tokens), :count] = attended[: len(tokens), :count]
        words[row, :count] = of_sources[row]
        prefix, is_sign = len(draft.request.prefix), draft.places.is_sign
        for first, end in spans[row]:
            # Most words begin with a token that is no sign.
            if first < prefix or (is_sign(tokens[first]) and all(map(is_sign, tokens[first:end]))):
                none.append(len(starts))
            starts.append(row * longest + first)
    pooled = np.rint(parts * _PARTS) @ (words[:, :, None] == np.arange(width)).astype(np.float64)
    attended = np.add.reduceat(pooled.reshape(-1, width), starts)
    shares = attended / np.maximum(attended.sum(-1, keepdims=True), 1)
    shares[none] = 0
    listed, most, at = shares.tolist(), shares.argmax(-1).tolist(), 0
    for own in spans:
        part = slice(at, at + len(own))
        at += len(own)
        yield _Words(own, listed[part], most[part])


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


def _places(draft: Draft, words: _Words) -> Iterator[_Place]:
    """Where each phrase belongs that is missing where its source was translated."""
    required, tokens, places = draft.required, draft.tokens, draft.places
    unmet, spans = draft.unmet, words.spans
    met = [each.number for each in required.requirements if each.number not in unmet]
    several = {each.number for each in required.requirements if each.count > 1}
    for number in unmet:
        for source in places.sources(number):
            found = _translated_from(words, source)
            if found is None:
                continue
            (first, end), core = found
            span = spans[first][0], spans[end - 1][1]
            replaced = tokens[slice(*span)]
            if number in several and places.holds(number, replaced):
                continue
            for other in met:  # the words are another phrase: this one is put beside them
                if places.holds(other, replaced):
                    place = span[min(places.sources(other)) < source]
                    yield _Place((place, place), (place, place), (number,))
                    break
            else:
                yield _Place(span, spans[core], (number,))


def _translated_from(words: _Words, source: Span) -> tuple[Span, int] | None:
    """The target words that were translated from words of the source, and the clearest of them.

    These are neighbours that attend more to one of the words than to any other; without any, the
    word that attends most to them.

    Args:
        words: of the target.
        source: the words of the source.
    """
    start, stop = source
    if stop == start + 1:
        mass = [share[start] if start < len(share) else 0.0 for share in words.shares]
    else:
        mass = [sum(share[start:stop]) for share in words.shares]
    if not max(mass, default=0) > 0:
        return None
    own = [start <= word < stop and of > 0 for word, of in zip(words.most, mass, strict=True)]
    ranked = [mine + of for mine, of in zip(own, mass, strict=True)]
    core = ranked.index(max(ranked))
    first = end = core
    while own[core] and first and own[first - 1]:
        first -= 1
    while own[core] and end + 1 < len(own) and own[end + 1]:
        end += 1
    return (first, end + 1), core
