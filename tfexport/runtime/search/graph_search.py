"""Greedy and beam search inside a graph: the complete search of a batch in one call.

No Python runs between steps. ``StepwiseSearch`` and ``BeamSearch`` give the same results.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tfexport.runtime.model.abandoned import Going
from tfexport.runtime.model.interface import BeamRecord, BeamRules, Generated, Model, Source
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.ranking import (
    best_first,
    length_at_best,
    make_hypothesis,
    normalize,
    stopping_count,
)
from tfexport.runtime.search.request import Request, ResolvedOptions

# Axes: T steps, B sentences, K beam size, N candidates of a step, best first: K, and K more for
# each end token.


class Backtrace:
    """The recorded candidates (T, B, N) of a beam search, with their parents."""

    def __init__(
        self, record: BeamRecord, options: ResolvedOptions, prefix: tuple[int, ...] = ()
    ) -> None:
        """Take a record.

        Args:
            record: of a search.
            options: that it searched by.
            prefix: the forced first token, if there is one.
        """
        self._options, self._width, self._prefix = options, options.beam_size, prefix
        self._ends = options.ends(record.tokens)
        # (T, B, K): index of the candidate that becomes hypothesis k of the next step. These are
        # the candidates that do not end, best first.
        followed = np.argsort(self._ends, axis=-1, kind="stable")[..., : self._width]
        self._followed = followed.tolist()
        self._tokens = record.tokens.tolist()
        self._parents = record.parents.tolist()
        self._log_probs = record.log_probs
        self._steps: list[int] = record.steps.tolist()

    def hypotheses(self, sentence: int) -> list[Hypothesis]:
        """The finished hypotheses of one sentence, best first."""
        found: list[Hypothesis] = []
        for step, ranks in self._complete(sentence):
            traced = [self._trace(sentence, step, rank) for rank in ranks]
            found += [made for made in traced if made is not None]
        return best_first(found)[: self._options.num_hypotheses]

    def _complete(self, sentence: int) -> Iterator[tuple[int, list[int]]]:
        """For each step the ranks of candidates that end or have ``max_length`` tokens."""
        steps = self._steps[sentence]
        for step, ends in enumerate(self._ends[:steps, sentence, : self._width]):
            last = len(self._prefix) + step + 1 >= self._options.max_length
            yield step, [rank for rank, end in enumerate(ends) if end or last]

    def _trace(self, sentence: int, step: int, rank: int) -> Hypothesis | None:
        """Follow a candidate back to the start token; None if it is a placeholder."""
        finished = bool(self._ends[step, sentence, rank])
        tokens, scores = [], []
        while True:
            tokens.append(self._tokens[step][sentence][rank])
            scores.append(self._log_probs[step, sentence, rank])
            parent = self._parents[step][sentence][rank]
            if step == 0:
                break
            step -= 1
            rank = self._followed[step][sentence][parent]
        forced = [0.0 for _ in self._prefix]  # and so certain
        in_order = np.array([*forced, *scores[::-1]], np.float64)
        # Before the first step there is one hypothesis, the start token: none has another parent.
        if parent > 0 or not np.isfinite(in_order).all():
            return None
        row = [*self._prefix, *tokens[::-1]]
        return make_hypothesis(row, in_order, None, finished, self._options)


def starts_alike(requests: Sequence[Request], options: ResolvedOptions) -> bool:
    """Whether rows are without shortlists, rules and prefixes, except for a forced first token.

    Searches in one call take no others.
    """
    own = ((), (options.first_token,))
    return all(
        row.prefix in own and row.candidates is None and row.rule is None for row in requests
    )


def truncate_at_eos(row: list[int], eos_id: int) -> list[int]:
    """The tokens before the first end token; all of them if there is none."""
    return row[: row.index(eos_id)] if eos_id in row else row


def greedy_in_one_call(
    model: Model,
    rows: Sequence[Source],
    max_length: int,
    eos_id: int,
    options: DecodingOptions | None = None,
    going: Going | None = None,
) -> list[Hypothesis]:
    """Decode rows greedily, one hypothesis a row.

    Args:
        model: a model with a generate graph.
        rows: sources, none of them empty.
        max_length: the most tokens of a row.
        eos_id: the model's own end token.
        options: scoring, least length, and whether the end token is kept.
        going: see ``Model.generate``.
    """
    options = options or DecodingOptions()
    least = options.min_length
    found = model.generate(rows, max_length, options.return_scores, going, least)
    return hypotheses_of(found, eos_id, options)


def hypotheses_of(found: Generated, eos_id: int, options: DecodingOptions) -> list[Hypothesis]:
    """The hypothesis of each row of a greedy search in one call."""
    hypotheses = []
    for row, mean in zip(found.sequences.tolist(), found.scores.tolist(), strict=True):
        tokens = truncate_at_eos(row, eos_id)
        finished = len(tokens) < len(row)
        length = len(tokens) + finished
        score = normalize(mean * length, length, options.length_penalty)
        if finished and options.return_end_token:
            tokens = [*tokens, eos_id]
        hypotheses.append(Hypothesis(tokens, score, finished=finished))
    return hypotheses


def beam_in_one_call(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """Decode requests with a beam; for each its hypotheses, best first.

    Args:
        model: a model that ``has_beam``.
        requests: rows without candidates; their prefixes are the forced first token, or empty.
        options: options for which ``fits_beam_rules`` is true.

    Raises:
        NoTokenError: some row has no allowed token.
    """
    prefix = requests[0].prefix
    rows = [request.source for request in requests]
    rules = make_rules(options, prefix)
    enough, most = stopping_count(options), options.max_length
    record = model.beam(rows, options.beam_size, enough, most, rules, options.going)
    backtrace = Backtrace(record, options, prefix)
    return [backtrace.hypotheses(sentence) for sentence in range(len(requests))]


def make_rules(options: ResolvedOptions, prefix: tuple[int, ...]) -> BeamRules:
    """The rules of a search whose rows start with ``prefix``, a forced first token or nothing."""
    return BeamRules(
        ends=tuple(dict.fromkeys(options.end_tokens)),
        start=options.bos_id,
        stop="early" if options.early_stopping else length_at_best(options),
        length_penalty=options.length_penalty,
        on_log_probs=options.by_transformers,
        renormalize=options.renormalize_logits,
        first_token=prefix[0] if prefix else None,
        last_token=options.last_token,
        min_length=options.min_length,
        ngram=options.no_repeat_ngram_size,
        source_ngram=options.encoder_no_repeat_ngram_size,
        repetition_penalty=options.repetition_penalty,
        suppressed=options.suppress_tokens,
        suppressed_first=options.suppress_first_tokens,
        sequences=options.suppress_sequences,
    )
