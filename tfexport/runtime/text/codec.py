"""Text to ids as the encoder sees them, and target ids to text: tokenizers and special tokens."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfexport.bundle import Manifest
from tfexport.errors import InputError, Message, Option, TokenizerError, shown
from tfexport.runtime.model_shape import ModelShape
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer

WORD_MARKS = ("▁", "Ġ", " ")  # what vocabularies write in front of a piece that begins a word


class TextCodec:
    """The tokenizers of one bundle. They are loaded when text is first asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        special, shape = manifest.special_ids, ModelShape.of(manifest)
        self._before = [special.bos] if shape.add_source_bos else []
        self._after = [special.eos] if shape.add_source_eos else []

    @property
    def num_special_tokens(self) -> tuple[int, int]:
        """Numbers of special tokens in front of a source text's own tokens, and behind them."""
        return len(self._before), len(self._after)

    def encode(self, text: str, truncate: bool = False, limit: int | None = None) -> list[int]:
        """A text to ids as the encoder sees them; a blank one to none at all.

        Raises:
            InputError: it is no text, or too long and ``truncate`` is false.
            TokenizerError: the bundle holds no tokenizer, or an unusable one.
            MissingDependencyError: the tokenizer's library is not installed.
        """
        tokenizer = self.source
        check_text(text)
        if not text.strip():
            return []
        pieces = tokenizer.encode(text)
        limit = self._limit(limit)
        if truncate and limit is not None:
            pieces = pieces[: max(0, limit - sum(self.num_special_tokens))]
        return self.check_ids([*self._before, *pieces, *self._after], limit=limit)

    def check_ids(
        self, row: Sequence[int], truncate: bool = False, limit: int | None = None
    ) -> list[int]:
        """A row of source ids, checked, and cut if it is too long and ``truncate`` is true.

        Raises:
            InputError: naming what is wrong with it.
        """
        ids = check_ids(row, self._manifest.limits.source_vocab_size)
        limit = self._limit(limit)
        if limit is not None and len(ids) > limit:
            if not truncate:
                raise InputError(Message(
                    f"{len(ids)} tokens are more than the {limit} that the model takes; "
                    "shorten the input, or cut it with ", Option("truncate", True),
                ))  # fmt: skip
            ids = ids[:limit]
        return ids

    def _limit(self, asked: int | None) -> int | None:
        limits = [n for n in (asked, self._manifest.limits.max_source_length) if n is not None]
        return min(limits, default=None)

    def encode_target(self, value: str | Sequence[int]) -> list[int]:
        """Target text, without special tokens, or target ids, checked.

        Raises:
            InputError: naming what is wrong with it.
            TokenizerError: it is text, and the bundle holds no target tokenizer.
        """
        if isinstance(value, str):
            check_text(value)
            value = self.target.encode(value) if value.strip() else []
        return check_ids(value, self._manifest.limits.target_vocab_size)

    def decode(self, tokens: Sequence[int]) -> str:
        """Target ids to text.

        Raises:
            TokenizerError: the bundle holds no tokenizer.
        """
        return self.target.decode(tokens)

    def fill_unknowns(
        self, tokens: Sequence[int], alignment: Sequence[tuple[int, int]], source: str
    ) -> str:
        """Target ids to text, with the aligned part of the source in place of unknown tokens.

        Args:
            tokens: target ids.
            alignment: (source position, target position) pairs; positions in the text's tokens.
            source: the source text.
        """
        unk, surfaces, aligned = (
            self._manifest.special_ids.unk,
            self.source.split(source),
            {target: place for place, target in alignment},
        )
        text, pending = "", list[int]()
        space = ""  # what stands between the text so far and what comes next
        for place, token in enumerate(tokens):
            if token != unk:
                pending.append(token)
                continue
            if pending:
                text += self._space_before(pending[0], space) + self.decode(pending)
            loose = self.target.unknown_is_word or (
                pending and self.target.piece(pending[-1]) in WORD_MARKS
            )
            at = aligned.get(place, len(surfaces))
            surface = surfaces[at] if at < len(surfaces) else self.target.piece(token)
            text += (" " if text and loose and not text.endswith(" ") else "") + surface
            pending, space = [], " "
        if pending:
            text += self._space_before(pending[0], space) + self.decode(pending)
        return text

    def _space_before(self, token: int, space: str) -> str:
        marked = self.target.piece(token).startswith(WORD_MARKS)
        return space if self.target.unknown_is_word or marked else ""

    @cached_property
    def source(self) -> Tokenizer:
        """The source's tokenizer.

        Raises:
            TokenizerError: the bundle holds none.
        """
        found = self._load("source")
        if found is None:
            raise TokenizerError(Message(
                f"{self._folder}: holds no tokenizer, so it takes ids only (on the command line ",
                Option("ids"), ", in Python ``generate``). Export it with ", Option("tokenizer"),
                " to translate text.",
            ))  # fmt: skip
        return found

    @cached_property
    def target(self) -> Tokenizer:
        """The target's tokenizer.

        Raises:
            TokenizerError: the bundle holds none.
        """
        found = self._load("target")
        if found is None:
            raise TokenizerError(f"{self._folder}: holds no target tokenizer.")
        return found

    def _load(self, side: str) -> Tokenizer | None:
        entry = self._manifest.tokenizers.get(side)
        if entry is None:
            return None
        special = self._manifest.special_ids
        return load_tokenizer(
            self._folder / entry.file,
            entry.kind,
            getattr(self._manifest.limits, f"{side}_vocab_size"),
            special.unk,
            hidden=(special.pad, special.bos, special.eos),
        )


def check_rows(name: str, given: Any, kind: str) -> list[Any]:
    """Turn an argument with a value for every row of a call into a list.

    Args:
        name: of the argument.
        given: any iterable.
        kind: of what it should give, for the message.

    Raises:
        InputError: it is one text, or cannot be walked over.
    """
    if isinstance(given, str | bytes):
        raise InputError(Message(Option(name), f": expected a list of {kind}, found one string"))
    try:
        rows = iter(given)
    except TypeError:
        text = f": expected a list of {kind}, found {shown(given)}"
        raise InputError(Message(Option(name), text)) from None
    return list(rows)


def check_text(text: str) -> None:
    """Refuse what is no text, or cannot be written as UTF-8.

    Raises:
        InputError: saying what it is.
    """
    if not isinstance(text, str):
        raise InputError(f"expected a string, found {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"not valid Unicode text: {error.reason}") from None


def check_ids(row: Sequence[int], size: int) -> list[int]:
    """A row of ids of a vocabulary of ``size``, as plain integers.

    Raises:
        InputError: naming the first that is none.
    """
    if isinstance(row, str | bytes):
        raise InputError(f"expected a list of ids, found {shown(row)}")
    try:
        values = list(row)
    except TypeError:
        raise InputError(f"expected a list of ids, found {shown(row)}") from None
    return [check_id(value, size) for value in values]


def check_id(value: Any, size: int, least: int = 0) -> int:
    """An id of a vocabulary of ``size``, as a plain integer.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{shown(value)} is not a whole number")
    if not least <= value < size:
        raise InputError(f"id {shown(value)} is not in the vocabulary (0 to {size - 1})")
    return int(value)
