"""What decoding gives back."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence.

    Attributes:
        tokens: ids without the start token, and without the end token unless it was asked for.
        score: summed natural-log probability of the tokens, the end token included, divided by
            length to the power of ``length_penalty``. length counts the end token if there is one.
            NaN if it was left out with ``return_scores``.
        attention: (T, S), how much each token of ``tokens`` attended to each source token, or None
            if it was not asked for.
        token_scores: the natural-log probability of every token that counts, the end token's last,
            or None if it was not asked for.
        finished: an end token ended it; false where ``max_length``, a callback or a lack of
            allowed tokens did.
    """

    tokens: list[int]
    score: float
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    token_scores: list[float] | None = None
    finished: bool = True

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


@dataclass(frozen=True)
class TranslationResult:
    """What one input became.

    Attributes:
        text: of the best hypothesis; None where ids were asked for.
        hypotheses: best first; never empty.
        source_tokens: ids as the encoder saw them; the columns of ``attention``.
        texts: of all hypotheses; empty where ids were asked for.
        framing: how many of the first and of the last source tokens are no part of the text.
    """

    text: str | None
    hypotheses: list[Hypothesis]
    source_tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    framing: tuple[int, int] = (0, 0)

    def alignment(self, hypothesis: int = 0) -> list[tuple[int, int]]:
        """Which source token each target token attended to most; see ``Hypothesis.alignment``.

        Start and end token of the source are left out: positions count the text's own tokens.
        """
        before, after = self.framing
        inside = range(before, len(self.source_tokens) - after)
        return [(s - before, t) for s, t in self.hypotheses[hypothesis].alignment(inside)]


def moses(alignment: list[tuple[int, int]]) -> str:
    """An alignment as ``0-0 1-2``: source position, target position."""
    return " ".join(f"{source}-{target}" for source, target in alignment)
