"""Beam search for rows whose targets have to contain phrases.

Hypotheses that miss equally many tokens of the phrases share a bank, and the beam is divided among
the banks, so that hypotheses with more of the phrases are followed beside likelier ones with fewer.

Axes: B sentences, K hypotheses, N candidates of each, R rows of the model's batch.
Sources: Hokamp and Liu 2017 (grid beam search), Post and Vilar 2018 (dynamic beam allocation), Hu
et al. 2019 (the allocation in one sort).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import Message, Option, Problem
from tfexport.runtime.model.interface import Floats, Generated, Ids, Model, Traced
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.batch import BatchSteps, NextStep, Prefixes, prefill, run
from tfexport.runtime.search.beam import BeamChoice, Beams, Candidates, Doubles, GroupChoice, Rows
from tfexport.runtime.search.graph_search import hypotheses_of, starts_alike
from tfexport.runtime.search.logits import along, log_normalizer, topk
from tfexport.runtime.search.placed import ModelReader, Reader, place_phrases
from tfexport.runtime.search.ranking import best_first
from tfexport.runtime.search.request import Request, ResolvedOptions
from tfexport.runtime.search.required import Required
from tfexport.runtime.search.traced import TracedReader, retrace, score

# Hypotheses of a search with fewer, by the tokens of the required phrases: (tokens, hypotheses).
_WIDTHS = ((3, 4), (7, 8))
_WIDEST = 16
_NONE = -1

Search = Callable[[Model, Sequence[Request], ResolvedOptions], list[list[Hypothesis]]]


def decode_constrained(
    model: Model, requests: Sequence[Request], options: ResolvedOptions, search: Search
) -> list[list[Hypothesis]]:
    """Decode rows of which some have required phrases.

    The result of a row is that of the search without its phrases, if each hypothesis meets them;
    else that of the constrained search.

    Args:
        model: the model that decodes.
        requests: the rows; their prefixes are equally long.
        options: how to decode them.
        search: the search without phrases.
    """
    # What the encoder gives is computed once for all that follows.
    traces = options.beam_size == 1 and options.fits_greedy_graph
    if model.searches_encoded and not traces and not options.encoder_no_repeat_ngram_size:
        requests = _encoded(model, requests)
    found, traced = _searched(model, requests, options, search)
    lacking = dict[int, Request]()
    for place, request in enumerate(requests):
        if request.required is None:
            continue
        found[place] = [_checked(made, request.required) for made in found[place]]
        if any(made.unmet for made in found[place]):
            lacking[place] = request
    if lacking and traced is None:
        rows = _encoded(model, list(lacking.values()))
        lacking = dict(zip(lacking, rows, strict=True))
    placed = _placed(model, lacking, found, options, traced)
    if traced is not None:
        rest = {place: made[0] for place, made in enumerate(found) if place not in placed}
        for place, scored in score(traced, rest, requests[0].prefix, options):
            found[place] = [scored]
    for place, hypotheses in placed.items():
        found[place] = hypotheses
    unplaced = {place: row for place, row in lacking.items() if place not in placed}
    for place, hypotheses in _followed(model, unplaced, options):
        found[place] = _fewest_unmet(found[place], hypotheses, options.num_hypotheses)
    return found


def _followed(
    model: Model, rows: Mapping[int, Request], options: ResolvedOptions
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of rows by the constrained search, but of those for which there is no room."""
    followed, of_widths = dict[int, Request](), dict[int, list[int]]()
    for place, row in rows.items():
        if (reachable := _within(row, options)) is not None:
            followed[place] = _admitting(row, reachable)
            of_widths.setdefault(_width(reachable, options), []).append(place)
    for width, places in of_widths.items():
        wider = dataclasses.replace(options, beam_size=width)
        made = _run(model, [followed[place] for place in places], wider)
        for place, hypotheses in zip(places, made, strict=True):
            required = rows[place].required
            assert required is not None
            yield place, [_checked(each, required) for each in hypotheses]


def _encoded(model: Model, requests: Sequence[Request]) -> Sequence[Request]:
    """Rows with what the encoder gives; they are all of its results, or none."""
    if requests[0].encoded is not None:
        return requests
    sources = model.encoded([request.source for request in requests])
    return [
        dataclasses.replace(request, encoded=source)
        for request, source in zip(requests, sources, strict=True)
    ]


