"""Word vocabularies: reading and writing their files, and splitting text into words.

A word list has one word per line, and text is split at white space. A vocabulary file also defines
how text is split, and its words may contain line breaks: ``{"split": "basic_english", "words":
["<unk>", …]}``.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfexport.errors import TokenizerError, missing_dependency, shown
from tfexport.file_access import open_file
from tfexport.json_checks import is_unicode
from tfexport.runtime.text.libraries import read_file

_SHOWN = 40  # characters of a word in a message


class Vocabulary(NamedTuple):
    """Words, and the rule for splitting text into words.

    Attributes:
        words: unique words; the index of a word is its id.
        split: the name of a rule, for ``find_splitter``.
    """

    words: Sequence[str]
    split: str

    def write(self, path: Path) -> None:
        """Write a file for ``read_vocabulary``."""
        values = {"split": self.split, "words": list(self.words)}
        text = json.dumps(values, ensure_ascii=False, indent=0)
        path.write_bytes(f"{text}\n".encode())


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary that ``Vocabulary.write`` wrote.

    Raises:
        TokenizerError: the file is unreadable, or not a vocabulary.
    """
    content = read_file(path)
    try:
        values = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a vocabulary: {error}") from None
    if not isinstance(values, dict) or values.keys() != {"split", "words"}:
        raise TokenizerError(f"{path}: not a vocabulary: its keys must be split and words")
    words, split = values["words"], values["split"]
    if not isinstance(split, str) or not isinstance(words, list):
        raise TokenizerError(f"{path}: not a vocabulary: split must be a string, and words a list")
    if problem := find_word_problem(words):
        raise TokenizerError(f"{path}: {problem}")
    return Vocabulary(words, split)


def find_word_problem(words: Sequence[Any]) -> str | None:
    """Describe the first invalid word of a vocabulary; None if all are valid."""
    seen: dict[str, int] = {}
    for place, word in enumerate(words):
        if not isinstance(word, str):
            return f"id {place} is {shown(word)}, which is not a string"
        if word in seen:
            return f"{word[:_SHOWN]!r} has the id {seen[word]} and the id {place}"
        if not is_unicode(word):
            return f"id {place} is {shown(word)}, which is not valid Unicode"
        seen[word] = place
    return None


def read_words(path: Path) -> list[str]:
    """Read a word list, one word per line; the line number, from 0, is the id.

    Raises:
        TokenizerError: the file is unreadable, or a word occurs twice.
    """
    content = read_file(path)
    try:
        text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        problem = describe_foreign(path, "a list of words in UTF-8")
        raise TokenizerError(f"{path}: {problem}: {error}") from None
    # Not splitlines: a word may contain Unicode's line separators.
    words = text.removesuffix("\n").split("\n") if text else []
    seen: dict[str, int] = {}
    for place, word in enumerate(words):
        if word in seen:
            raise TokenizerError(f"{path}: {_twice(word, seen[word] + 1, place + 1)}")
        seen[word] = place
    return words


def _twice(word: str, first: int, second: int) -> str:
    if word:
        return f"{word[:_SHOWN]!r} is on line {first} and on line {second}; words must be unique"
    return (
        f"lines {first} and {second} are both empty; every line is one id. If a word of the "
        "vocabulary is a line break, replace it by a name such as <newline>"
    )


def describe_foreign(path: Path, wanted: str) -> str:
    """Describe a file that is not ``wanted``, and what it is instead, if that is known.

    No code from the file is run: a pickle is recognised by its first bytes.
    """
    try:
        with open_file(path) as file:
            begin = file.read(4)
    except (OSError, ValueError):
        return f"not {wanted}"
    if (begin[:1] == b"\x80" and begin[1:2] in (b"\2", b"\3", b"\4", b"\5")) or begin == b"PK\3\4":
        return (
            f"not {wanted}, but a pickle, which could run code and is never loaded. Where it was "
            "created, write its words one per line, in order of id (torchtext: "
            "open('vocab.txt', 'w').write('\\n'.join(vocab.get_itos())))"
        )
    if begin[:1] == b"{" and _is_word_to_id(path):
        return (
            f"not {wanted}, but a JSON object from words to ids, without a splitting rule. "
            'If words are separated by spaces, convert it to a list: python -c "import json; '
            f"v = json.load(open('{path.name}', encoding='utf-8')); open('vocab.txt', 'w', "
            "encoding='utf-8').write('\\n'.join(sorted(v, key=v.get)))\""
        )
    return f"not {wanted}"


def _is_word_to_id(path: Path) -> bool:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return (
        isinstance(values, dict)
        and bool(values)
        and all(type(value) is int for value in values.values())
    )


Splitter = Callable[[str], list[str]]

WHITESPACE = "whitespace"
BASIC_ENGLISH = "basic_english"
CHARACTERS = "characters"
SPACY = "spacy:"  # followed by a language
KNOWN = f"{WHITESPACE}, {BASIC_ENGLISH}, {CHARACTERS} or {SPACY}LANGUAGE, such as {SPACY}de"

# Source: torchtext 0.4 to 0.18, torchtext.data.utils. Its last replacement, of white space by
# one space, is omitted: it has no effect on the split.
_REPLACEMENTS = (
    ("'", " '  "),
    ('"', ""),
    (".", " . "),
    ("<br />", " "),
    (",", " , "),
    ("(", " ( "),
    (")", " ) "),
    ("!", " ! "),
    ("?", " ? "),
    (";", " "),
    (":", " "),
)


def find_splitter(name: str) -> Splitter:
    """Find the function that splits text into words by its name.

    Args:
        name: "whitespace"; "basic_english", the tokenizer of torchtext; "characters", in which
            a space is one too; or "spacy:" and the code of a language, for spaCy's tokenizer of
            that language.

    Raises:
        TokenizerError: the name is unknown, or spaCy has no tokenizer for the language.
        MissingDependencyError: spaCy is not installed.
    """
    if name == WHITESPACE:
        return str.split
    if name == BASIC_ENGLISH:
        return split_basic_english
    if name == CHARACTERS:
        return list
    if name.startswith(SPACY):
        return _spacy_splitter(name.removeprefix(SPACY))
    raise TokenizerError(f"{shown(name)} is not a known rule for splitting text; expected {KNOWN}")


def split_basic_english(text: str) -> list[str]:
    """Split as torchtext's ``basic_english``: lower case, punctuation separate or removed."""
    text = text.lower()
    for part, replacement in _REPLACEMENTS:
        text = text.replace(part, replacement)
    return text.split()


def _spacy_splitter(language: str) -> Splitter:
    name = SPACY + language
    # Only codes: for a longer name, spaCy would import a package.
    if re.fullmatch("[a-z]{2,3}", language) is None:
        raise TokenizerError(
            f"{shown(name)} is not a language. After {SPACY}, give a code such as de, not the name "
            "of a pipeline; the pipeline de_core_news_sm uses the tokenizer of de"
        )
    try:
        import spacy
    except ImportError:
        need = f"splitting text as {name} needs the spacy library"
        raise missing_dependency(need, extra="spacy") from None
    try:
        tokenizer = spacy.blank(language).tokenizer
    except Exception as error:  # any error of a library that the language needs
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise TokenizerError(f"{name}: spaCy cannot load this tokenizer: {reason}") from None
    return lambda text: [token.text for token in tokenizer(text)]
