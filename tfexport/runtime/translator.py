"""The front door of decoding: a bundle, texts or ids in, results out."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError, InputError, TokenizerError, join_problems
from tfexport.runtime.model import Model
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.result import Hypothesis, TranslationResult
from tfexport.runtime.search import greedy, greedy_in_one_call
from tfexport.runtime.tokenizer import Tokenizer, load_tokenizer


class Translator:
    """Decodes with one bundle. Safe to call from several threads."""

    def __init__(self, bundle: str | os.PathLike[str], threads: int = 0) -> None:
        """Check a bundle and open it.

        Args:
            bundle: its folder.
            threads: threads inside an operator; 0 takes the machine's cores.

        Raises:
            BundleError: it is missing, damaged or too new.
        """
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            raise ConfigError(f"threads: {threads!r} is not a whole number from 0 on")
        self.path = Path(bundle)
        self.manifest = open_bundle(self.path)
        self._model = Model(self.path, self.manifest, threads)

    def translate(self, texts: Iterable[str], **options: Any) -> list[TranslationResult]:
        """Translate texts; an empty or blank one becomes an empty one.

        Args:
            texts: one result each, in their order.
            **options: see ``DecodingOptions``.

        Raises:
            InputError: naming every text that cannot be decoded.
            ConfigError: an unknown or contradictory option.
            TokenizerError: the bundle holds no tokenizer.
        """
        checked = DecodingOptions.from_keywords(options)
        if isinstance(texts, str):
            raise InputError("texts: expected a list of strings, found one string")
        rows, problems = [], []
        for i, text in enumerate(texts):
            try:
                rows.append(self.encode(text, truncate=checked.truncate))
            except InputError as error:
                problems.append(f"text {i}: {error}")
        if problems:
            raise InputError(join_problems("translate", problems))
        return [
            TranslationResult(self.decode(result[0].tokens), result)
            for result in self.search(rows, checked)
        ]

    def generate(self, ids: Iterable[Sequence[int]], **options: Any) -> list[TranslationResult]:
        """Decode rows of source ids, taken as the encoder sees them: no framing is added.

        Args:
            ids: one result each, in their order; an empty row becomes an empty hypothesis.
            **options: see ``DecodingOptions``.

        Raises:
            InputError: naming every row that cannot be decoded.
            ConfigError: an unknown or contradictory option.
        """
        checked = DecodingOptions.from_keywords(options)
        rows, problems = [], []
        for i, row in enumerate(ids):
            try:
                rows.append(self.check_ids(row, truncate=checked.truncate))
            except InputError as error:
                problems.append(f"row {i}: {error}")
        if problems:
            raise InputError(join_problems("generate", problems))
        return [TranslationResult(None, result) for result in self.search(rows, checked)]

    def encode(self, text: str, truncate: bool = False) -> list[int]:
        """A text to ids as the encoder sees them; a blank one to none at all.

        Raises:
            InputError: it is no text, or too long and ``truncate`` is false.
            TokenizerError: the bundle holds no tokenizer, or an unusable one.
            MissingDependencyError: the tokenizer's library is not installed.
        """
        if self._source_tokenizer is None:
            raise TokenizerError(
                f"{self.path}: holds no tokenizer, so it takes ids only (--ids, or generate). "
                "Export it with --tokenizer to translate text."
            )
        if not isinstance(text, str):
            raise InputError(f"expected a string, found {text!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"not valid Unicode text: {error.reason}") from None
        if not text.strip():
            return []
        special, config = self.manifest.special_ids, self.manifest.config
        before = [special.bos] if config["add_source_bos"] else []
        after = [special.eos] if config["add_source_eos"] else []
        pieces = self._source_tokenizer.encode(text)
        limit = self.manifest.limits.max_source_length
        if truncate and limit is not None:
            pieces = pieces[: max(0, limit - len(before) - len(after))]
        return self.check_ids([*before, *pieces, *after])

    def decode(self, tokens: Sequence[int]) -> str:
        """Target ids to text.

        Raises:
            TokenizerError: the bundle holds no tokenizer.
        """
        if self._target_tokenizer is None:
            raise TokenizerError(f"{self.path}: holds no target tokenizer.")
        return self._target_tokenizer.decode(tokens)

    def check_ids(self, row: Sequence[int], truncate: bool = False) -> list[int]:
        """A row of source ids, checked, and cut if it is too long and ``truncate`` is true.

        Raises:
            InputError: naming what is wrong with it.
        """
        size = self.manifest.limits.source_vocab_size
        if isinstance(row, str | bytes):
            raise InputError(f"expected a list of ids, found {row!r}")
        ids = []
        for value in row:
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InputError(f"{value!r} is not a whole number")
            if not 0 <= value < size:
                raise InputError(f"id {value} is not in the vocabulary (0 to {size - 1})")
            ids.append(int(value))
        limit = self.manifest.limits.max_source_length
        if limit is not None and len(ids) > limit:
            if not truncate:
                raise InputError(
                    f"{len(ids)} tokens are more than the {limit} that the model takes; "
                    "shorten the input, or cut it with truncate"
                )
            ids = ids[:limit]
        return ids

    def search(
        self, rows: Sequence[Sequence[int]], options: DecodingOptions
    ) -> list[list[Hypothesis]]:
        """Decode checked rows: for each, its hypotheses, best first."""
        results = [[Hypothesis([], 0.0)] for _ in rows]
        special, limit = self.manifest.special_ids, self.manifest.limits.max_target_length
        max_length = options.max_length if limit is None else min(options.max_length, limit)
        # Rows of like length together, so that little is padded.
        order = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
        for start in range(0, len(order), options.batch_size):
            batch = order[start : start + options.batch_size]
            chosen = [rows[i] for i in batch]
            if self._model.has_generate:
                found = greedy_in_one_call(self._model, chosen, max_length, special.eos)
            else:
                found = greedy(self._model, chosen, max_length, special.bos, special.eos)
            for i, hypothesis in zip(batch, found, strict=True):
                results[i] = [hypothesis]
        return results

    # Loaded when text is first asked for: ids need no tokenizer, and no library for one.
    @cached_property
    def _source_tokenizer(self) -> Tokenizer | None:
        return self._load_tokenizer("source")

    @cached_property
    def _target_tokenizer(self) -> Tokenizer | None:
        return self._load_tokenizer("target")

    def _load_tokenizer(self, side: str) -> Tokenizer | None:
        entry = self.manifest.tokenizers.get(side)
        if entry is None:
            return None
        special = self.manifest.special_ids
        return load_tokenizer(
            self.path / entry.file,
            entry.kind,
            getattr(self.manifest.limits, f"{side}_vocab_size"),
            special.unk,
            hidden=(special.pad, special.bos, special.eos),
        )