def _searched(
    model: Model, requests: Sequence[Request], options: ResolvedOptions, search: Search
) -> tuple[list[list[Hypothesis]], Traced | None]:
    """The hypotheses of rows, whatever they require.

    If the search has a trace, that too; the hypotheses have no scores then.
    """
    if options.beam_size == 1 and options.fits_greedy_graph and starts_alike(requests, options):
        rows = [request.source for request in requests]
        traced = model.trace(rows, options.max_length, options.going)
        if traced is not None:
            sequences, left = traced
            unscored = np.full(len(rows), np.nan, np.float32)
            made = hypotheses_of(Generated(sequences, unscored), options.eos_id, options)
            return [[each] for each in made], left
    free = [
        request if request.required is None else dataclasses.replace(request, required=None)
        for request in requests
    ]
    return search(model, free, options), None


def _placed(
    model: Model,
    rows: Mapping[int, Request],
    found: Sequence[list[Hypothesis]],
    options: ResolvedOptions,
    traced: Traced | None,
) -> dict[int, list[Hypothesis]]:
    """The hypotheses with all phrases of rows in which these can be placed.

    Args:
        model: the model that decodes.
        rows: rows that lack phrases, by their place in the batch.
        found: the hypotheses of the batch.
        options: how they were decoded.
        traced: the trace of the batch, if there is one.
    """
    lacking = [
        (place, made)
        for place, row in rows.items()
        if row.required is not None and row.required.places is not None
        for made in found[place]
        if made.unmet
    ]
    without = {} if traced is None else traced.without
    results: dict[int, list[Hypothesis]] = {}
    for part, trace in (
        ([each for each in lacking if each[0] not in without], traced),
        ([each for each in lacking if each[0] in without], None),
    ):
        for place, after in _placed_alike(model, rows, part, options, trace):
            results.setdefault(place, []).append(after)
    for place, hypotheses in results.items():
        kept = {tuple(each.tokens): each for each in found[place] if not each.unmet}
        kept.update((tuple(each.tokens), each) for each in hypotheses)
        results[place] = best_first(kept.values())[: options.num_hypotheses]
    return results


def _placed_alike(
    model: Model,
    rows: Mapping[int, Request],
    lacking: Sequence[tuple[int, Hypothesis]],
    options: ResolvedOptions,
    traced: Traced | None,
) -> Iterator[tuple[int, Hypothesis]]:
    """Hypotheses with the phrases that they lacked; see ``_placed``."""
    if not lacking:
        return
    found_rows, before = [place for place, _ in lacking], [made for _, made in lacking]
    of_rows = [
        _admitting(row, row.required)
        for row in (rows[place] for place in found_rows)
        if row.required is not None
    ]
    reader: Reader = ModelReader(model, options)
    if traced is None and options.fits_reading and starts_alike(of_rows, options):
        traced = retrace(model, of_rows, before, options)
        found_rows = list(range(len(lacking)))
    if traced is not None:
        reader = TracedReader(traced, found_rows, options, reader)
    made = place_phrases(reader, of_rows, before, options)
    for (place, _), after in zip(lacking, made, strict=True):
        if after is not None:
            yield place, after


def unsupported(options: ResolvedOptions) -> list[Problem]:
    """The problems of options that have no meaning for rows with required phrases."""
    # Rows are many, and wrong ones few.
    if options.takes_required:
        return []
    names = [
        name
        for name, used in (
            ("sampling", options.sampling),
            ("return_alternatives", options.return_alternatives),
            ("beam_groups", options.beam_groups > 1),
            ("callback", options.callback is not None),
        )
        if used
    ]
    text = " excludes required phrases and terms, which greedy and beam search take"
    return [Problem(None, Message(Option(name), text)) for name in names]


def why_banned(phrase: Sequence[int], options: ResolvedOptions) -> Message | None:
    """Why no target contains a phrase; None if one may."""
    if not options.suppress_sequences and options.never_inside.isdisjoint(phrase):
        return None
    ended = [token for token in phrase if token in options.end_tokens]
    if ended:
        return Message(f"holds the end token {ended[0]}")
    suppressed = [token for token in phrase if token in options.suppress_tokens]
    if suppressed:
        return Message(f"holds the token {suppressed[0]}, which is among ",
                       Option("suppress_tokens"))  # fmt: skip
    windows = {
        tuple(phrase[start : start + len(banned)])
        for banned in options.suppress_sequences
        for start in range(len(phrase))
    }
    found = [banned for banned in options.suppress_sequences if tuple(banned) in windows]
    if found:
        return Message(f"holds the tokens {list(found[0])}, which are among ",
                       Option("suppress_sequences"))  # fmt: skip
    return None


def _checked(made: Hypothesis, required: Required) -> Hypothesis:
    unmet = required.unmet(made.tokens)
    if unmet == made.unmet:
        return made
    return Hypothesis(
        made.tokens, made.score, made.attention, made.token_scores, made.finished, unmet
    )


