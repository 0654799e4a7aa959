"""Decoding of a batch of rows, each of which may have its own languages and prefix.

A row that cannot be decoded has an error; the others are not affected.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import (
    InputError,
    Message,
    MissingDependencyError,
    Option,
    Problem,
    TfexportError,
    shown,
)
from tfexport.languages import Languages
from tfexport.runtime.engine import MOST_INPUT_BYTES, Engine
from tfexport.runtime.options import GIVING_MORE
from tfexport.runtime.parallel.workers import StartError
from tfexport.runtime.results import TranslationResult
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.text.codec import LanguagePair

NO_MEMORY = ("bad_alloc", "Failed to allocate memory")  # in errors of onnxruntime
MAX_ROW_BYTES = 1 << 20  # bytes of a row's text, far more than any model takes


@dataclass(frozen=True)
class Task:
    """How rows are decoded, as values that can be sent to other machines.

    Attributes:
        options: decoding options by name, as given.
        source_language: the language of rows that name none.
        target_language: the language of rows that name none.
        target_prefix: the prefix of rows that have none.
        vocabulary_map: the content of a lexical shortlist's file; None without one.
        place: the folder, as a path or URI, of files that rows name by relative names.
        most_seconds: of a sound; None for the usual limit.
        transcription: options of a Whisper model by name, as given.
        subtitles: the folder, as a path or URI, of the subtitles of each format.
        spell: writes options in the error of a row.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    source_language: str | None = None
    target_language: str | None = None
    target_prefix: str | None = None
    vocabulary_map: bytes | None = None
    place: str = ""
    most_seconds: float | None = None
    transcription: Mapping[str, Any] = field(default_factory=dict)
    subtitles: Mapping[str, str] = field(default_factory=dict)
    spell: Callable[[Option], str] = str

    def identity(self) -> dict[str, Any]:
        """Everything that results depend on, as JSON values."""
        shortlist = self.vocabulary_map
        without_influence = ("batch_size", "batch_type")
        return {
            "options": {
                name: value
                for name, value in _by_name(self.options).items()
                if name not in without_influence
            },
            "languages": [self.source_language, self.target_language],
            "target_prefix": self.target_prefix,
            "vocabulary_map": None if shortlist is None else hashlib.sha256(shortlist).hexdigest(),
            "most_seconds": self.most_seconds,
            "transcription": _by_name(self.transcription),
            "subtitles": _by_name(self.subtitles),
        }


