"""Vocabularies read from files: JSON, pickles of Python, torch and torchtext, and toolkits' own."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError, join_some, shown
from tfexport.file_access import describe_substitute, open_file
from tfexport.model_src.checkpoint.pickle_files import read_pickle
from tfexport.model_src.checkpoint.pickle_parser import Call, Global, PickleError
from tfexport.model_src.checkpoint.toolkit_pickles import words_of
from tfexport.runtime.text.vocabulary import WHITESPACE, find_word_problem

# Vocabularies as training code leaves them: values of JSON, or of a pickle that was parsed to data.


_DEEPEST = 8  # objects inside one another
# Attributes of vocabulary objects, in the order in which they are looked for: ids to words of
# torchtext before 0.9, its C++ vocabulary since 0.9 (and a Field's), words to ids.
_ATTRIBUTES = ("itos", "vocab", "stoi")
_CPP_VOCABULARY = ("torchtext._torchtext.Vocab", "torchtext._torchtext.VocabPybind")


class VocabularyFormError(ValueError):
    """A value that is no vocabulary; the message is a problem of its file."""


@dataclass(frozen=True)
class FoundWords:
    """The words of a vocabulary.

    Attributes:
        words: by id.
        default: the id of words that are not in it, if the vocabulary object has one.
        split: how text is split into them, where the kind of file specifies it.
    """

    words: list[str]
    default: int | None = None
    split: str | None = None


def choose_entry(value: Any, entry: str | None) -> Any:
    """The vocabulary among several, such as ``{"de": …, "en": …}``, or the value itself.

    Args:
        value: of the file.
        entry: its key, or index in a list; None for the value itself.

    Raises:
        VocabularyFormError: nothing has this key, or there are several and no key is given.
    """
    entries = _entries(value)
    if entry is None:
        if entries:
            named = join_some([repr(key[:40]) for key in entries])
            raise VocabularyFormError(
                f"holds {named}, and not one vocabulary; add a colon and the name of this side's, "
                f"as in FILE:{next(iter(entries))[:40]}"
            )
        return value
    if entry not in entries:
        named = join_some([repr(key[:40]) for key in entries])
        held = f"only {named}" if entries else "but a single value, which goes by no name"
        raise VocabularyFormError(f"has no entry {shown(entry)}, {held}")
    return entries[entry]


def _entries(value: Any) -> dict[str, Any]:
    """Values inside a container that may be vocabularies, by their keys as text."""
    inside: dict[Any, Any] = {}
    if isinstance(value, Mapping):
        inside = dict(value)
    elif isinstance(value, list | tuple):
        inside = dict(enumerate(value))
    return {
        str(key): item
        for key, item in inside.items()
        if isinstance(key, str | int) and _may_be_vocabulary(item)
    }


def _may_be_vocabulary(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | Call)


def find_words(value: Any) -> FoundWords:
    """The words of a value: a list, a mapping of words to ids or ids to words, or an object.

    Raises:
        VocabularyFormError: with what it is instead, or what is wrong with it.
    """
    default: int | None = None
    for _ in range(_DEEPEST):
        if not isinstance(value, Call):
            break
        value, default = _look_inside(value, default)
    if isinstance(value, list | tuple):
        words = list(value)
    elif isinstance(value, Mapping):
        words = _by_id(value)
    else:
        raise VocabularyFormError(f"holds {_name(value)}, and no vocabulary")
    if not words:
        raise VocabularyFormError("holds a vocabulary without words")
    if problem := find_word_problem(words):
        raise VocabularyFormError(problem)
    return FoundWords(words, default)


def _look_inside(value: Call, default: int | None) -> tuple[Any, int | None]:
    """The vocabulary in an object's state, and the id of unknown words if the state has it."""
    state = value.state
    if value.path in _CPP_VOCABULARY:
        return _read_cpp_state(state)
    if isinstance(state, Mapping):
        unknown = state.get("unk_index")
        default = unknown if _is_id(unknown) else default
        for name in _ATTRIBUTES:
            if state.get(name) is not None:
                return state[name], default
    raise VocabularyFormError(
        f"holds an object of {shown(value.path or 'something computed')}, which has none of "
        f"{', '.join(_ATTRIBUTES)}; save its list of words instead"
    )


