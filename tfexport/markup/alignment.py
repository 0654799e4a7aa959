"""Words of a translation, each with the place of the source that it was translated from."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.text.sentences import UNSPACED

_IN_WORDS = "'’-‑·_"
_LOOKED_AHEAD = 80  # characters in which the text of a token is looked for
_DRAWN = 0.2  # the least attention for ``Unit.drawn``
_NAME = 3  # letters of a capitalised word that is the same in both languages


@dataclass(frozen=True)
class Unit:
    """A word, a punctuation mark, or a token of a script without spaces.

    Attributes:
        start: its first character in the text.
        end: after its last character.
        source: the place in the source that it was translated from; None if unknown.
        kept: the number of the placeholder that it is; None for other words.
        drawn: places of source words that no word was translated from, to which it attends more
            than other words do.
    """

    start: int
    end: int
    source: int | None = None
    kept: int | None = None
    drawn: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """The tokens of a translation.

    Attributes:
        surfaces: the text of each source token, special tokens left out.
        attention: (T, S) attention of each target token to these source tokens.
        text_of: the text of the first tokens of the target.
    """

    surfaces: Sequence[str]
    attention: NDArray[np.float32]
    text_of: Callable[[int], str]


def split_words(
    text: str, fixed: Sequence[tuple[int, int]] = (), cuts: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Divide a text into words and punctuation marks.

    Args:
        text: any text.
        fixed: start and end of parts that are one word each, in order.
        cuts: where tokens start, which divide scripts without spaces.
    """
    words, inside = list[tuple[int, int]](), set(cuts)
    place = 0
    for start, end in [*fixed, (len(text), len(text))]:
        words += _words(text, place, start, inside)
        if end > start:
            words.append((start, end))
        place = end
    return words


def _words(text: str, begin: int, end: int, cuts: set[int]) -> Iterator[tuple[int, int]]:
    start = begin
    for place in range(begin, end):
        character = text[place]
        if character.isspace():
            if place > start:
                yield start, place
            start = place + 1
        elif is_mark(character) and not (
            character in _IN_WORDS and start < place < end - 1 and text[place + 1].isalnum()
        ):
            if place > start:
                yield start, place
            yield place, place + 1
            start = place + 1
        elif place in cuts and place > start and UNSPACED.match(character):
            yield start, place
            start = place
    if end > start:
        yield start, end


def is_mark(character: str) -> bool:
    """Whether a character is punctuation or a sign."""
    return unicodedata.category(character)[0] in "PS"


def align(
    source: str,
    target: str,
    tokens: Tokens,
    fixed: Sequence[tuple[int, int]] = (),
    whole: Sequence[tuple[int, int]] = (),
) -> list[Unit]:
    """Find the words of a translation and where each comes from.

    A word comes from the source word to which its tokens attend most. Numbers and names that occur
    once on either side, and punctuation marks that occur equally often, are paired directly.

    Args:
        source: the sentence.
        target: its translation.
        tokens: of the translation.
        fixed: see ``split_words``; these parts have no source yet.
        whole: the same for the sentence.
    """
    source_spans = _surface_spans(source, tokens.surfaces)
    target_spans = _target_spans(target, tokens)
    words = split_words(source, whole, [start for start, end in source_spans if end > start])
    found = split_words(target, fixed, [start for start, _ in target_spans])
    weights = _weights(source, words, source_spans, target_spans, tokens.attention, found)
    attended = [int(row.argmax()) if row.any() else None for row in weights]
    marks = {place for place, (start, end) in enumerate(found) if _is_pointed(target[start:end])}
    best = [None if place in marks else one for place, one in enumerate(attended)]
    for place, pair in _pair_names(source, words, target, found).items():
        best[place] = pair
    for place, pair in _pair_marks(source, words, target, found, best).items():
        best[place] = pair
    parts = set(fixed)
    units = [
        Unit(start, end, None if pair is None or (start, end) in parts else words[pair][0])
        for (start, end), pair in zip(found, best, strict=True)
    ]
    taken = {place for place, span in enumerate(found) if place in marks or span in parts}
    for word in {*range(len(words))} - {*best}:
        place = int(weights[:, word].argmax()) if units else 0
        if units and place not in taken and weights[place, word] >= _DRAWN:
            units[place] = replace(units[place], drawn=(*units[place].drawn, words[word][0]))
    return units


def _only_marks(text: str) -> bool:
    return all(map(is_mark, text))


def _is_pointed(text: str) -> bool:
    """Whether it is punctuation, which models align with anything; other signs may be words."""
    return all(unicodedata.category(character)[0] == "P" for character in text)


def _surface_spans(text: str, surfaces: Sequence[str]) -> list[tuple[int, int]]:
    """Where the text of each token is; a token that is not found takes as many characters."""
    spans, place = list[tuple[int, int]](), 0
    for surface in surfaces:
        found = text.find(surface, place, place + len(surface) + _LOOKED_AHEAD) if surface else -1
        start = found if found >= 0 else place
        end = min(len(text), start + len(surface))
        spans.append((start, end))
        place = end
    return spans


