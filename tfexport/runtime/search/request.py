"""One row to decode."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Request:
    """One row to decode.

    Attributes:
        ids: source ids as the encoder sees them; not empty.
        number: of the row in what was asked for; its random numbers depend on it alone.
        prefix: tokens that the target begins with.
        candidates: ascending ids that may be chosen; None for the whole vocabulary.
        sample: tells several draws of one row apart.
    """

    ids: list[int]
    number: int = 0
    prefix: tuple[int, ...] = ()
    candidates: NDArray[np.int64] | None = None
    sample: int = 0
