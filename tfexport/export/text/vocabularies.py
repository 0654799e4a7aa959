"""Reading word vocabularies from files that training code saved, and checking them."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import Message, Option, TokenizerError, join_some, shown
from tfexport.file_access import describe_substitute, open_file
from tfexport.model_src.checkpoint.pickle_files import read_pickle
from tfexport.model_src.checkpoint.pickle_parser import Call, Global, PickleError
from tfexport.model_src.checkpoint.toolkit_pickles import words_of
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import WordTokenizer
from tfexport.runtime.text.vocabulary import CHARACTERS, WHITESPACE, find_word_problem

# Vocabularies as training code saves them: JSON values, or a pickle that was parsed to plain data.


_DEEPEST = 8  # nested objects at most
# Attributes of vocabulary objects, in search order. ``itos`` (id to word): torchtext before 0.9.
# ``vocab``: the C++ vocabulary of torchtext since 0.9, or a Field's. ``stoi``: word to id.
_ATTRIBUTES = ("itos", "vocab", "stoi")
_CPP_VOCABULARY = ("torchtext._torchtext.Vocab", "torchtext._torchtext.VocabPybind")


class VocabularyFormError(ValueError):
    """A value is not a vocabulary; the message describes the problem without the file's name."""


@dataclass(frozen=True)
class FoundWords:
    """The words of a vocabulary.

    Attributes:
        words: the words, ordered by id.
        default: the id of unknown words, if the vocabulary object defines one.
        split: how text is split into words, if the file format specifies it.
    """

    words: list[str]
    default: int | None = None
    split: str | None = None


def choose_entry(value: Any, entry: str | None) -> Any:
    """Select one of several vocabularies, such as ``{"de": …, "en": …}``, or the value itself.

    Args:
        value: the content of the file.
        entry: the key of a vocabulary, or its index in a list; None for the value itself.

    Raises:
        VocabularyFormError: the key does not exist, or there are several vocabularies and no key is
            given.
    """
    entries = _entries(value)
    if entry is None:
        if entries:
            named = join_some([repr(key[:40]) for key in entries])
            raise VocabularyFormError(
                f"holds several entries: {named}; select this side's with a colon and its key, "
                f"as in FILE:{next(iter(entries))[:40]}"
            )
        return value
    if entry not in entries:
        named = join_some([repr(key[:40]) for key in entries])
        held = f"its entries are {named}" if entries else "it holds a single value without a key"
        raise VocabularyFormError(f"has no entry {shown(entry)}; {held}")
    return entries[entry]


def _entries(value: Any) -> dict[str, Any]:
    """The entries of a container that may be vocabularies, by key; keys become strings."""
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
        VocabularyFormError: it is not a vocabulary, or an invalid one.
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
        raise VocabularyFormError(f"holds {_name(value)}, not a vocabulary")
    if not words:
        raise VocabularyFormError("holds a vocabulary without words")
    if problem := find_word_problem(words):
        raise VocabularyFormError(problem)
    return FoundWords(words, default)


def _look_inside(value: Call, default: int | None) -> tuple[Any, int | None]:
    """The vocabulary in an object's state, and the id of unknown words, if it defines one."""
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
        f"holds an object of {shown(value.path or 'an unknown class')} without any of the "
        f"attributes {', '.join(_ATTRIBUTES)}; save its list of words instead"
    )


def _read_cpp_state(state: Any) -> tuple[list[Any], int | None]:
    """Read the state of torchtext's C++ Vocab: a version, integers, strings and tensors.

    Version 0.0.2, since torchtext 0.10, has the default index as its only integer, or none.
    Version 0.0.1 has no integers; the unknown word is the last one.
    Source: torchtext/csrc/vocab.cpp.
    """
    parts = state if isinstance(state, tuple) and len(state) == 4 else (None,) * 4
    version, integers, strings, _ = parts
    if not isinstance(integers, list) or not isinstance(strings, list):
        raise VocabularyFormError("holds a torchtext vocabulary in an unknown format")
    if version == "0.0.1" and strings:
        words = strings[:-1]
        return words, words.index(strings[-1]) if strings[-1] in words else None
    if version == "0.0.2":
        return strings, integers[0] if integers and _is_id(integers[0]) else None
    raise VocabularyFormError(
        f"holds a torchtext vocabulary of the unknown format version {shown(version)}; "
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
                    f"{shown(ids[number])} and {shown(word)} both have the value {number}; values "
                    "must be unique ids, not word counts"
                )
            ids[number] = word
    lost = next((number for number in range(len(values)) if number not in ids), None)
    if lost is not None:
        raise VocabularyFormError(
            f"no word has the id {lost}; the ids of {len(values)} words must be 0 to "
            f"{len(values) - 1}. If the values are counts, save the words in the order of their ids"
        )
    return [ids[number] for number in range(len(values))]