def _by_name(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON values, sorted."""
    return {name: _as_json(value) for name, value in sorted(options.items())}


def make_task(
    options: dict[str, Any],
    source_language: str | None,
    target_language: str | None,
    target_prefix: str | None,
    vocabulary_map: str | os.PathLike[str] | None,
    spell: Callable[[Option], str] = str,
    **of_files: Any,
) -> Task:
    """Make a task; the shortlist's file is read here.

    Args:
        options: see ``Task``.
        source_language: see ``Task``.
        target_language: see ``Task``.
        target_prefix: see ``Task``.
        vocabulary_map: the file.
        spell: see ``Task``.
        **of_files: ``place``, ``most_seconds``, ``transcription`` and ``subtitles``; see ``Task``.

    Raises:
        OSError: it cannot be read.
    """
    shortlist = None if vocabulary_map is None else Path(vocabulary_map).read_bytes()
    return Task(
        options, source_language, target_language, target_prefix, shortlist, spell=spell,
        **of_files,
    )  # fmt: skip


def _as_json(value: Any) -> Any:
    """A value of an option; any sequence becomes a list."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(item) for item in value]
    return value


@dataclass(frozen=True)
class CorpusRow:
    """One row to decode.

    Attributes:
        source: a text, or the name of a file of sound or a picture; any other value is an error of
            the row.
        number: seeds its random numbers.
        source_language: None for the task's.
        target_language: None for the task's.
        target_prefix: None for the task's.
        problem: the reason why there is no source.
    """

    source: Any
    number: int
    source_language: str | None = None
    target_language: str | None = None
    target_prefix: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class RowResult:
    """The outcome of a row: a translation with its score, or an error.

    Attributes:
        translation: None with an error.
        score: the score of the translation; None with an error.
        error: a sentence; None for a row that was decoded.
        tokens: the number of decoded tokens.
        cut: the translation was cut at its longest length, before its end.
        unknown: tokens of the source that the model does not know.
    """

    translation: str | None
    score: float | None
    error: str | None = None
    tokens: int = 0
    cut: bool = False
    unknown: int = 0


def _asks_more(value: Any) -> bool:
    # True equals 1, which is one hypothesis.
    return value not in (None, False, 1) or value is True


def checked_source(row: CorpusRow) -> str:
    """The text of a row.

    Raises:
        InputError: it has none, or one that is too long.
    """
    if row.problem is not None:
        raise InputError(row.problem)
    if not isinstance(row.source, str):
        kind = "null" if row.source is None else shown(row.source)
        raise InputError(f"{kind} is not a string")
    if len(row.source) > MAX_ROW_BYTES:
        raise InputError(f"{len(row.source):,} characters; the limit is {MAX_ROW_BYTES:,}")
    return row.source


class RowDecoder:
    """An open bundle that decodes batches of rows of text.

    Attributes:
        row_columns: columns with an option for each row; they include languages only for a model
            with language tokens.
    """

    def __init__(self, engine: Engine, task: Task) -> None:
        """Check the task against the bundle.

        Raises:
            ConfigError: options are invalid or have no effect on rows; all are listed.
            TokenizerError: the bundle has no tokenizer.
        """
        self._engine, self._task = engine, task
        self._check_bundle()
        engine.texts.encode_target("")
        known = engine.manifest.languages or Languages()
        counted = {
            "source_language": known.source_place or known.source,
            "target_language": known.target_place or known.target,
            "target_prefix": True,
        }
        self.row_columns = tuple(name for name, counts in counted.items() if counts)
        misplaced = [
            Problem(name, "the rows of a corpus have no column for its result")
            for name in GIVING_MORE
            if _asks_more(task.options.get(name))
        ]
        misplaced += self._misplaced(task.options)
        self._keywords = task.options
        if self._resolve(self._any_languages(), misplaced).sampling:
            # Sampling has to give the same results if a row is decoded again.
            self._keywords = {"seed": 0, **task.options}

    def decode(self, rows: Sequence[CorpusRow], scores: bool = True) -> list[RowResult]:
        """Decode rows in batches of similar length; results are in the order of the rows.

        Args:
            rows: rows of any length and languages.
            scores: without them greedy search is faster, and every score is None.

        Raises:
            MemoryError: there was not enough.
            MissingDependencyError: a library that reads files is not installed.
        """
        results: list[RowResult | None] = [None] * len(rows)
        groups: dict[LanguagePair, list[tuple[int, Request]]] = {}
        resolved: dict[LanguagePair, ResolvedOptions] = {}
        held = 0  # bytes of requests

        def decode_groups() -> None:
            for language_pair, members in groups.items():
                options = resolved[language_pair]
                found = self._decode([request for _, request in members], options)
                for (place, request), result in zip(members, found, strict=True):
                    results[place] = self._made(rows[place], request, result, options)
            groups.clear()

        for place, row in enumerate(rows):
            language_pair = self._language_pair(row)
            try:
                if language_pair not in resolved:
                    resolved[language_pair] = self._resolve(language_pair, scores=scores)
                request = self._request(row, resolved[language_pair])
            except MissingDependencyError:
                raise
            except TfexportError as error:
                results[place] = self._failed(error)
                continue
            if request is None:
                results[place] = RowResult("", 0.0 if scores else None)
            else:
                groups.setdefault(language_pair, []).append((place, request))
                held += request.input_bytes
                if held >= MOST_INPUT_BYTES:
                    decode_groups()
                    held = 0
        decode_groups()
        return [result for result in results if result is not None]

    def close(self) -> None:
        """Stop the threads that decode."""
        self._engine.close()

    def _check_bundle(self) -> None:
        """Check that the bundle takes what rows hold."""
        self._engine.manifest.require_ids()

    def _misplaced(self, options: Mapping[str, Any]) -> list[Problem]:
        """The problems of options without effect on such rows."""
        return []

    def _any_languages(self) -> LanguagePair:
        """The task's languages; or any of the model's if each row must name one."""
        known = self._engine.manifest.languages or Languages()
        unsaid = next(iter(known.ids), None)
        source, target = self._task.source_language, self._task.target_language
        if known.source_place is not None and known.source is None:
            source = source or unsaid
        if known.target_place is not None and known.target is None:
            target = target or unsaid
        return LanguagePair(source, target)

    def _language_pair(self, row: CorpusRow) -> LanguagePair:
        source, target = self._task.source_language, self._task.target_language
        if "source_language" in self.row_columns:
            source = row.source_language or source
        if "target_language" in self.row_columns:
            target = row.target_language or target
        return LanguagePair(source, target)

    def _resolve(
        self, language_pair: LanguagePair, extra: Sequence[Problem] = (), scores: bool = True
    ) -> ResolvedOptions:
        """Resolve the options of rows in these languages."""
        prefix = self._task.target_prefix
        keywords = self._keywords if scores else {**self._keywords, "return_scores": False}
        options, _ = self._engine.resolver.resolve(keywords, [prefix], extra, language_pair)
        return options

    def _request(self, row: CorpusRow, options: ResolvedOptions) -> Request | None:
        source = checked_source(row)
        given = self._task.target_prefix if row.target_prefix is None else row.target_prefix
        try:
            prefix = self._engine.resolver.check_prefix(
                given, options.max_length, options.end_tokens
            )
        except InputError as error:
            raise InputError(Message("target prefix: ", error.message)) from None
        return self._request_of(source, row.number, prefix, options)

    def _request_of(
        self, source: str, number: int, prefix: tuple[int, ...], options: ResolvedOptions
    ) -> Request | None:
        return self._engine.request(source, number, prefix, options, as_ids=False)

    def _decode(self, requests: Sequence[Request], options: ResolvedOptions) -> Iterator[Any]:
        """The hypotheses of each request, or its exception; a MemoryError is raised."""
        try:
            yield from self._engine.decode(requests, options)
            return
        except StartError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base
            if isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY):
                raise MemoryError(str(error)) from error
            if len(requests) == 1:
                yield error
                return
        half = len(requests) // 2  # decode each row alone, so that one error affects no other row
        yield from self._decode(requests[:half], options)
        yield from self._decode(requests[half:], options)

    def _made(
        self, row: CorpusRow, request: Request, found: Any, options: ResolvedOptions
    ) -> RowResult:
        if isinstance(found, Exception):
            return RowResult(None, None, f"could not be decoded: {found}")
        try:
            result: TranslationResult = self._engine.result(row.source, request.ids, found, options)
        except TfexportError as error:
            return self._failed(error)
        best = result.hypotheses[0]
        score = None if math.isnan(best.score) else best.score
        unknown = self._engine.texts.count_unknowns(request.ids)
        return RowResult(result.text, score, None, len(best.tokens), not best.finished, unknown)

    def _failed(self, error: TfexportError) -> RowResult:
        return RowResult(None, None, error.message.spelled(self._task.spell))
