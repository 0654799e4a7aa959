"""Checks of vocabularies of words: words as a list, and doubts about special ids."""

import re
from collections.abc import Iterator, Sequence

from tfexport.errors import Message, Option
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import WordTokenizer

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

    Its words may hold white space, since it has its own rule for splitting text.
    """
    if len(words) < size:
        yield f"{len(words)} words for the {size} ids of the {side} vocabulary; every id has a word"
    if unk_id is None:
        yield from _unused_unknown(words, first=0, noun="id")


def _unused_unknown(words: Sequence[str], first: int, noun: str) -> Iterator[Message]:
    """The problem of a word for unknown words, in a model that does not have one."""
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


# Warnings about a vocabulary of words: special ids that contradict it, words that are never found.
# An export continues, since names of words prove nothing.


# Names of special tokens in known vocabularies, without the brackets or lines around them.
_NAMES = {
    "pad_id": ("pad", "padding", "blank"),
    "bos_id": ("bos", "s", "sos", "start", "go", "begin"),
    "eos_id": ("eos", "/s", "end", "eot", "eof"),
    "unk_id": ("unk", "unknown", "oov"),
}
_MARKED = re.compile(r"[<\[|_]+([^<>\[\]|_]+)[>\]|_]+")


def find_doubts(
    tokenizer: WordTokenizer, side: str, config: TransformerConfig, default: int | None
) -> Iterator[Message]:
    """Doubts about the vocabulary of one side.

    Args:
        tokenizer: with the words, each of which has an id of the model.
        side: "source" or "target".
        config: of the model, with its special ids.
        default: the id that the vocabulary object gives to unknown words; None if it is not known.
    """
    for key in _used(side, config):
        number = getattr(config, key)
        if key == "unk_id" and number is not None and default not in (None, number):
            yield Message(
                f"unk_id is {number}, and the {side} vocabulary itself gives unknown words the id "
                f"{default}; if that is right, give ",
                Option("settings", [f"unk_id={default}"]),
            )
        elif number is not None:
            yield from _contradiction(key, number, tokenizer.words, side)
    if side == "source":
        yield from _lost_words(tokenizer)


def _used(side: str, config: TransformerConfig) -> list[str]:
    """The special ids that are used with text of one side."""
    if side == "target":
        return ["pad_id", "bos_id", "eos_id", "unk_id"]
    framed = [name for name in ("bos", "eos") if getattr(config, f"add_source_{name}")]
    return [*(f"{name}_id" for name in framed), "unk_id"]


def _contradiction(key: str, number: int, words: Sequence[str], side: str) -> Iterator[Message]:
    """A warning if the word of a special id has another role, or none."""
    word = words[number]
    if _role(word) == key:
        return
    found = [place for place, other in enumerate(words) if _role(other) == key]
    start = f"{key} is {number}, which is {word[:_SHOWN]!r} in the {side} vocabulary"
    if found:
        place = found[0]
        yield Message(
            f"{start}, where {words[place]!r} is {place}; if that is the right one, give ",
            Option("settings", [f"{key}={place}"]),
        )
    elif _role(word) is not None or word[:1].isalnum():
        yield Message(
            f"{start}; give the id that was meant with ", Option("settings", [f"{key}=…"])
        )


def _role(word: str) -> str | None:
    """The special id that a word's name indicates; None for an ordinary word."""
    marked = _MARKED.fullmatch(word.strip().lower())
    if marked is None:
        return None
    return next((key for key, names in _NAMES.items() if marked[1] in names), None)


def _lost_words(tokenizer: WordTokenizer) -> Iterator[Message]:
    """A warning if hardly any word could be found by this split, unlike in training."""
    ordinary = [word for word in tokenizer.words if _MARKED.fullmatch(word) is None]
    lost = [word for word in ordinary if tokenizer.split(word) != [word]]
    if 2 * len(lost) > len(ordinary):
        yield Message(
            f"{len(lost)} of {len(ordinary)} words can never be found, such as "
            f"{lost[0][:_SHOWN]!r}, which is split into {tokenizer.split(lost[0])[:4]!r}; if text "
            "was split differently in training, choose how with ",
            Option("source_split"),
        )