def _number(key: Any) -> int | None:
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10:
        return int(key)  # all keys in JSON are strings
    return key if _is_id(key) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _name(value: Any) -> str:
    """Describe an unexpected value for a message."""
    if isinstance(value, Call | Global):
        return f"an object of {shown(value.path)}"
    scalar = value is None or isinstance(value, str | int | float | bytes)
    return shown(value) if scalar else f"a {type(value).__name__}"


def is_vocabulary(value: Any) -> bool:
    """Whether a JSON value is a vocabulary or contains vocabularies."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return bool(value) and (isinstance(value[0], str) or _may_be_vocabulary(value[0]))
    if not isinstance(value, Mapping) or not value or "model" in value:  # a tokenizer.json
        return False
    items = list(value.values())
    if all(_is_id(item) for item in items) or all(isinstance(item, str) for item in items):
        return True
    return all(isinstance(item, Mapping | list) and is_vocabulary(item) for item in items)


# Vocabularies of toolkits: fairseq dictionaries and OpenNMT-py checkpoints. The toolkits read text
# that is already split into words or pieces (BPE, SentencePiece), separated by white space.


_DICTIONARY = re.compile(r"dict(\.[\w-]+)?\.txt")
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq adds these before the words of the file
_MOST_BYTES = 2**26


def is_dictionary(path: Path) -> bool:
    """Whether a file is a fairseq dictionary: by its name, and a word and a count in line 1."""
    if _DICTIONARY.fullmatch(path.name) is None:
        return False
    try:
        with open_file(path) as file:
            first = file.readline(2**12).decode("utf-8")
    except (OSError, ValueError):
        return False
    return re.fullmatch(r"\S+ \d+( #fairseq:overwrite)?\s*", first) is not None


def read_dictionary(path: Path) -> FoundWords:
    """Read fairseq's ``dict.LANGUAGE.txt``: its four special tokens, then the words of the file.

    Raises:
        VocabularyFormError: a line is not a word and a count, or a word occurs twice.
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
            raise VocabularyFormError(f"line {place + 1} is not a word and a count")
        words.append(word)
    found = find_words(words)
    return FoundWords(found.words, words.index("<unk>"), WHITESPACE)


def vocabularies_inside(value: Any) -> dict[str, list[Any]]:
    """The vocabularies "src" and "tgt" of an OpenNMT-py checkpoint; empty for any other file."""
    if not isinstance(value, dict) or not {"vocab", "opt"} <= {*value}:
        return {}
    sides = {side: words_of(value["vocab"], side) for side in ("src", "tgt")}
    return sides if all(sides.values()) else {}


_PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin")
_MAX_JSON_BYTES = 2**24


def split_name(path: Path) -> tuple[Path, str | None]:
    """Split ``vocab.pt:de`` into the path of a file and the key of one of its vocabularies.

    The key is None if there is no colon, or if a file with the complete name exists.
    """
    file, colon, entry = str(path).rpartition(":")
    if not colon or is_file(path) or not is_file(Path(file)):
        return path, None
    return Path(file), entry


def is_file(path: Path) -> bool:
    """Whether a file exists at this path; False for an invalid path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # the path is too long, or contains a null byte
        return False


def holds_vocabulary(path: Path) -> bool:
    """Whether ``read_vocabulary_file`` can read a file, by name, first bytes or JSON content."""
    file, entry = split_name(path)
    if entry is not None or file.suffix in _PICKLE_SUFFIXES or is_dictionary(file):
        return True
    try:
        return _is_pickle(file) or (file.suffix == ".json" and is_vocabulary(_read_json(file)))
    except (OSError, ValueError, RecursionError):
        return False


def read_vocabulary_file(path: Path) -> FoundWords:
    """Read a vocabulary without running code from the file.

    Args:
        path: a JSON file, a fairseq dictionary, or a file that ``pickle.dump`` or ``torch.save``
            wrote, such as an OpenNMT-py checkpoint with the vocabularies "src" and "tgt". To
            select one of several vocabularies, append a colon and its key.

    Raises:
        TokenizerError: the file is missing or damaged, or does not hold exactly one vocabulary.
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
    """Whether a file starts like a pickle of protocol 2 or later, or a ``torch.save`` archive."""
    with open_file(file) as opened:
        head = opened.read(4)
    return head == b"PK\3\4" or (head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"))


def _read_json(file: Path) -> Any:
    with open_file(file) as opened:
        content = opened.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"more than {_MAX_JSON_BYTES} bytes of JSON")
    return json.loads(content)


_UNKNOWN = re.compile(r"[<\[(]?unk(nown)?[>\])]?", re.IGNORECASE)
_COUNTED = re.compile(r"\S+[ \t]+\d+")
_SHOWN = 40  # characters of a word in a message