def _fewest_unmet(
    free: list[Hypothesis], constrained: list[Hypothesis], count: int
) -> list[Hypothesis]:
    """The best hypotheses of both searches, of those that miss the fewest phrases."""
    fewest = min(len(made.unmet) for made in (*free, *constrained))
    if not any(len(made.unmet) == fewest for made in constrained):
        return free
    kept = dict[tuple[object, ...], Hypothesis]()
    for made in (*constrained, *free):
        if len(made.unmet) == fewest:
            kept.setdefault((*made.tokens, made.finished), made)
    return best_first(kept.values())[:count]


def _room(request: Request, options: ResolvedOptions) -> int:
    return options.max_length - len(request.prefix) - (options.last_token is not None)


def _within(request: Request, options: ResolvedOptions) -> Required | None:
    """The requirements that fit within the length; None if there are none."""
    required = request.required
    assert required is not None
    room = _room(request, options)
    while required.requirements:
        progress = required.progress
        state = progress.after(_counted(request, options))
        if progress.fits(state, room):
            return required if progress.missing[state] else None
        required = dataclasses.replace(required, requirements=required.requirements[:-1])
    return None


def _counted(request: Request, options: ResolvedOptions) -> tuple[int, ...]:
    """The prefix without a forced first token, which is a language's or a start token."""
    forced = request.prefix[:1] == (options.first_token,)
    return request.prefix[forced:]


def _admitting(request: Request, required: Required) -> Request:
    """The row with these requirements, and a shortlist that has their tokens."""
    candidates = request.candidates
    if candidates is None and required is request.required:
        return request
    if candidates is not None:
        phrases = [each.phrases + each.first for each in required.requirements]
        tokens = [token for each in phrases for phrase in each for token in phrase]
        candidates = np.union1d(candidates, np.array(tokens, np.int64))
    return dataclasses.replace(request, required=required, candidates=candidates)


def _width(required: Required, options: ResolvedOptions) -> int:
    """Hypotheses that are followed; it depends on the row alone, not on its batch."""
    tokens = sum(each.shortest for each in required.requirements)
    width = next((width for most, width in _WIDTHS if tokens <= most), _WIDEST)
    return max(options.beam_size, width)


