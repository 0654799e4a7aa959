"""A lexical shortlist: the target tokens that source tokens allow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.bundle import Manifest
from tfexport.errors import InputError, join_problems, shown
from tfexport.runtime.text.codec import TextCodec, check_id, check_ids

SHOWN = 5  # problems of a file that are listed


class VocabularyMap:
    """A mapping of source tokens to the target tokens that they allow.

    A row may choose tokens that any of its source tokens allows, those always allowed, and end
    tokens.
    """

    def __init__(self, targets: Mapping[int, NDArray[np.int64]], always: NDArray[np.int64]) -> None:
        self._targets, self._always = targets, always

    @classmethod
    def read(
        cls,
        given: str | os.PathLike[str] | Mapping[int, Sequence[int]],
        manifest: Manifest,
        texts: TextCodec,
    ) -> "VocabularyMap":
        """Read a map.

        Args:
            given: a mapping of source ids to target ids, with the key -1 for ids that are always
                allowed; or of source tokens to target tokens, with the key "" for them; or a file:
                on each line a source token, a tab, and target tokens separated by spaces. A line
                that starts with the tab holds the tokens that are always allowed.
            manifest: the manifest of the bundle.
            texts: its tokenizers, for the ids of tokens.

        Raises:
            InputError: naming unknown tokens and malformed lines.
        """
        subject = "vocabulary map"
        pairs: list[tuple[str, Any, Any]]
        if isinstance(given, Mapping):
            pairs = [
                (f"entry {shown(source)}", source, targets) for source, targets in given.items()
            ]
        elif isinstance(given, str | os.PathLike):
            subject, pairs = str(given), _read_lines(Path(given))
        else:
            raise InputError(f"{subject}: {shown(given)} is neither a file nor ids to ids")
        targets: dict[int, NDArray[np.int64]] = {}
        problems: list[str] = []
        limits = manifest.limits
        for where, source, found in pairs:
            try:
                if isinstance(source, str):
                    key = -1
                    if source:
                        number = _find(texts.source.find(source), source)
                        key = check_id(number, limits.source_vocab_size)
                    chosen = [_find(texts.target.find(token), token) for token in _pieces(found)]
                    ids = check_ids(chosen, limits.target_vocab_size)
                else:
                    key = check_id(source, limits.source_vocab_size, least=-1)
                    ids = check_ids(found, limits.target_vocab_size)
            except InputError as error:
                problems.append(f"{where}: {error}")
                continue
            before = targets.get(key, np.zeros(0, np.int64))
            targets[key] = np.union1d(before, np.array(ids, np.int64))
        if problems:
            more = len(problems) - SHOWN
            named = [*problems[:SHOWN], *([f"and {more} more"] if more > 0 else [])]
            raise InputError(join_problems(subject, named))
        return cls(targets, targets.pop(-1, np.zeros(0, np.int64)))

    def candidates(self, ids: Sequence[int], end_tokens: Sequence[int]) -> NDArray[np.int64]:
        """Ascending ids that may be chosen for a row of source ids."""
        found = [self._targets[i] for i in set(ids) if i in self._targets]
        joined = np.concatenate([*found, self._always, np.array(end_tokens, np.int64)])
        candidates: NDArray[np.int64] = np.unique(joined)
        return candidates


def _read_lines(path: Path) -> list[tuple[str, Any, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise InputError(f"{str(path)!r}: not the name of a file: {error}") from None
    if wrong := [i for i, line in enumerate(lines, 1) if line.strip() and "\t" not in line]:
        raise InputError(f"{path}: line {wrong[0]} holds no tab between source and target tokens")
    return [
        (f"line {i}", line.split("\t", 1)[0], line.split("\t", 1)[1].split())
        for i, line in enumerate(lines, 1)
        if line.strip()
    ]


def _pieces(given: Any) -> list[str]:
    """Check that the targets of a token are tokens, not ids."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InputError(f"expected a list of tokens, found {shown(given)}")
    for piece in given:
        if not isinstance(piece, str):
            raise InputError(
                f"{shown(piece)} is not a token; a token is mapped to tokens, ids to ids"
            )
    return list(given)


def _find(token: int | None, piece: str) -> int:
    if token is None:
        raise InputError(f"{shown(piece)} is not a token of the vocabulary")
    return token