def find_word_problems(
    words: Sequence[str], size: int, side: str, unk_id: int | None
) -> Iterator[str | Message]:
    """Find problems of a word list as the source or target vocabulary of a model.

    Args:
        words: the lines of the list, at most ``size``.
        size: the size of the model's vocabulary on this side.
        side: "source" or "target".
        unk_id: the id of words that are not in the list; None if the model has none.
    """
    if len(words) < size:
        yield (
            f"{len(words)} lines for the {size} ids of the {side} vocabulary. Each id needs a "
            "line, in order, including special tokens such as <pad> and unused ids (<unused0>)"
        )
    counted = sum(_COUNTED.fullmatch(word) is not None for word in words)
    if 2 * counted > len(words):
        yield (
            f"{counted} lines are a word and a count, as in fairseq's dict.txt; a line must be one "
            "word. fairseq adds four tokens before the words of the file: "
            "(printf '%s\\n' '<s>' '<pad>' '</s>' '<unk>'; cut -d' ' -f1 dict.txt) > vocab.txt"
        )
    elif side == "source":
        yield from _never_found(words)
    if unk_id is None:
        yield from _unused_unknown(words, first=1, noun="line")


def find_vocabulary_problems(
    words: Sequence[str], size: int, side: str, unk_id: int | None
) -> Iterator[str | Message]:
    """Find problems of a vocabulary with its own splitting rule; see ``find_word_problems``.

    Words may contain white space, because the rule defines how text is split.
    """
    if len(words) < size:
        yield (
            f"{len(words)} words for the {size} ids of the {side} vocabulary; each id needs a word"
        )
    if unk_id is None:
        yield from _unused_unknown(words, first=0, noun="id")


def _unused_unknown(words: Sequence[str], first: int, noun: str) -> Iterator[Message]:
    """Report a word such as <unk> if the model has no ``unk_id``."""
    for place, word in enumerate(words):
        if _UNKNOWN.fullmatch(word):
            yield Message(
                f"{noun} {place + first} is {word!r}, but the model has no unk_id, so text with an "
                "unknown word would be refused; set it with ",
                Option("settings", [f"unk_id={place}"]),
            )


def _never_found(words: Sequence[str]) -> Iterator[Message]:
    """Report words that contain white space, at which text is split."""
    wrong = [(place, word) for place, word in enumerate(words) if word.split() != [word]]
    if wrong:
        place, word = wrong[0]
        more = f" (and {len(wrong) - 1} more lines)" if len(wrong) > 1 else ""
        yield Message(
            f"line {place + 1}, {word[:_SHOWN]!r}{more}, can never match: text is split at white "
            "space, so a word must not contain any. For an unused id, write <unused0>; for a model "
            "that reads characters, set ",
            Option("split", CHARACTERS),
        )


# Warnings about a word vocabulary: special ids that contradict it, and words that never match. The
# export continues, because the names of words are only hints.


# Names of special tokens in known vocabularies, without brackets or underscores.
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
    """Find likely mistakes in the vocabulary of one side.

    Args:
        tokenizer: the tokenizer with the vocabulary, whose ids were checked.
        side: "source" or "target".
        config: the config of the model, which has its special ids.
        default: the id of unknown words in the vocabulary object; None if unknown.
    """
    for key in _used(side, config):
        number = getattr(config, key)
        if key == "unk_id" and number is not None and default not in (None, number):
            yield Message(
                f"unk_id is {number}, but the {side} vocabulary maps unknown words to the id "
                f"{default}; if that is correct, set it with ",
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
    """A warning if the word of a special id has another role, or no role."""
    word = words[number]
    if _role(word) == key:
        return
    found = [place for place, other in enumerate(words) if _role(other) == key]
    start = f"{key} is {number}, which is {word[:_SHOWN]!r} in the {side} vocabulary"
    if found:
        place = found[0]
        yield Message(
            f"{start}, but {words[place]!r} has the id {place}; if that is correct, set it with ",
            Option("settings", [f"{key}={place}"]),
        )
    elif _role(word) is not None or word[:1].isalnum():
        yield Message(f"{start}; set the correct id with ", Option("settings", [f"{key}=…"]))


def _role(word: str) -> str | None:
    """The special id that the name of a word suggests; None for an ordinary word."""
    marked = _MARKED.fullmatch(word.strip().lower())
    if marked is None:
        return None
    return next((key for key, names in _NAMES.items() if marked[1] in names), None)


def _lost_words(tokenizer: WordTokenizer) -> Iterator[Message]:
    """A warning if most words never match with this splitting rule."""
    ordinary = [word for word in tokenizer.words if _MARKED.fullmatch(word) is None]
    lost = [word for word in ordinary if tokenizer.split(word) != [word]]
    if 2 * len(lost) > len(ordinary):
        yield Message(
            f"{len(lost)} of {len(ordinary)} words can never match, such as "
            f"{lost[0][:_SHOWN]!r}, which is split into {tokenizer.split(lost[0])[:4]!r}; if text "
            "was split differently in training, select the rule with ",
            Option("source_split"),
        )
