"""Word errors of a transcription, against what was said."""

import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9']+")


def words_of(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.lower())


def word_errors(text: str, whole: Sequence[str], cut: str = "") -> tuple[int, int]:
    """Words that are wrong, missing or too many, and the number of words that were said.

    Of a sentence that is cut off nobody knows the last word: it is where the text fits best.

    Args:
        text: what was heard.
        whole: the sentences that were said.
        cut: a sentence after them, of which the end is missing.
    """
    said, heard = words_of(" ".join(whole)), words_of(text)
    least = len(said)
    said += words_of(cut)
    row = list(range(len(heard) + 1))  # the errors of each part of the text
    found = [row[-1]]
    for number, word in enumerate(said, 1):
        above, row = row, [number]
        for place, other in enumerate(heard, 1):
            row.append(
                min(above[place - 1] + (word != other), above[place] + 1, row[place - 1] + 1)
            )
        found.append(row[-1])
    best = min(range(least, len(said) + 1), key=lambda number: (found[number], number))
    return found[best], best
