"""Results of decoding, and their JSON form."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Term(NamedTuple):
    """A phrase of a source text, and target phrases of which one has to be in its translation.

    Attributes:
        source: the source phrase.
        targets: the target phrases.
    """

    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence.

    Attributes:
        tokens: ids without the start token, and without the end token unless ``return_end_token``.
        score: summed natural-log probability of the tokens, the end token included, divided by
            length to the power of ``length_penalty``, where length includes the end token.
            NaN with ``return_scores=False``.
        attention: (T, S) cross-attention of each token of ``tokens``, or None without
            ``return_attention``.
        token_scores: natural-log probability of every token, the end token's last, or None without
            ``return_token_scores``.
        finished: whether an end token ended it, not ``max_length``, a callback or a lack of
            allowed tokens.
        unmet: the required phrases of the row that are not in it, by their index; a phrase that
            has to occur twice and occurs once is among them.
    """

    tokens: list[int]
    score: float
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    token_scores: list[float] | None = None
    finished: bool = True
    unmet: tuple[int, ...] = ()

    def alignment(self, source: range | None = None) -> list[tuple[int, int]]:
        """For each token the source token that it attended to most, the first on a tie.

        Args:
            source: source positions to choose from; None for all.

        Returns:
            (source position, target position), in the order of the target; empty without
            ``attention``.
        """
        if self.attention is None or not self.attention.size:
            return []
        start, stop = (source.start, source.stop) if source else (0, self.attention.shape[1])
        best = self.attention[:, start:stop].argmax(-1) + start
        return [(int(s), t) for t, s in enumerate(best)]

    def to_dict(self) -> dict[str, Any]:
        """The hypothesis as JSON values; attention and token scores if there are any.

        A score of NaN becomes None, as JSON has no NaN. Attention is rounded to 6 digits.
        """
        values: dict[str, Any] = {
            "tokens": self.tokens,
            "score": None if math.isnan(self.score) else self.score,
            "finished": self.finished,
        }
        if self.token_scores is not None:
            values["token_scores"] = self.token_scores
        if self.unmet:
            values["unmet"] = list(self.unmet)
        if self.attention is not None:
            values["attention"] = [[round(float(w), 6) for w in row] for row in self.attention]
        return values


@dataclass(frozen=True)
class TranslationResult:
    """The hypotheses of one input.

    Attributes:
        text: the text of the best hypothesis; None from ``generate``.
        hypotheses: best first; never empty.
        source_tokens: source ids, special tokens included; the columns of ``attention``.
        texts: the texts of all hypotheses; empty from ``generate``.
        framing: numbers of special tokens before and after the text's own tokens in
            ``source_tokens``.
        unknown_tokens: how many of ``source_tokens`` are the unknown token: parts of the text that
            the tokenizer has no token for, such as another alphabet's, which the model cannot see.
            0 for tokenizers that write what they do not know as bytes.
        unmet_terms: the terms of the source that ``text`` does not meet.
    """

    text: str | None
    hypotheses: list[Hypothesis]
    source_tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    framing: tuple[int, int] = (0, 0)
    unknown_tokens: int = 0
    unmet_terms: tuple[Term, ...] = ()

    def alignment(self, hypothesis: int = 0) -> list[tuple[int, int]]:
        """Pair each target token with the source token it attended to most; see ``Hypothesis``.

        Special tokens of the source are left out: positions count the text's own tokens.
        """
        before, after = self.framing
        inside = range(before, len(self.source_tokens) - after)
        return [(s - before, t) for s, t in self.hypotheses[hypothesis].alignment(inside)]

    def to_dict(self, *, hypotheses: bool | None = None) -> dict[str, Any]:
        """The result as JSON values: the lines that ``tfexport translate --jsonl`` writes.

        ``text`` (None from ``generate``), ``tokens``, ``score`` and ``finished`` are those of the
        best hypothesis, with ``token_scores``, and with ``source_tokens``, ``attention`` and
        ``alignment``, if they were requested; and ``unknown_tokens`` and ``unmet_terms``, if there
        are any.

        Args:
            hypotheses: whether to list all of them, in the same form, under ``hypotheses``; None
                lists them if there are several.
        """
        values = self._describe(0)
        if self.unknown_tokens:
            values["unknown_tokens"] = self.unknown_tokens
        if self.unmet_terms:
            values["unmet_terms"] = [
                {"source": term.source, "targets": [*term.targets]} for term in self.unmet_terms
            ]
        if hypotheses or (hypotheses is None and len(self.hypotheses) > 1):
            values["hypotheses"] = [self._describe(place) for place in range(len(self.hypotheses))]
        return values

    def _describe(self, place: int) -> dict[str, Any]:
        text = self.texts[place] if self.texts else None
        values = {"text": text, **self.hypotheses[place].to_dict()}
        if "attention" in values:
            attention = values.pop("attention")
            values["source_tokens"] = self.source_tokens
            values["attention"] = attention
            values["alignment"] = moses(self.alignment(place))
        return values


def moses(alignment: list[tuple[int, int]]) -> str:
    """An alignment in Pharaoh format, ``0-0 1-2``: source position, target position."""
    return " ".join(f"{source}-{target}" for source, target in alignment)
