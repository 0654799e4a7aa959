"""Added tokens such as ``</s>`` or ``<mask>``, which are found before a text is tokenized."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfexport.errors import InputError, TokenizerError
from tfexport.json_checks import Check, integer, list_of, of_type, record
from tfexport.runtime.text.libraries import library_error

_FLAG = of_type("true or false", bool)
ADDED_TOKENS: Check = list_of(
    record(
        {
            "content": of_type("a text", str),
            "id": integer(0),
            "lstrip": _FLAG,
            "rstrip": _FLAG,
            "single_word": _FLAG,
            "special": _FLAG,
        }
    )
)


@dataclass(frozen=True)
class AddedToken:
    """A token that is never split.

    Attributes:
        content: its text.
        id: its id.
        lstrip: whether it includes the white space before it.
        rstrip: whether it includes the white space after it.
        single_word: whether it is only found between spaces.
        special: whether it is omitted from decoded text.
    """

    content: str
    id: int
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    special: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The values, for JSON."""
        return asdict(self)


class AddedTokens:
    """Finds tokens in texts: the leftmost first, and the longest of those that start there.

    Source: the tokenizers of transformers that are written in Python.
    """

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        self.by_content = {token.content: token for token in tokens if token.content}
        longest_first = sorted(self.by_content, key=len, reverse=True)
        joined = "|".join(map(re.escape, longest_first))
        self._found = re.compile(f"({joined})") if joined else None
        self.hidden = frozenset(token.id for token in tokens if token.special)
        self.special = frozenset(token.content for token in tokens if token.special)
        self.size = max((token.id for token in tokens), default=-1) + 1

    def cut(self, text: str) -> list[tuple[str, int | None]]:
        """Parts of the text, each with the id of a token, or None for text between tokens."""
        if self._found is None:
            return [(text, None)] if text else []
        parts = [part for part in self._found.split(text) if part]
        for i, part in enumerate(parts):
            token = self.by_content.get(part)
            if token is not None:
                self._strip_around(parts, i, token)
        return [
            (part, token.id if (token := self.by_content.get(part)) else None)
            for part in parts
            if part
        ]

    def _strip_around(self, parts: list[str], i: int, token: AddedToken) -> None:
        left = parts[i - 1] if i > 0 else ""
        right = parts[i + 1] if i + 1 < len(parts) else ""
        if token.rstrip and right:
            parts[i + 1] = right.lstrip()
        if token.lstrip and left:
            parts[i - 1] = left.rstrip()
        if token.single_word and left and not left.endswith(" "):
            parts[i - 1], parts[i] = left + token.content, ""
        elif token.single_word and right and not right.startswith(" "):
            parts[i], parts[i + 1] = "", token.content + right


CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
    (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def clean_up(text: str) -> str:
    """Remove spaces before punctuation and English contractions, as transformers does if told to.

    Source: ``clean_up_tokenization_spaces`` of transformers.
    """
    for part, replacement in CLEANED:
        text = text.replace(part, replacement)
    return text


class CutTokenizer(ABC):
    """The base of tokenizers that find added tokens before they split the rest.

    Source of the rules: the tokenizers of transformers that are written in Python.
    """

    unknown_is_word = False
    own_end: int | None = None

    def __init__(
        self, path: Path, pieces: Mapping[str, int], unknown: str, added: Sequence[AddedToken],
        cleaned: bool,
    ) -> None:  # fmt: skip
        """Take a vocabulary.

        Args:
            path: the path of its file, for messages.
            pieces: piece to id.
            unknown: the piece for unknown pieces and ids.
            added: the tokens that are found first.
            cleaned: whether spaces before punctuation are removed from decoded text.
        """
        self._path, self._ids, self._unknown = path, pieces, unknown
        self._added, self._cleaned = AddedTokens(added), cleaned
        self._pieces = {number: piece for piece, number in pieces.items()}
        self._pieces |= {token.id: token.content for token in added}
        self.size = max(self._added.size, *(number + 1 for number in self._pieces))
        self.whole_words = cleaned

    @abstractmethod
    def _cut(self, text: str) -> list[str]:
        """The pieces of a text without added tokens."""

    @abstractmethod
    def _join(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._ids[self._unknown])

    def _split(self, text: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        try:
            for part, number in self._added.cut(text):
                if number is not None:
                    found.append((part, number))
                    continue
                for piece in self._cut(part):
                    token = self._added.by_content.get(piece)
                    found.append((piece, self._id(piece) if token is None else token.id))
        except BaseException as error:
            raise library_error(error, InputError, f"{self._path.name} cannot encode it") from None
        return found

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        return [number for _, number in self._split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer``."""
        try:
            text = self._join(
                [
                    self._pieces.get(i, self._unknown)
                    for i in ids
                    if i >= 0 and i not in self._added.hidden
                ]
            )
        except BaseException as error:
            text = f"{self._path}: cannot decode these ids"
            raise library_error(error, TokenizerError, text) from None
        return clean_up(text) if self._cleaned else text

    def split(self, text: str) -> list[str]:
        """See ``Tokenizer``."""
        return [piece for piece, _ in self._split(text)]

    def piece(self, token: int) -> str:
        """See ``Tokenizer``."""
        return self._pieces.get(token, f"<{token}>")

    def find(self, piece: str) -> int | None:
        """See ``Tokenizer``."""
        added = self._added.by_content.get(piece)
        return self._ids.get(piece) if added is None else added.id
