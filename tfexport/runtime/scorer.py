"""Scoring: the log-probabilities of given targets, by teacher forcing.

Axes: B batch, S source, T target, V vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfexport.errors import InputError, Message, Option, Problem, join_problems
from tfexport.runtime.engine import Engine
from tfexport.runtime.model.interface import Floats, Model
from tfexport.runtime.options import DEFAULTS, ScoringKeywords
from tfexport.runtime.parallel.workers import make_batches
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.search.batch import advance
from tfexport.runtime.search.logits import LOGITS_AT_ONCE, token_log_probs
from tfexport.runtime.search.ranking import make_hypothesis
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair, check_rows, without_own_end

_SEARCH_OPTIONS = frozenset(DEFAULTS) - frozenset(ScoringKeywords.__annotations__)


class Scorer:
    """Scores pairs of source and target with an engine's model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def score(
        self,
        sources: Iterable[str | Sequence[int]],
        targets: Iterable[str | Sequence[int]],
        keywords: Mapping[str, Any],
        language_pair: LanguagePair = NO_LANGUAGES,
    ) -> list[Hypothesis]:
        """See ``Translator.score``."""
        pairs = (
            check_rows("sources", sources, "texts or rows of ids"),
            check_rows("targets", targets, "texts or rows of ids"),
        )
        as_ids = not any(isinstance(row, str) for rows in pairs for row in rows)
        options = self.resolve(keywords, language_pair._replace(as_ids=as_ids))
        if len(pairs[0]) != len(pairs[1]):
            raise InputError(f"score: {len(pairs[0])} sources and {len(pairs[1])} targets")
        rows: list[Request | None] = []
        wanted: list[list[int]] = []
        problems = []
        for i, (source, target) in enumerate(zip(*pairs, strict=True)):
            try:
                request, ids = self.request(source, target, i, options)
                rows.append(request)
                wanted.append(ids)
            except InputError as error:
                problems.append(Message(f"pair {i}: ", error.message))
        if problems:
            raise InputError(join_problems("score", problems))
        return self.run(rows, wanted, options)

    def resolve(
        self, keywords: Mapping[str, Any], language_pair: LanguagePair = NO_LANGUAGES
    ) -> ResolvedOptions:
        """Check and resolve options; see ``Translator.score``.

        The bundle's own defaults of search have no effect; a forced first token is added before a
        target text.
        """
        text = " chooses tokens, and scoring does not choose any"
        extra = [
            Problem(None, Message(Option(name), text))
            for name in keywords
            if name in _SEARCH_OPTIONS
        ]
        if "coverage_penalty" in keywords:
            # ``check_options`` requires a beam with it, which scoring does not have.
            keywords = {"beam_size": 2, **keywords}
        return self._engine.resolver.resolve(keywords, extra=extra, language_pair=language_pair)[0]

    def request(
        self,
        source: str | Sequence[int],
        target: str | Sequence[int],
        number: int,
        options: ResolvedOptions,
    ) -> tuple[Request | None, list[int]]:
        """Check a source and its target; return None if both are blank.

        Raises:
            InputError: naming what is wrong.
        """
        as_ids = not isinstance(source, str)
        request = self._engine.request(source, number, (), options, as_ids=as_ids)
        try:
            texts = self._engine.texts
            ids = texts.encode_target(target)
            if isinstance(target, str) and ids:
                end = self._engine.manifest.special_ids.eos
                ids = without_own_end(ids, texts.target, [end])
            if isinstance(target, str) and ids and options.first_token not in (None, ids[0]):
                assert options.first_token is not None
                ids = [options.first_token, *ids]
        except InputError as error:
            raise InputError(Message("target: ", error.message)) from None
        if request is None and ids:
            raise InputError("the source is empty, and the target is not")
        limit = self._engine.manifest.limits.max_target_length
        if limit is not None and len(ids) + 1 > limit:
            raise InputError(
                f"target: {len(ids)} tokens and the end token are more than the {limit} that the "
                "model takes"
            )
        return request, ids

    def run(
        self,
        requests: Sequence[Request | None],
        targets: Sequence[list[int]],
        options: ResolvedOptions,
    ) -> list[Hypothesis]:
        """Score checked pairs; see ``request``."""
        results = [Hypothesis([], 0.0) for _ in requests]
        model, end = self._engine.model, self._engine.manifest.special_ids.eos
        for batch in make_batches(requests, options):
            chosen = [request for i in batch if (request := requests[i]) is not None]
            found = score_targets(
                model,
                [request.ids for request in chosen],
                [[*targets[i], end] for i in batch],
                options,
                model.vocab_size,
            )
            for i, made in zip(batch, found, strict=True):
                results[i] = made
        return results


def score_targets(
    model: Model,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    options: ResolvedOptions,
    vocab_size: int,
) -> list[Hypothesis]:
    """Score one batch.

    Args:
        model: the model of the bundle.
        sources: ids as the encoder takes them, none empty.
        targets: ids without the start token, with the end token if it is to be scored.
        options: length and coverage penalty, and what to return; logit filters have no effect.
        vocab_size: V.
    """
    state = model.encode(sources)
    longest = max(len(target) for target in targets)
    given = np.full((len(targets), longest + 1), options.bos_id, np.int64)
    for row, target in enumerate(targets):
        given[row, 1 : len(target) + 1] = target
    width = max(1, LOGITS_AT_ONCE // (len(targets) * vocab_size))
    scores = np.zeros((len(targets), longest))
    attention: list[Floats] = []
    for start in range(0, longest, width):
        part = given[:, start : min(start + width, longest)]
        logits, weights = advance(model, part, state, options)
        if weights is not None:
            attention.append(weights)
        for i in range(part.shape[1]):
            scores[:, start + i] = token_log_probs(logits[:, i], given[:, start + i + 1])
    attended = np.concatenate(attention, axis=1) if attention else None
    return [
        make_hypothesis(
            list(target),
            scores[row, : len(target)],
            None if attended is None else attended[row, : len(target), : len(sources[row])],
            bool(target) and target[-1] in options.end_tokens,
            options,
        )
        for row, target in enumerate(targets)
    ]
