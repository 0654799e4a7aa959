"""Random batches, each compared with its sentences alone.

Neighbours that finish at once are what batches go wrong by, so they are drawn on purpose: end
tokens that are likely, prefixes that are whole translations, limits of one token, patience that one
hypothesis satisfies.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfexport.runtime import Hypothesis, Translator

TOLERANCE = 1e-4  # of scores


@dataclass(frozen=True)
class Drawn:
    """One batch.

    Attributes:
        rows: source ids.
        prefixes: of the targets, one a row.
        options: of decoding.
        mapped: decode with the vocabulary map.
    """

    rows: list[list[int]]
    prefixes: list[list[int] | None]
    options: dict[str, Any]
    mapped: bool


class Batches:
    """Two translators over one bundle, with and without a vocabulary map."""

    def __init__(self, bundle: Path) -> None:
        self._plain = Translator(bundle, threads=1)
        limits = self._plain.manifest.limits
        self._source = list(range(4, limits.source_vocab_size))
        self._target = list(range(4, limits.target_vocab_size))
        self._end = self._plain.manifest.special_ids.eos
        draw = random.Random(0)
        allowed: Mapping[int, list[int]] = {
            -1: [self._end],
            **{i: draw.sample(self._target, 3) for i in self._source},
        }
        self._mapped = Translator(bundle, threads=1, vocabulary_map=allowed)

    def draw(self, seed: int) -> Drawn:
        """The batch of this seed."""
        draw = random.Random(seed)
        rows = [draw.choices(self._source, k=draw.randint(1, 6)) for _ in range(draw.randint(2, 5))]
        if draw.random() < 0.2:
            rows[-1] = list(rows[0])
        options = {**self._common(draw), **draw.choice(_SEARCHES)(draw)}
        prefixes: list[list[int] | None] = [None] * len(rows)
        if draw.random() < 0.5:
            prefixes = self._prefixes(draw, rows, options["max_length"])
        return Drawn(rows, prefixes, options, mapped=draw.random() < 0.3)

    def draw_forced(self, seed: int) -> Drawn:
        """The batch of this seed, with options besides that models of Hugging Face have."""
        drawn, draw = self.draw(seed), random.Random(f"forced {seed}")
        options = {**drawn.options, **self._forced(draw)}
        if options.get("search_rules") and options.get("beam_size", 1) > 1:
            _by_other_rules(draw, options)
        longest = max(len(prefix or ()) for prefix in drawn.prefixes)
        ends = options.get("end_tokens", ())
        if options.get("first_token") in ends or longest >= options["max_length"]:
            options.pop("first_token", None)
        return replace(drawn, options=options)

    def _common(self, draw: random.Random) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_length": draw.choice([1, 2, 4, 8, 12]),
            "length_penalty": draw.choice([0.0, 1.0, 1.0, -0.5, 2.0]),
            "return_token_scores": draw.random() < 0.5,
        }
        if draw.random() < 0.4:
            options["end_tokens"] = [self._end, *draw.sample(self._target, draw.randint(1, 5))]
        if draw.random() < 0.2:
            options["min_length"] = draw.randint(0, options["max_length"])
        if draw.random() < 0.2:
            options["no_repeat_ngram_size"] = draw.randint(1, 4)
        if draw.random() < 0.2:
            options["repetition_penalty"] = draw.choice([0.7, 1.3, 3.0])
        if draw.random() < 0.2:
            options["suppress_tokens"] = draw.sample(self._target, draw.randint(1, 9))
        if draw.random() < 0.2:
            options["return_attention"] = True
        return options

    def _forced(self, draw: random.Random) -> dict[str, Any]:
        """What a model of Hugging Face adds: forced tokens, and bans of its own."""
        options: dict[str, Any] = {}
        if draw.random() < 0.2:
            options["first_token"] = draw.choice(self._target)
        if draw.random() < 0.2:
            options["last_token"] = draw.choice([self._end, self._end, *self._target[:2]])
        if draw.random() < 0.2:
            options["suppress_first_tokens"] = draw.sample([self._end, *self._target], 4)
        if draw.random() < 0.2:
            options["encoder_no_repeat_ngram_size"] = draw.randint(1, 3)
        if draw.random() < 0.3:
            options["search_rules"] = "transformers"
        return options

    def _prefixes(
        self, draw: random.Random, rows: list[list[int]], longest: int
    ) -> list[list[int] | None]:
        """Tokens of one length each: the model's own translation, cut, or any."""
        length = draw.randint(0, longest)
        own = self._plain.generate(rows, max_length=max(1, longest))
        prefixes: list[list[int] | None] = []
        for made in own:
            tokens = made.hypotheses[0].tokens
            if len(tokens) < length or draw.random() < 0.2:
                tokens = draw.choices(self._target, k=length)
            prefixes.append(tokens[:length])
        return prefixes

    def differences(self, drawn: Drawn) -> list[str]:
        """How the batch differs from each of its sentences alone, in words; none if it is right."""
        translator = self._mapped if drawn.mapped else self._plain
        options = dict(drawn.options)
        ends = options.get("end_tokens", [self._end])
        prefixes = [
            None if prefix is None else [token for token in prefix if token not in ends]
            for prefix in drawn.prefixes
        ]
        together = translator.generate(drawn.rows, target_prefix=prefixes, **options)
        found = []
        for number, row in enumerate(drawn.rows):
            # Draws depend on a row's number, so it keeps its place: the others are empty.
            alone_rows: list[list[int]] = [[] for _ in drawn.rows]
            alone_rows[number] = row
            alone = translator.generate(alone_rows, target_prefix=prefixes, **options)[number]
            ours = together[number].hypotheses
            if not _equal(ours, alone.hypotheses):
                found.append(f"row {number}: {_shown(ours)}, alone {_shown(alone.hypotheses)}")
        return found