def _read_cpp_state(state: Any) -> tuple[list[Any], int | None]:
    """The state of torchtext's C++ Vocab: a version, integers, strings and tensors.

    Version 0.0.2, since torchtext 0.10, has the default index as its only integer, or none.
    Version 0.0.1 has no integers; the unknown word is the last one.
    Source: torchtext/csrc/vocab.cpp.
    """
    parts = state if isinstance(state, tuple) and len(state) == 4 else (None,) * 4
    version, integers, strings, _ = parts
    if not isinstance(integers, list) or not isinstance(strings, list):
        raise VocabularyFormError("holds a vocabulary of torchtext with an unknown kind of state")
    if version == "0.0.1" and strings:
        words = strings[:-1]
        return words, words.index(strings[-1]) if strings[-1] in words else None
    if version == "0.0.2":
        return strings, integers[0] if integers and _is_id(integers[0]) else None
    raise VocabularyFormError(
        f"holds a vocabulary of torchtext whose state has version {shown(version)}; "
        "save vocab.get_itos() instead"
    )


def _by_id(values: Mapping[Any, Any]) -> list[Any]:
    """The words of a mapping of words to ids, or of ids to words, in order of id."""
    if all(isinstance(item, str) for item in values.values()):
        ids = {_number(key): word for key, word in values.items()}
    else:
        ids = {}
        for word, number in values.items():
            if not _is_id(number):
                raise VocabularyFormError(f"{shown(word)} has the value {_name(number)}, not an id")
            if number in ids:
                raise VocabularyFormError(
                    f"{shown(ids[number])} and {shown(word)} both have the value {number}; ids are "
                    "wanted, each for one word, and not counts of words"
                )
            ids[number] = word
    lost = next((number for number in range(len(values)) if number not in ids), None)
    if lost is not None:
        raise VocabularyFormError(
            f"{len(values)} words have ids that leave {lost} out; ids start at 0 and have no gap. "
            "If these are counts, save the words in the order of their ids"
        )
    return [ids[number] for number in range(len(values))]


def _number(key: Any) -> int | None:
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10:
        return int(key)  # JSON has no keys but text
    return key if _is_id(key) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _name(value: Any) -> str:
    """A value that is not what it should be, for a message."""
    if isinstance(value, Call | Global):
        return f"an object of {shown(value.path)}"
    scalar = value is None or isinstance(value, str | int | float | bytes)
    return shown(value) if scalar else f"a {type(value).__name__}"


def is_vocabulary(value: Any) -> bool:
    """Whether a value of JSON is a vocabulary, or holds some, and is not another kind of file."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return bool(value) and (isinstance(value[0], str) or _may_be_vocabulary(value[0]))
    if not isinstance(value, Mapping) or not value or "model" in value:  # of a tokenizer.json
        return False
    items = list(value.values())
    if all(_is_id(item) for item in items) or all(isinstance(item, str) for item in items):
        return True
    return all(isinstance(item, Mapping | list) and is_vocabulary(item) for item in items)


# Vocabularies of toolkits: dictionaries of fairseq, checkpoints of OpenNMT-py. Their text is
# already cut into words or pieces (BPE, SentencePiece), separated by white space.


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
        VocabularyFormError: a line is no word and count, or a word occurs twice.
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
    """Whether there is a file of this name; false for an impossible name."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def holds_vocabulary(path: Path) -> bool:
    """Whether ``read_vocabulary_file`` reads a file, by its name, first bytes or JSON content."""
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
            holds several vocabularies, with a colon and the name of one after it.

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
    """Whether a file starts like a pickle of protocol 2 or later, or like an archive of torch."""
    with open_file(file) as opened:
        head = opened.read(4)
    return head == b"PK\3\4" or (head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"))


def _read_json(file: Path) -> Any:
    with open_file(file) as opened:
        content = opened.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"more than {_MAX_JSON_BYTES} bytes of JSON")
    return json.loads(content)
