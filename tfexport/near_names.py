"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 80  # characters that are compared, since the given name may be of any length


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to a misspelt one; None if none is similar enough.

    Args:
        name: as given.
        known: the valid names.
        cutoff: the least similarity, from 0 to 1 (equal).
    """
    return next(iter(get_close_matches(name[:LONGEST], list(known), n=1, cutoff=cutoff)), None)
