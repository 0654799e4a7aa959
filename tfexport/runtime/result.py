"""What decoding gives back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence.

    Attributes:
        tokens: ids without start and end token.
        score: mean natural-log probability of the tokens, the end token included.
        attention: (T, S) cross-attention, or None if it was not asked for.
    """

    tokens: list[int]
    score: float
    attention: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class TranslationResult:
    """What one input became.

    Attributes:
        text: of the best hypothesis; None where ids were asked for.
        hypotheses: best first; never empty.
    """

    text: str | None
    hypotheses: list[Hypothesis]
