"""Decoders of a corpus: of texts, of files of sound or pictures, and of sounds by Whisper models.

A row of files has the name of its file. A file that cannot be read is an error of its row.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from pyarrow import fs

from tfexport.corpus.filesystem import file_system, public
from tfexport.corpus.row_decoder import (
    NO_MEMORY,
    CorpusRow,
    RowDecoder,
    RowResult,
    Task,
    checked_source,
)
from tfexport.corpus.subtitle_files import SubtitleFiles
from tfexport.errors import (
    ConfigError,
    InputError,
    MissingDependencyError,
    Problem,
    TfexportError,
    join_problems,
    shown,
)
from tfexport.preprocessing import AUDIO
from tfexport.runtime.engine import Engine, acts_on_text, cut_ids
from tfexport.runtime.media.limits import MOST_SECONDS, MediaLimits
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.parallel.workers import StartError, Workers
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.speech.transcriber import Transcriber
from tfexport.runtime.speech.transcription import (
    Transcription,
    TranscriptionOptions,
)
from tfexport.speech import language_code

_MOST_FILE_BYTES = 1 << 30  # of a file that is not on a disk, which is kept in memory
# Decoding options that transcription has too.
_OF_SPEECH = ("batch_size", "seed", "temperature")
_Sound = tuple[str, str | bytes]  # its name, and its path or bytes


class CorpusDecoder(Protocol):
    """Decodes batches of rows; safe to call from several threads.

    Attributes:
        row_columns: columns with an option for each row.
    """

    row_columns: tuple[str, ...]

    def decode(self, rows: Sequence[CorpusRow], scores: bool = True) -> list[RowResult]:
        """The outcome of each row; see ``RowDecoder.decode``."""

    def close(self) -> None:
        """Stop the threads that decode."""


class NamedFiles:
    """The files that rows name: by a path, by one relative to a folder, or by a URI."""

    def __init__(self, place: str) -> None:
        """Name the folder, as a path or URI; "" for the current one."""
        self._system, self._folder = file_system(place or os.curdir)

    def content(self, name: str) -> str | bytes:
        """The path of a file; of one that is not on a disk, its bytes.

        Raises:
            InputError: it cannot be read.
        """
        system, path = self._system, f"{self._folder}/{name}"
        if "\0" in name:
            raise InputError(f"{name!r} is not the name of a file")
        if "://" in name:
            try:
                system, path = file_system(name)
            except ConfigError as error:
                raise InputError(error.message) from None
        elif Path(name).is_absolute():
            path = name
        if isinstance(system, fs.LocalFileSystem):
            return path
        try:
            return _bytes_of(system, path, public(name))
        except OSError as error:
            raise InputError(f"{public(name)}: {error}") from None


def _bytes_of(system: fs.FileSystem, path: str, name: str) -> bytes:
    with system.open_input_stream(path) as stream:
        content: bytes = stream.read(_MOST_FILE_BYTES + 1)
    if len(content) > _MOST_FILE_BYTES:
        raise InputError(f"{name}: has more than {_MOST_FILE_BYTES:,} bytes; copy it to a disk")
    return content


class FileDecoder(RowDecoder):
    """An open bundle that decodes batches of rows of files, of sound or of pictures."""

    def __init__(self, engine: Engine, task: Task) -> None:
        """Check the task against the bundle; see ``RowDecoder``."""
        self._files = NamedFiles(task.place)
        super().__init__(engine, task)

    def _check_bundle(self) -> None:
        assert self._engine.manifest.media is not None

    def _misplaced(self, options: Mapping[str, Any]) -> list[Problem]:
        return [*acts_on_text(options, "a corpus of files"), *cut_ids(options)]

    def _request_of(
        self, source: str, number: int, prefix: tuple[int, ...], options: ResolvedOptions
    ) -> Request | None:
        if not source.strip():
            return None
        row = {self._engine.manifest.media: self._files.content(source)}
        return self._engine.request_from(row, number, prefix, options)


class SpeechDecoder:
    """An open bundle of a Whisper model that transcribes batches of rows of sounds of any length.

    The score of a row is the mean log-probability of its tokens.

    Attributes:
        row_columns: the language of the sounds, of a model of several languages.
    """

    def __init__(self, engine: Engine, task: Task) -> None:
        """Check the task against the bundle.

        Raises:
            ConfigError: options are invalid or have no effect on sounds; all are listed.
            TokenizerError: the bundle has no tokenizer.
        """
        self._engine, self._task, self._files = engine, task, NamedFiles(task.place)
        self._subtitles = SubtitleFiles(task.subtitles)
        engine.texts.encode_target("")
        asked = {**task.options, "target_language": task.target_language,
                 "target_prefix": task.target_prefix}  # fmt: skip
        problems = [
            Problem(name, "a Whisper model's sounds are transcribed, which has no such option")
            for name, value in asked.items()
            if value is not None and name not in _OF_SPEECH
        ]
        if problems:
            raise ConfigError(join_problems("corpus", problems))
        of_languages = engine.manifest.speech is not None and engine.manifest.speech.multilingual
        self.row_columns: tuple[str, ...] = ("source_language",) if of_languages else ()
        self._transcriber(task.source_language)
        self._batch_size = self._options(None).batch_size
        layout = engine.layout
        self._workers = Workers(layout.workers, layout.most_waiting)

    def decode(self, rows: Sequence[CorpusRow], scores: bool = True) -> list[RowResult]:
        """Transcribe rows in their order; rows of a language share batches.

        Raises:
            MemoryError: there was not enough.
            MissingDependencyError: a library that reads files is not installed.
        """
        groups = dict[str | None, list[int]]()
        for place, row in enumerate(rows):
            language = row.source_language if self.row_columns else None
            groups.setdefault(language or self._task.source_language, []).append(place)
        found = dict[int, RowResult]()
        jobs = []
        for language, places in groups.items():
            try:
                transcriber = self._transcriber(language)
            except ConfigError as error:
                found |= {place: self._failed(error) for place in places}
                continue
            for at in range(0, len(places), self._batch_size):
                batch = places[at : at + self._batch_size]
                chosen = [rows[place] for place in batch]
                jobs.append((batch, self._workers.submit(self._decode, transcriber, chosen)))
        for batch, job in jobs:
            found |= dict(zip(batch, job.result(), strict=True))
        return [found[place] for place in range(len(rows))]

    def close(self) -> None:
        """Stop the threads that decode."""
        self._workers.close()
        self._engine.close()

    def _transcriber(self, language: str | None) -> Transcriber:
        speech = self._engine.manifest.speech
        assert speech is not None
        known = sorted(speech.languages) or ["en"]
        if language is not None and language_code(language) not in known:
            text = f"{shown(language)} is not a language of the model; known: {', '.join(known)}"
            raise ConfigError(join_problems("corpus", [Problem("source_language", text)]))
        most = self._task.most_seconds or MOST_SECONDS
        return Transcriber(self._engine, self._options(language), most)

    def _options(self, language: str | None) -> TranscriptionOptions:
        values = {**self._task.options, **self._task.transcription}
        return TranscriptionOptions(**values, language=language)

    def _decode(self, transcriber: Transcriber, rows: Sequence[CorpusRow]) -> list[RowResult]:
        """The outcome of rows of one language, which are decoded together."""
        made, sounds = dict[int, RowResult](), dict[int, _Sound]()
        for place, row in enumerate(rows):
            try:
                name = checked_source(row)
                if name.strip():
                    sounds[place] = name, self._files.content(name)
                else:
                    made[place] = RowResult("", 0.0)
            except InputError as error:
                made[place] = self._failed(error)
        found = self._transcribed(transcriber, [*sounds.values()])
        made |= dict(zip(sounds, found, strict=True))
        return [made[place] for place in range(len(rows))]

    def _transcribed(
        self, transcriber: Transcriber, sounds: Sequence[_Sound]
    ) -> Iterator[RowResult]:
        try:
            contents = transcriber.stream([content for _, content in sounds])
            yield from [
                self._made(name, found) for (name, _), found in zip(sounds, contents, strict=True)
            ]
            return
        except (StartError, MissingDependencyError):
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base
            if isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY):
                raise MemoryError(str(error)) from error
            if len(sounds) == 1:
                yield RowResult(None, None, f"could not be decoded: {error}")
                return
        for sound in sounds:  # each alone, so that one error affects no other row
            yield from self._transcribed(transcriber, [sound])

    def _made(self, name: str, found: Any) -> RowResult:
        if not isinstance(found, Transcription):
            return self._failed(found)
        try:
            self._subtitles.write(name, found)
        except InputError as error:
            return self._failed(error)
        counts = [len(segment.tokens) for segment in found.segments]
        score = None
        if tokens := sum(counts):
            each = (segment.avg_logprob for segment in found.segments)
            score = sum(mean * count for mean, count in zip(each, counts, strict=True)) / tokens
        return RowResult(found.text.strip(), score, tokens=tokens)

    def _failed(self, error: TfexportError) -> RowResult:
        return RowResult(None, None, error.message.spelled(self._task.spell))


def open_decoder(folder: Path, layout: ThreadLayout, task: Task) -> CorpusDecoder:
    """Open a bundle for a task.

    Raises:
        BundleError: it is missing or damaged.
        ConfigError: the task does not fit it.
    """
    limits = None if task.most_seconds is None else MediaLimits(seconds=task.most_seconds)
    if task.vocabulary_map is None:
        return _decoder(Engine(folder, layout, media_limits=limits), task)
    with TemporaryDirectory() as place:
        path = Path(place, "vocabulary_map")
        path.write_bytes(task.vocabulary_map)
        return _decoder(Engine(folder, layout, path, media_limits=limits), task)


def _decoder(engine: Engine, task: Task) -> CorpusDecoder:
    manifest = engine.manifest
    problems = []
    if task.most_seconds is not None and manifest.media != AUDIO:
        problems.append(Problem("max_seconds", f"{engine.path} does not read sound"))
    if manifest.media is None or manifest.speech is None:
        text = f"{engine.path} is not decoded as Whisper is"
        problems += [Problem(name, text) for name in (*task.transcription, *task.subtitles)]
    if problems:
        raise ConfigError(join_problems("corpus", problems))
    if manifest.media is None:
        return RowDecoder(engine, task)
    if manifest.speech is None:
        return FileDecoder(engine, task)
    return SpeechDecoder(engine, task)