def _target_spans(text: str, tokens: Tokens) -> list[tuple[int, int]]:
    spans, place = list[tuple[int, int]](), 0
    for count in range(1, len(tokens.attention) + 1):
        end = max(place, _common(tokens.text_of(count), text))
        start = place
        while start < end and text[start].isspace():
            start += 1
        spans.append((start, end))
        place = end
    return spans


def _common(one: str, other: str) -> int:
    """The number of characters with which both texts start."""
    if other.startswith(one):
        return len(one)
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count


def _weights(
    source: str,
    words: Sequence[tuple[int, int]],
    source_spans: Sequence[tuple[int, int]],
    target_spans: Sequence[tuple[int, int]],
    attention: NDArray[np.float32],
    found: Sequence[tuple[int, int]],
) -> NDArray[np.float64]:
    """How much each target word attends to each source word: the sum over its tokens."""
    made = np.zeros((len(found), len(words)))
    if not words:
        return made
    columns = min(attention.shape[1], len(source_spans))
    homes = _homes(source, source_spans[:columns], words)
    pooled = np.zeros((len(attention), len(words)))
    np.add.at(pooled.T, homes, attention[:, :columns].T)
    token = 0
    for place, (start, end) in enumerate(found):
        while token < len(target_spans) and target_spans[token][1] <= start:
            token += 1
        rows = []
        following = token
        while following < len(target_spans) and target_spans[following][0] < end:
            rows.append(following)
            following += 1
        made[place] = pooled[rows].sum(0)
    return made


def _homes(
    text: str, spans: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]
) -> list[int]:
    """The word of each token: the one that it shares most characters with, else the next one.

    A token such as "(a" belongs to the word, not to the mark.
    """
    homes, first = list[int](), 0
    for start, end in spans:
        while first < len(words) - 1 and words[first][1] <= start:
            first += 1
        best, most, place = first, 0, first
        while place < len(words) and words[place][0] < end:
            shared = 2 * (min(end, words[place][1]) - max(start, words[place][0]))
            if _only_marks(text[slice(*words[place])]):
                shared = min(shared, 1)
            if shared > most:
                best, most = place, shared
            place += 1
        homes.append(best)
    return homes


def _pair_names(
    source: str, words: Sequence[tuple[int, int]], target: str, found: Sequence[tuple[int, int]]
) -> dict[int, int]:
    """Pair words that occur once on either side and are not translated."""

    def once(text: str, spans: Sequence[tuple[int, int]]) -> dict[str, int]:
        texts = [text[start:end] for start, end in spans]
        counts = Counter(texts)
        return {
            one: place
            for place, one in enumerate(texts)
            if counts[one] == 1
            and (any(map(str.isdigit, one)) or (one[0].isupper() and len(one) >= _NAME))
        }

    ours = once(source, words)
    return {place: ours[one] for one, place in once(target, found).items() if one in ours}


def _pair_marks(
    source: str,
    words: Sequence[tuple[int, int]],
    target: str,
    found: Sequence[tuple[int, int]],
    best: Sequence[int | None],
) -> dict[int, int]:
    """Pair equal punctuation marks: those of paired words, others in their order; and the last."""
    ours, theirs = _marks(source, words), _marks(target, found)
    pairs, taken = dict[int, int](), set[int]()
    for place in chain.from_iterable(theirs.values()):
        for step in (-1, 1):  # the word before, the word after
            near = place + step
            pair = best[near] if 0 <= near < len(found) and _touch(found, place, near) else None
            own = None if pair is None else pair - step
            if (
                own is not None
                and own not in taken
                and 0 <= own < len(words)
                and own in ours.get(target[found[place][0]], ())
                and _touch(words, own, own + step)
            ):
                pairs[place] = own
                taken.add(own)
                break
    for mark, places in theirs.items():
        left = [place for place in places if place not in pairs]
        free = [place for place in ours.get(mark, ()) if place not in taken]
        if len(left) == len(free):
            pairs.update(zip(left, free, strict=True))
    if found and words:
        last, own_last = found[-1], words[-1]
        if _only_marks(target[slice(*last)]) and _only_marks(source[slice(*own_last)]):
            pairs.setdefault(len(found) - 1, len(words) - 1)
    return pairs


def _marks(text: str, spans: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    """The places of each punctuation mark."""
    places: dict[str, list[int]] = {}
    for place, (start, end) in enumerate(spans):
        if end - start == 1 and is_mark(text[start]):
            places.setdefault(text[start], []).append(place)
    return places


def _touch(spans: Sequence[tuple[int, int]], one: int, other: int) -> bool:
    """Whether no white space is between two neighbours."""
    first, second = sorted((one, other))
    return spans[first][1] == spans[second][0]