def _equal(ours: list[Hypothesis], alone: list[Hypothesis]) -> bool:
    return len(ours) == len(alone) and all(
        one.tokens == two.tokens
        and one.finished == two.finished
        and math.isclose(one.score, two.score, rel_tol=0, abs_tol=TOLERANCE)
        for one, two in zip(ours, alone, strict=True)
    )


def _shown(hypotheses: list[Hypothesis]) -> str:
    return str([(made.tokens, round(made.score, 5)) for made in hypotheses])


def _greedy(draw: random.Random) -> dict[str, Any]:
    return {}


def _sampling(draw: random.Random) -> dict[str, Any]:
    return {
        "sampling": True,
        "seed": draw.randint(0, 99),
        "num_hypotheses": draw.randint(1, 3),
        "temperature": draw.choice([0.5, 1.0, 2.0]),
        "top_k": draw.choice([0, 0, 3]),
        "top_p": draw.choice([1.0, 0.8]),
    }


def _beam(draw: random.Random) -> dict[str, Any]:
    size = draw.randint(2, 6)
    options: dict[str, Any] = {"beam_size": size, "num_hypotheses": draw.randint(1, size)}
    if draw.random() < 0.5:
        return {**options, "patience": draw.choice([0.1, 0.5, 1.0, 2.0])}
    return {**options, "early_stopping": False}


def _groups(draw: random.Random) -> dict[str, Any]:
    groups = draw.randint(2, 3)
    size = groups * draw.randint(1, 2)
    return {
        "beam_size": size,
        "beam_groups": groups,
        "diversity_penalty": draw.choice([0.0, 0.5, 2.0]),
        "num_hypotheses": draw.randint(1, size),
    }


def _by_other_rules(draw: random.Random, options: dict[str, Any]) -> None:
    """Make the options of a beam those that the rules of transformers have."""
    for name in ("patience", "beam_groups", "diversity_penalty"):
        options.pop(name, None)
    options["early_stopping"] = draw.random() < 0.5
    options["exhaustive"] = not options["early_stopping"] and draw.random() < 0.5
    options["renormalize_logits"] = draw.random() < 0.5


def _alternatives(draw: random.Random) -> dict[str, Any]:
    options = {
        "return_alternatives": True,
        "num_hypotheses": draw.randint(1, 4),
        "min_alternative_probability": draw.choice([0.0, 0.05]),
    }
    inner = draw.choice([_greedy, _sampling, _beam])(draw)
    inner.pop("num_hypotheses", None)
    return {**options, **inner}


_SEARCHES = (_greedy, _sampling, _beam, _beam, _groups, _alternatives)
