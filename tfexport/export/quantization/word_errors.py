"""Word errors: what of a text has to be replaced, left out or added to make another.

The measure of transcriptions, as in Morris et al. 2004, "From WER and RIL to MER and WIL".
"""

import re
from collections.abc import Sequence

# A word; of scripts that put no spaces between words, a character.
_WORD = re.compile(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[\w']+")


def words_of(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.casefold())


def edit_rows(said: Sequence[str], heard: Sequence[str]) -> list[int]:
    """The errors of all words that were heard against each first part of those that were said.

    Args:
        said: S words.
        heard: H words.

    Returns:
        S + 1 numbers; the last one is of all that was said.
    """
    row = list(range(len(heard) + 1))  # the errors of each first part of what was heard
    errors = [row[-1]]
    for number, word in enumerate(said, 1):
        above, row = row, [number]
        for place, other in enumerate(heard, 1):
            replaced = above[place - 1] + (word != other)
            row.append(min(replaced, above[place] + 1, row[place - 1] + 1))
        errors.append(row[-1])
    return errors


def word_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Errors of all texts for each word of their references; 0 if those have no words."""
    pairs = [(words_of(ref), words_of(text)) for text, ref in zip(texts, references, strict=True)]
    errors = sum(edit_rows(said, heard)[-1] for said, heard in pairs)
    return errors / max(1, sum(len(said) for said, _ in pairs))
