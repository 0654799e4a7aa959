"""Vocabularies as toolkits keep them: dictionaries of fairseq, checkpoints of OpenNMT-py.

Their text is already cut into words or pieces (BPE, SentencePiece) with white space between.
"""

import re
from pathlib import Path
from typing import Any

from tfexport.export.text.vocabulary_forms import FoundWords, VocabularyFormError, find_words
from tfexport.file_access import open_file
from tfexport.model_src.checkpoint.toolkit_pickles import words_of
from tfexport.runtime.text.vocabulary import WHITESPACE

_DICTIONARY = re.compile(r"dict(\.[\w-]+)?\.txt")
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # ids that fairseq puts before those of the file
_MOST_BYTES = 2**26


def is_dictionary(path: Path) -> bool:
    """Whether a file is fairseq's, by its name and its first line, a word and a count."""
    if _DICTIONARY.fullmatch(path.name) is None:
        return False
    try:
        with open_file(path) as file:
            first = file.readline(2**12).decode("utf-8")
    except (OSError, ValueError):
        return False
    return re.fullmatch(r"\S+ \d+( #fairseq:overwrite)?\s*", first) is not None


def read_dictionary(path: Path) -> FoundWords:
    """The words of fairseq's ``dict.LANGUAGE.txt``, its four special ones before them.

    Raises:
        VocabularyFormError: a line is no word and count, or a word stands there twice.
        OSError: the file cannot be read.
    """
    with open_file(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise VocabularyFormError(f"more than {_MOST_BYTES} bytes of words")
    words = [*_FIRST]
    for place, line in enumerate(content.decode("utf-8").rstrip("\n").split("\n")):
        word, space, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not (space and word and count.rstrip("\r").isdigit()):
            raise VocabularyFormError(f"line {place + 1} is no word and count")
        words.append(word)
    found = find_words(words)
    return FoundWords(found.words, words.index("<unk>"), WHITESPACE)


def vocabularies_inside(value: Any) -> dict[str, list[Any]]:
    """The vocabularies "src" and "tgt" of a checkpoint of OpenNMT-py; none of any other file."""
    if not isinstance(value, dict) or not {"vocab", "opt"} <= {*value}:
        return {}
    sides = {side: words_of(value["vocab"], side) for side in ("src", "tgt")}
    return sides if all(sides.values()) else {}
