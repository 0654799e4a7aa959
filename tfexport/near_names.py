"""The known name that a misspelt one stands for."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 80  # characters that are looked at: names are short, and what is given may be anything


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name nearest to this one, if any is near enough.

    Args:
        name: as it was written.
        known: names that would have been right.
        cutoff: how alike they have to be, from 0 to 1 (equal).
    """
    return next(iter(get_close_matches(name[:LONGEST], list(known), n=1, cutoff=cutoff)), None)
