"""One row to decode."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Request:
    """One row to decode.

    Attributes:
        ids: source ids as the encoder sees them; not empty.
        number: of the row in its call, which seeds its random numbers.
        prefix: the forced beginning of the target.
        candidates: ascending ids that may be chosen (a shortlist); None for the whole vocabulary.
        sample: number of the first sample of this row; it seeds the random numbers too.
    """

    ids: list[int]
    number: int = 0
    prefix: tuple[int, ...] = ()
    candidates: NDArray[np.int64] | None = None
    sample: int = 0
