"""Tokens that are found in a text before it is tokenized, such as ``</s>`` or ``<mask>``."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfexport.json_checks import Check, list_of, of_type, record, whole

_FLAG = of_type("true or false", bool)
ADDED_TOKENS: Check = list_of(
    record(
        {
            "content": of_type("a text", str),
            "id": whole(0),
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
        lstrip: it takes the white space before it.
        rstrip: it takes the white space behind it.
        single_word: it is only found between spaces.
        special: it is left out of decoded text.
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
    """Finds tokens in texts: the leftmost first, and the longest of those that begin there.

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
