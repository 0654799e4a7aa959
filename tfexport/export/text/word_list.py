"""Checks of words as a vocabulary, which would otherwise give wrong ids without an error."""

import re
from collections.abc import Iterator, Sequence

from tfexport.errors import Message, Option

_UNKNOWN = re.compile(r"[<\[(]?unk(nown)?[>\])]?", re.IGNORECASE)
_COUNTED = re.compile(r"\S+[ \t]+\d+")
_SHOWN = 40  # characters of a word in a message


def find_word_problems(
    words: Sequence[str], size: int, side: str, unk_id: int | None
) -> Iterator[str | Message]:
    """The problems of a word list as the vocabulary of one side of a model.

    Args:
        words: its lines, at most ``size``.
        size: of the side's vocabulary.
        side: "source" or "target".
        unk_id: the id of words that are not in the list; None if there is none.
    """
    if len(words) < size:
        yield (
            f"{len(words)} lines for the {size} ids of the {side} vocabulary. Every id has a line, "
            "in order: special tokens such as <pad> too, and ids that are never used (<unused0>)"
        )
    counted = sum(_COUNTED.fullmatch(word) is not None for word in words)
    if 2 * counted > len(words):
        yield (
            f"{counted} lines are a word and a count, as in fairseq's dict.txt; a line must be the "
            "word alone. fairseq puts four tokens before them: "
            "(printf '%s\\n' '<s>' '<pad>' '</s>' '<unk>'; cut -d' ' -f1 dict.txt) > vocab.txt"
        )
    elif side == "source":
        yield from _never_found(words)
    if unk_id is None:
        yield from _unused_unknown(words, first=1, noun="line")


def find_vocabulary_problems(
    words: Sequence[str], size: int, side: str, unk_id: int | None
) -> Iterator[str | Message]:
    """The problems of a vocabulary of one side of a model; see ``find_word_problems``.

    Its words may hold white space, since it says itself how text is split.
    """
    if len(words) < size:
        yield f"{len(words)} words for the {size} ids of the {side} vocabulary; every id has a word"
    if unk_id is None:
        yield from _unused_unknown(words, first=0, noun="id")


def _unused_unknown(words: Sequence[str], first: int, noun: str) -> Iterator[Message]:
    """The problem of a word that stands for all others, in a model that does not know it."""
    for place, word in enumerate(words):
        if _UNKNOWN.fullmatch(word):
            yield Message(
                f"{noun} {place + first} is {word!r}, and the model has no unk_id, so text with "
                "any other word would be refused; give ",
                Option("settings", [f"unk_id={place}"]),
            )


def _never_found(words: Sequence[str]) -> Iterator[str]:
    """The problem of words that contain white space, at which text is split."""
    wrong = [(place, word) for place, word in enumerate(words) if word.split() != [word]]
    if wrong:
        place, word = wrong[0]
        more = f" (and {len(wrong) - 1} more lines)" if len(wrong) > 1 else ""
        yield (
            f"line {place + 1}, {word[:_SHOWN]!r}{more}, can never be found: text is split at "
            "white space. A word must not contain any; for an unused id, write <unused0>"
        )