def _run(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    prefilled = prefill(model, requests, options)
    if prefilled.logits is None:
        return [[] for _ in requests]
    normalizer = model.log_normalizer or log_normalizer
    choice = ConstrainedChoice(requests, options, prefilled, normalizer)
    return run(choice, BatchSteps(model, requests, options, prefilled))


class ConstrainedChoice(BeamChoice):
    """Beam search over hypotheses that can still meet the required phrases within the length."""

    def __init__(
        self,
        requests: Sequence[Request],
        options: ResolvedOptions,
        prefixes: Prefixes,
        normalizer: Callable[[Floats], Doubles] = log_normalizer,
    ) -> None:
        """Start after the prefixes; every request has ``required``."""
        super().__init__(requests, options, prefixes, normalizer)
        self._progress = [row.required.progress for row in requests if row.required is not None]
        starts = [
            progress.after(_counted(row, options))
            for progress, row in zip(self._progress, requests, strict=True)
        ]
        self._most = [
            progress.missing[state] for progress, state in zip(self._progress, starts, strict=True)
        ]
        self._states = np.array(starts, np.intp)[:, None]  # (B, K)

    def take(
        self, logits: Floats, attention: Floats | None = None
    ) -> tuple[list[Step], NextStep | None]:
        """See ``Choice``."""
        before = self._sentences
        steps, then = super().take(logits, attention)
        if then is not None:
            self._states = self._states[np.isin(before, self._sentences)]
        return steps, then

    def _choose(self, beams: Beams, logits: Floats, sources: Rows) -> list[GroupChoice]:
        self._filter(beams, logits, sources)
        normalizer = self._normalize(logits)
        ids, scores = self._candidates(beams, logits, normalizer)  # (R, N) each
        rows = beams.rows[:, 0]
        ids, scores = ids[rows], scores[rows]  # (B, K, N)
        totals = beams.sums[:, 0, :, None] + scores
        states, banks = self._follow(ids, totals, beams.tokens.shape[-1] + 1)
        shape = (len(rows), -1)
        parents = np.broadcast_to(np.arange(ids.shape[1])[:, None], ids.shape[1:])
        parents = np.broadcast_to(parents.reshape(-1), (len(rows), parents.size))
        every = Candidates(
            totals.reshape(shape),
            parents,
            ids.reshape(shape),
            scores.reshape(shape),
            self._options.ends(ids).reshape(shape) & np.isfinite(totals.reshape(shape)),
        )
        flat = banks.reshape(shape)
        # What ends competes with what goes on from the same bank, as in a search without phrases.
        whole = np.where(flat == 0, every.totals, -np.inf)
        order = np.lexsort((every.tokens, every.parents, -whole), axis=-1)[:, : self._width]
        ranked = every.take(order)
        ranked.totals = along(whole, order)
        unfinished = np.where(every.ends, -np.inf, every.totals)
        order = _allocate(every, flat, unfinished, self._width)
        followed = every.take(order)
        followed.totals = along(unfinished, order)
        self._states = along(states.reshape(shape), order)
        missing = self._width - order.shape[-1]
        if missing > 0:
            self._states = np.pad(self._states, ((0, 0), (0, missing)))
        return [GroupChoice(ranked.pad(self._width), followed.pad(self._width))]

    def _candidates(self, beams: Beams, logits: Floats, normalizer: Doubles) -> tuple[Ids, Doubles]:
        """The best tokens of each row, and those that the phrases need: (R, N) each."""
        added: list[tuple[int, ...]] = [()] * len(logits)
        unmet = []
        for place, sentence in enumerate(self._sentences):
            progress = self._progress[sentence]
            for row, state in zip(beams.rows[place, 0], self._states[place], strict=True):
                if progress.missing[state]:
                    unmet.append(row)
                    added[row] = progress.next_tokens[state]
        # No hypothesis ends before it has all phrases. Probabilities stay as they are.
        logits[np.array(unmet, np.intp)[:, None], list(self._options.end_tokens)] = -np.inf
        count = min(logits.shape[-1], self._width * (1 + len(self._options.end_tokens)))
        ids, values = topk(logits, count)
        self._stuck = ~np.isfinite(values[:, 0])
        most = max(map(len, added), default=0)
        more = np.array([(*each, *[_NONE] * (most - len(each))) for each in added], np.int64)
        more = more.reshape(len(logits), most)
        new = (more != _NONE) & ~(more[:, :, None] == ids[:, None, :]).any(-1)
        found = along(logits, np.maximum(more, 0))
        values = np.concatenate([values, np.where(new, found, -np.inf)], axis=-1)
        finite = np.where(np.isfinite(normalizer), normalizer, 0)[:, None]
        scores = np.where(np.isfinite(values), values - finite, -np.inf)
        return np.concatenate([ids, np.maximum(more, 0)], axis=-1), scores

    def _follow(
        self, ids: Ids, totals: Doubles, length: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The state and the bank of each candidate (B, K, N); those that cannot end well get -inf.

        Args:
            ids: (B, K, N).
            totals: (B, K, N), changed in place.
            length: tokens of the candidates.
        """
        options = self._options
        room = options.max_length - length
        if options.last_token is not None:
            room = max(0, room - 1)
        states, banks = np.zeros(ids.shape, np.intp), np.zeros(ids.shape, np.intp)
        alive: NDArray[np.bool_] = np.atleast_2d(np.isfinite(totals).any(-1))
        ends = frozenset(options.end_tokens)
        for place, sentence in enumerate(self._sentences):
            progress, most = self._progress[sentence], self._most[sentence]
            symbols, missing = progress.symbols, progress.missing
            parts = -(-most // (self._width - 1)) if most >= self._width else 1
            for beam in np.flatnonzero(alive[place]):
                state = int(self._states[place, beam])
                steps = progress.steps[state]
                tokens = ids[place, beam].tolist()
                then = [state if token in ends else steps[symbols[token]] for token in tokens]
                states[place, beam] = then
                left = [missing[each] for each in then]
                banks[place, beam] = left
                if max(left) > room:
                    for rank, each in enumerate(then):
                        if left[rank] > room and not progress.fits(each, room):
                            totals[place, beam, rank] = -np.inf
            if parts > 1:
                banks[place] = -(-banks[place] // parts)
        return states, banks


def _allocate(every: Candidates, banks: NDArray[np.intp], totals: Doubles, count: int) -> Rows:
    """The order in which candidates (B, N) are taken: the best of each bank, then the second, ….

    Among the best of banks, the likelier is first; on a tie that of the better hypothesis, then
    the lower id.
    """
    order = np.lexsort((every.tokens, every.parents, -totals, banks), axis=-1)
    of_bank = along(banks, order)
    places = np.broadcast_to(np.arange(order.shape[-1]), order.shape)
    begins = np.ones(order.shape, bool)
    begins[:, 1:] = of_bank[:, 1:] != of_bank[:, :-1]
    ranks = places - np.maximum.accumulate(np.where(begins, places, 0), axis=-1)
    found = along(totals, order)
    ranks = np.where(np.isfinite(found), ranks, order.shape[-1])
    chosen = np.lexsort(
        (
            along(every.tokens, order),
            along(every.parents, order),
            -found,
            ranks,
        ),
        axis=-1,
    )[:, :count]
    return along(order, chosen)
