"""How likely given targets are: what ``Translator.score`` and ``tfexport score`` do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tfexport.errors import InputError, join_problems
from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.parallel.batches import make_batches
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, score_targets
from tfexport.runtime.text.codec import check_rows

if TYPE_CHECKING:
    from tfexport.runtime.translator import Translator

_OPTIONS = frozenset(field.name for field in fields(DecodingOptions))
SCORE_OPTIONS = frozenset({
    "length_penalty", "coverage_penalty", "return_attention", "attention_layer", "attention_head",
    "return_token_scores", "return_end_token", "batch_size", "batch_type", "max_input_length",
    "truncate",
})  # fmt: skip


class Scorer:
    """Scores pairs of a source and a target with a translator's model."""

    def __init__(self, translator: "Translator", model: Model) -> None:
        self._translator, self._model = translator, model

    def score(
        self,
        sources: Iterable[str | Sequence[int]],
        targets: Iterable[str | Sequence[int]],
        options: Mapping[str, Any],
    ) -> list[Hypothesis]:
        """See ``Translator.score``."""
        resolved = self.resolve(options)
        pairs = (
            check_rows("sources", sources, "texts or rows of ids"),
            check_rows("targets", targets, "texts or rows of ids"),
        )
        if len(pairs[0]) != len(pairs[1]):
            raise InputError(f"score: {len(pairs[0])} sources and {len(pairs[1])} targets")
        rows: list[Request | None] = []
        wanted: list[list[int]] = []
        problems = []
        for i, (source, target) in enumerate(zip(*pairs, strict=True)):
            try:
                request, ids = self.request(source, target, i, resolved)
                rows.append(request)
                wanted.append(ids)
            except InputError as error:
                problems.append(f"pair {i}: {error}")
        if problems:
            raise InputError(join_problems("score", problems))
        return self.run(rows, wanted, resolved)

    def resolve(self, options: Mapping[str, Any]) -> ResolvedOptions:
        """Options, checked; see ``Translator.score``."""
        extra = [f"{name} says how to choose tokens, and scoring chooses none"
                 for name in options if name in _OPTIONS - SCORE_OPTIONS]  # fmt: skip
        if options.get("coverage_penalty"):
            # Decoding has it weigh the hypotheses of a beam; here there is one.
            options = {"beam_size": 2, **options}
        return self._translator.resolver.resolve(options, extra=extra)[0]

    def request(
        self,
        source: str | Sequence[int],
        target: str | Sequence[int],
        number: int,
        options: ResolvedOptions,
    ) -> tuple[Request | None, list[int]]:
        """A source and the ids of its target, checked; None for a pair that is blank on both sides.

        Raises:
            InputError: naming what is wrong.
        """
        as_ids = not isinstance(source, str)
        request = self._translator.request(source, number, (), options, as_ids=as_ids)
        try:
            ids = self._translator.texts.encode_target(target)
        except InputError as error:
            raise InputError(f"target: {error}") from None
        if request is None and ids:
            raise InputError("the source is empty, and the target is not")
        limit = self._translator.manifest.limits.max_target_length
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
        end = self._translator.manifest.special_ids.eos
        for batch in make_batches(requests, options):
            chosen = [request for i in batch if (request := requests[i]) is not None]
            found = score_targets(
                self._model,
                [request.ids for request in chosen],
                [[*targets[i], end] for i in batch],
                options,
                self._model.vocab_size,
            )
            for i, made in zip(batch, found, strict=True):
                results[i] = made
        return results
