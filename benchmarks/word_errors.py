"""Word errors of a transcription, against what was said."""

from collections.abc import Sequence

from tfexport.export.quantization.word_errors import edit_rows, words_of


def word_errors(text: str, whole: Sequence[str], cut: str = "") -> tuple[int, int]:
    """Words that are wrong, missing or too many, and the number of words that were said.

    Of a sentence that is cut off nobody knows the last word: it is where the text fits best.

    Args:
        text: what was heard.
        whole: the sentences that were said.
        cut: a sentence after them, of which the end is missing.
    """
    said = words_of(" ".join(whole))
    least = len(said)
    said += words_of(cut)
    errors = edit_rows(said, words_of(text))
    best = min(range(least, len(said) + 1), key=lambda number: (errors[number], number))
    return errors[best], best
