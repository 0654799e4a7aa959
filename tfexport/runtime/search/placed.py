"""Placing required phrases in a translation that lacks them, by its cross-attention.

A phrase replaces the words that were translated from its source. If the model would clearly go on
in another way after the last phrase, that is decoded too, and taken if it is clearly better.

Axes: R rows, T tokens, S source, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats, Ids, Model, Rows
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import BatchSteps, Prefilled, advance, prefill, run
from tfexport.runtime.search.beam import BeamChoice, Beams
from tfexport.runtime.search.drafts import Draft, with_phrases
from tfexport.runtime.search.logits import LOGITS_AT_ONCE, LogitFilters, log_normalizer
from tfexport.runtime.search.ranking import make_hypothesis
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.required import Tokens
from tfexport.runtime.search.stepwise import StepwiseChoice

Doubles = NDArray[np.float64]
# A token is clearly likelier than another by so much log-probability: 55 times.
_CLEARLY = 4.0
# By so much the mean log-probability of another continuation has to be better, as the rest of the
# translation is known to fit the source.
_MARGIN = 0.5
_HEADS = 256  # of all layers together, by which the memory of attention is bounded


class Reading(NamedTuple):
    """A draft as the model reads it.

    Attributes:
        log_probs: (T,) of its tokens, and of the end token if one follows.
        attention: (T, S) of these; None if nothing asks for it.
        agreed: the tokens before the first after the phrases for which the model has a clearly
            likelier one; None if it has none, nor for the end.
        end: the likeliest end token after the last.
    """

    log_probs: Sequence[float]
    attention: Floats | None
    agreed: int | None
    end: int

    @property
    def mean(self) -> float:
        """The mean log-probability; -inf if a token is not allowed."""
        return sum(self.log_probs) / len(self.log_probs) if self.log_probs else 0.0


class Reader(Protocol):
    """The decoder, as it reads translations and goes on with them."""

    def align(self, drafts: Sequence[Draft]) -> list[Floats]:
        """The attention of each token of drafts to their sources, (T, S) each.

        Of the last layer, the mean over its heads, at the position that chose the token.

        Args:
            drafts: translations as they were found.
        """

    def read(self, drafts: Sequence[Draft]) -> list[Reading]:
        """Read drafts by teacher forcing; penalties and bans act as in the search."""

    def go_on(
        self, drafts: Sequence[tuple[Draft, Reading]], places: Sequence[int]
    ) -> list[Hypothesis | None]:
        """Decode drafts from after the tokens that are ``agreed``; None where it is impossible.

        Args:
            drafts: drafts that were read, and how; see ``_is_open``.
            places: of each its place among all that were read last.
        """


def place_phrases(
    reader: Reader,
    requests: Sequence[Request],
    found: Sequence[Hypothesis],
    options: ResolvedOptions,
) -> list[Hypothesis | None]:
    """For each row a translation with all of its phrases; None if they have no place.

    Args:
        reader: the model that decodes.
        requests: rows whose ``required`` has ``places``; their prefixes are equally long.
        found: a translation of each that lacks some of its phrases.
        options: how it was decoded.
    """
    results: list[Hypothesis | None] = [None] * len(requests)
    free = [
        _draft_of(row, request, made, options)
        for row, (request, made) in enumerate(zip(requests, found, strict=True))
    ]
    drafts = list(with_phrases(free, reader.align(free), options))
    if not drafts:
        return results
    readings = reader.read(drafts)
    chosen: dict[int, int] = {}  # the place of each row's best draft
    for place, (draft, reading) in enumerate(zip(drafts, readings, strict=True)):
        if draft.row not in chosen or reading.mean > readings[chosen[draft.row]].mean:
            chosen[draft.row] = place
    open_rows = [row for row, place in chosen.items() if _is_open(readings[place], options)]
    places = [chosen[row] for row in open_rows]
    again = reader.go_on([(drafts[place], readings[place]) for place in places], places)
    continued = dict(zip(open_rows, again, strict=True))
    for row, place in chosen.items():
        draft, reading = drafts[place], readings[place]
        usable = [
            made
            for made in (_hypothesis(draft, reading, options), continued.get(row))
            if made is not None
            and math.isfinite(made.score)
            and not draft.required.unmet(_without_end(made, options))
        ]
        if len(usable) > 1 and usable[1].score > usable[0].score + _MARGIN:
            del usable[0]
        results[row] = next(iter(usable), None)
    return results


def _draft_of(row: int, request: Request, made: Hypothesis, options: ResolvedOptions) -> Draft:
    draft = Draft(request, _without_end(made, options), made.finished, row=row)
    return draft._replace(unmet=made.unmet or draft.required.unmet(draft.tokens))


def _is_open(reading: Reading, options: ResolvedOptions) -> bool:
    """Whether a draft is gone on with: the model has a clearly likelier token, and may choose."""
    agreed = reading.agreed
    if agreed is None or agreed >= options.max_length:
        return False
    return min(reading.log_probs[:agreed], default=0.0) > -math.inf


def _without_end(made: Hypothesis, options: ResolvedOptions) -> Tokens:
    ended = made.finished and options.return_end_token
    return tuple(made.tokens[: len(made.tokens) - ended])


def _hypothesis(draft: Draft, reading: Reading, options: ResolvedOptions) -> Hypothesis | None:
    """The draft as it is; None if that is no target."""
    if not draft.ended or len(draft.tokens) >= options.max_length:
        return None
    tokens = [*draft.tokens, reading.end]
    uncounted = options.uncounted(draft.request.prefix)
    return make_hypothesis(tokens, reading.log_probs, reading.attention, True, options, uncounted)


# Reading of given tokens.


class _Part(NamedTuple):
    """Some positions of some drafts.

    Attributes:
        places: (R,), the drafts.
        first: the first position.
        tokens: (R, T), what the decoder reads at all positions, the start token first.
        last: the position after the last one of this part.
        state: the state of the decoder before ``first``.
    """

    places: list[int]
    first: int
    tokens: Ids
    last: int
    state: Rows


def _parts(
    model: Model, drafts: Sequence[Draft], options: ResolvedOptions, width: int
) -> Iterator[_Part]:
    """Drafts and their positions, in parts of bounded memory; the caller advances the state.

    Args:
        model: the model that decodes.
        drafts: the drafts.
        options: how they are decoded.
        width: numbers that are computed for each position.
    """
    sizes = [min(len(draft.tokens) + 1, options.max_length) for draft in drafts]
    left = sorted(range(len(drafts)), key=lambda place: sizes[place])
    while left:
        each = max(width, _HEADS * max(drafts[place].request.length for place in left))
        count = 1
        while count < len(left) and (count + 1) * sizes[left[count]] * each <= LOGITS_AT_ONCE:
            count += 1
        places, left = left[:count], left[count:]
        tokens = np.full((count, sizes[places[-1]]), options.bos_id, np.int64)
        for row, place in enumerate(places):
            given = drafts[place].tokens[: tokens.shape[1] - 1]
            tokens[row, 1 : len(given) + 1] = given
        state = model.encode([drafts[place].request.source for place in places])
        step = max(1, LOGITS_AT_ONCE // (count * each))
        for first in range(0, tokens.shape[1], step):
            yield _Part(places, first, tokens, min(first + step, tokens.shape[1]), state)


class ModelReader:
    """See ``Reader``: everything is read from its start."""

    def __init__(self, model: Model, options: ResolvedOptions) -> None:
        """Take how the translations were decoded."""
        self._model, self._options = model, options

    def align(self, drafts: Sequence[Draft]) -> list[Floats]:
        """See ``Reader``."""
        return _align(self._model, drafts, self._options)

    def read(self, drafts: Sequence[Draft]) -> list[Reading]:
        """See ``Reader``."""
        return _read(self._model, drafts, self._options)

    def go_on(
        self, drafts: Sequence[tuple[Draft, Reading]], places: Sequence[int]
    ) -> list[Hypothesis | None]:
        """See ``Reader``."""
        return continue_drafts(self._model, drafts, self._options)


def _align(model: Model, drafts: Sequence[Draft], options: ResolvedOptions) -> list[Floats]:
    """See ``Reader.align``."""
    found: list[list[Floats]] = [[] for _ in drafts]
    none = np.zeros(0, np.int64) if model.has_shortlist else None  # logits are not needed
    for part in _parts(model, drafts, options, model.vocab_size if none is None else 1):
        read = part.tokens[:, part.first : part.last]
        _, weights = model.attend(read, part.state, none)
        attended = weights[:, -1].mean(1)  # (R, T, S)
        for row, place in enumerate(part.places):
            left = max(0, len(drafts[place].tokens) - part.first)
            found[place].append(attended[row, :left])
    return [np.concatenate(parts) for parts in found]


def _read(model: Model, drafts: Sequence[Draft], options: ResolvedOptions) -> list[Reading]:
    """See ``Reader.read``."""
    best, gaps, log_probs, wanted = [[list[Any]() for _ in drafts] for _ in range(4)]
    attention: list[list[Floats]] = [[] for _ in drafts]
    ends, normalizer = np.array(options.end_tokens), model.log_normalizer or log_normalizer
    for part in _parts(model, drafts, options, model.vocab_size):
        logits, attended = advance(
            model, part.tokens[:, part.first : part.last], part.state, options
        )
        normal = _filter(model, [drafts[place] for place in part.places], part, logits, options)
        for row, place in enumerate(part.places):
            given = drafts[place].tokens[part.first : part.last]
            # Each has one more, the end token, if there is room; what follows is padding.
            count = min(len(drafts[place].tokens) + 1, part.last) - part.first
            if count <= 0:
                continue
            own = logits[row, :count]
            chosen, every = own.argmax(-1), np.arange(count)
            tokens = np.array([*given, *ends[own[len(given) :, ends].argmax(-1)]], np.int64)
            found = own[every, tokens]
            with np.errstate(invalid="ignore"):  # where no token is allowed
                gaps[place] += (own[every, chosen] - found).tolist()
                scores = found - (normalizer(own) if normal is None else normal[row, :count])
            if part.first == 0 and drafts[place].request.prefix[:1] == (options.first_token,):
                scores[0] = 0  # a forced token is certain
            best[place] += chosen.tolist()
            log_probs[place] += scores.tolist()
            wanted[place] += tokens.tolist()
            if attended is not None:
                attention[place].append(attended[row, :count])
    return [
        make_reading(
            draft, best[place], gaps[place], log_probs[place], wanted[place], attention[place]
        )
        for place, draft in enumerate(drafts)
    ]


def _filter(
    model: Model, rows: Sequence[Draft], part: _Part, logits: Floats, options: ResolvedOptions
) -> Doubles | None:
    """Apply penalties and bans to logits (R, T, V), in place, as the search does.

    Returns:
        (R, T), what has to be subtracted for log-probabilities; None if nothing was changed.
    """
    normalizer = model.log_normalizer or log_normalizer
    filters = LogitFilters(options, [draft.request for draft in rows])
    count, length, _ = logits.shape
    in_beam = options.beam_size > 1
    forced_end = options.last_token is not None and part.last >= options.max_length
    if filters.idle and not forced_end and not (in_beam and options.by_transformers):
        return None
    every, prefix = np.arange(count), len(rows[0].request.prefix)
    normal = np.zeros((count, length))
    for place in range(length):
        found, at = logits[:, place], part.first + place
        normalise = True
        if at >= prefix and in_beam:
            normalise = filters.apply_in_beam(found, part.tokens[:, 1 : at + 1], every, normalizer)
        elif at >= prefix:
            filters.apply(found, part.tokens[:, 1 : at + 1], every)
        if normalise:
            normal[:, place] = normalizer(found)
    return normal


def make_reading(
    draft: Draft,
    best: Sequence[int],
    gaps: Sequence[float],
    log_probs: Sequence[float],
    wanted: Sequence[int],
    attention: Sequence[Floats] = (),
    start: int = 0,
) -> Reading:
    """Compare the tokens that the model finds likeliest with those that are wanted.

    Args:
        draft: the draft that was read.
        best: of each position the likeliest token.
        gaps: how much less likely the one that is wanted is.
        log_probs: of the tokens that are wanted, from the draft's first on.
        wanted: these; from the draft's end on end tokens.
        attention: (T, S) of some positions each, if it is needed.
        start: the position of the first of ``best``, ``gaps`` and ``wanted``.
    """
    length, end = len(draft.tokens), start + len(best)
    whole = length + draft.ended
    agreed = None
    if not draft.ended or whole > end:
        agreed = min(length, end)
    for at in range(max(start, draft.forced), min(whole, end)):
        # That the model would go on with its own word is no reason to go on in another way.
        if gaps[at - start] > _CLEARLY and not (
            at == draft.forced and best[at - start] in draft.replaced
        ):
            agreed = at
            break
    attended = None
    if attention:
        attended = np.concatenate(attention)[:whole, : draft.request.length]
    return Reading(log_probs[:whole], attended, agreed, wanted[min(length, end - 1) - start])


# Decoding what follows the phrases.


def continue_drafts(
    model: Model, drafts: Sequence[tuple[Draft, Reading]], options: ResolvedOptions
) -> list[Hypothesis | None]:
    """See ``Reader.go_on``."""
    results: list[Hypothesis | None] = [None] * len(drafts)
    if not drafts:
        return results
    # ``given`` still names all of them, so that rows are decoded step by step.
    inner = dataclasses.replace(
        options, num_hypotheses=1, suppress_first_tokens=(), return_token_scores=True,
        return_end_token=True, return_attention=options.needs_attention,
        beam_size=1, patience=1.0, early_stopping=options.beam_size > 1,
    )  # fmt: skip
    forced = [draft.tokens[: reading.agreed] for draft, reading in drafts]
    common = min(map(len, forced))
    requests = [
        dataclasses.replace(draft.request, prefix=tokens[:common], required=None)
        for (draft, _), tokens in zip(drafts, forced, strict=True)
    ]
    prefilled = prefill(model, requests, inner)
    for row, (_, reading) in enumerate(drafts):
        prefilled.prefix_scores[row] = reading.log_probs[:common]
    uncounted = options.uncounted(drafts[0][0].request.prefix)
    choice: _ForcedBeams | _ForcedSteps
    # A beam of one is a greedy search, unless penalties or bans act in its own way.
    if options.beam_size > 1 and not options.fits_reading:
        choice = _ForcedBeams(model, requests, inner, prefilled, forced, uncounted)
    else:
        choice = _ForcedSteps(requests, inner, prefilled, forced)
    found = run(choice, BatchSteps(model, requests, inner, prefilled))
    for place, hypotheses in enumerate(found):
        for made in hypotheses[:1]:
            scores = np.array(made.token_scores)
            results[place] = make_hypothesis(
                made.tokens, scores, made.attention, made.finished, options, uncounted
            )
    return results


class _ForcedSteps(StepwiseChoice):
    """Greedy search over rows of which each has a forced start of its own length."""

    def __init__(
        self,
        requests: Sequence[Request],
        options: ResolvedOptions,
        prefixes: Prefilled,
        forced: Sequence[Tokens],
    ) -> None:
        super().__init__(requests, options, prefixes)
        self._forced = forced

    def _choose(self, logits: Floats) -> Ids:
        best = super()._choose(logits)
        for row, sequence in enumerate(self._active):
            forced, length = self._forced[sequence.request], len(sequence.tokens)
            if length < len(forced):
                best[row] = forced[length]
        return best


class _ForcedBeams(BeamChoice):
    """Beam search over rows of which each has a forced start of its own length."""

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        options: ResolvedOptions,
        prefixes: Prefilled,
        forced: Sequence[Tokens],
        uncounted: int,
    ) -> None:
        super().__init__(requests, options, prefixes, model.log_normalizer or log_normalizer)
        self._forced, self._uncounted = forced, uncounted
        self._beams = Beams.start(prefixes, 1, uncounted)

    def _filter(self, beams: Beams, logits: Floats, sources: NDArray[np.intp]) -> None:
        super()._filter(beams, logits, sources)
        self._whole = super()._normalize(logits)
        length = beams.tokens.shape[-1]
        for row, source in enumerate(sources):
            forced = self._forced[source]
            if length < len(forced):
                kept = logits[row, forced[length]]
                logits[row] = -np.inf
                logits[row, forced[length]] = kept

    def _normalize(self, logits: Floats) -> Doubles:
        return self._whole
