"""Vocabularies read from files: JSON, pickles of Python, torch and torchtext, and toolkits' own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError
from tfexport.export.text.toolkit_vocabularies import (
    is_dictionary,
    read_dictionary,
    vocabularies_inside,
)
from tfexport.export.text.vocabulary_forms import (
    FoundWords,
    VocabularyFormError,
    choose_entry,
    find_words,
    is_vocabulary,
)
from tfexport.file_access import describe_substitute, open_file
from tfexport.model_src.checkpoint.pickle_files import read_pickle
from tfexport.model_src.checkpoint.pickle_parser import PickleError
from tfexport.runtime.text.vocabulary import WHITESPACE

_PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin")
_MAX_JSON_BYTES = 2**24


def split_name(path: Path) -> tuple[Path, str | None]:
    """A file, and the name of one of several vocabularies in it: ``vocab.pt:de``.

    A name without a colon, and one of a file that exists, is that of a file.
    """
    file, colon, entry = str(path).rpartition(":")
    if not colon or is_file(path) or not is_file(Path(file)):
        return path, None
    return Path(file), entry


def is_file(path: Path) -> bool:
    """Whether there is a file of this name; false for what can be none's name."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def holds_vocabulary(path: Path) -> bool:
    """Whether a file is read by ``read_vocabulary_file``, by its name, begin or JSON content."""
    file, entry = split_name(path)
    if entry is not None or file.suffix in _PICKLE_SUFFIXES or is_dictionary(file):
        return True
    try:
        return _is_pickle(file) or (file.suffix == ".json" and is_vocabulary(_read_json(file)))
    except (OSError, ValueError, RecursionError):
        return False


def read_vocabulary_file(path: Path) -> FoundWords:
    """Read a vocabulary, without running anything that the file holds.

    Args:
        path: a JSON file, a dictionary of fairseq, or a file of ``pickle.dump`` or ``torch.save``,
            such as a checkpoint of OpenNMT-py, with the vocabularies "src" and "tgt"; where it
            holds several vocabularies, with a colon and the name of one behind it.

    Raises:
        TokenizerError: it is missing, damaged, or holds no vocabulary, or several.
    """
    file, entry = split_name(path)
    if (other := describe_substitute(file)) is not None:
        raise TokenizerError(f"{file}: {other}")
    try:
        if is_dictionary(file):
            return read_dictionary(file)
        is_json = file.suffix == ".json" and not _is_pickle(file)
        value = _read_json(file) if is_json else read_pickle(file)
        inside = vocabularies_inside(value)
        found = find_words(choose_entry(inside or value, entry))
        return dataclasses.replace(found, split=WHITESPACE) if inside else found
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
    except (PickleError, VocabularyFormError) as error:
        raise TokenizerError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a vocabulary: {error}") from None


def _is_pickle(file: Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later, or like an archive of torch."""
    with open_file(file) as opened:
        begin = opened.read(4)
    return begin == b"PK\3\4" or (
        begin[:1] == b"\x80" and begin[1:2] in (b"\2", b"\3", b"\4", b"\5")
    )


def _read_json(file: Path) -> Any:
    with open_file(file) as opened:
        content = opened.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"more than {_MAX_JSON_BYTES} bytes of JSON")
    return json.loads(content)
