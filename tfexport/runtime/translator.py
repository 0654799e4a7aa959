"""The public calls of decoding: texts or ids in, results out.

Longer than other files: most of it is signatures, each of them twice for the calls that may return
a future, and what a reader of ``help(Translator)`` needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from tfexport.bundle import Manifest
from tfexport.errors import Message, Option, Problem
from tfexport.runtime.engine import Engine, Hypotheses
from tfexport.runtime.files.line_format import LineFormat
from tfexport.runtime.files.line_task import LineTask
from tfexport.runtime.files.resumable import FileSummary, translate_file
from tfexport.runtime.options import (
    DecodingKeywords,
    DecodingOptions,
    ScoringKeywords,
    given_options,
)
from tfexport.runtime.parallel.cpu import usable_cores
from tfexport.runtime.parallel.thread_layout import ThreadLayout
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import Hypothesis, TranslationResult
from tfexport.runtime.scorer import Scorer
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.text.codec import TextCodec, check_rows
from tfexport.runtime.text_streams import stream_text, translate_texts, unstreamable

if TYPE_CHECKING:  # typing has it from Python 3.11 on
    from typing_extensions import Unpack

Result = TypeVar("Result")


class Translator:
    """Decodes with one bundle. Safe to call from several threads.

    As a context manager, or with ``close``, it waits for what was submitted. A process that is
    forked cannot use its parent's: it opens its own.

    Attributes:
        engine: the open bundle, for programs that make requests and batches of their own.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        threads: int = 0,
        *,
        workers: int = 1,
        queue_size: int | None = None,
        vocabulary_map: str | os.PathLike[str] | Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Check a bundle and open it.

        Args:
            bundle: its folder.
            threads: threads inside an operator; 0 shares the machine's cores among the workers.
            workers: batches decoded at a time, over one set of weights: ``workers * threads``
                threads compute.
            queue_size: batches that may wait or run before a submission waits; by default four
                for each worker.
            vocabulary_map: which target tokens may stand for which source tokens; a file, or ids
                to ids. docs/decoding.md has the format.

        Raises:
            BundleError: it is missing, damaged or too new.
            ConfigError: a number that cannot be.
            InputError: the vocabulary map cannot be used.
        """
        layout = ThreadLayout(workers, threads, queue_size)
        self.engine = Engine(bundle, layout, vocabulary_map)

    @property
    def path(self) -> Path:
        """The bundle's folder."""
        return self.engine.path

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.engine.manifest

    @property
    def texts(self) -> TextCodec:
        """The bundle's tokenizers."""
        return self.engine.texts

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[False] = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[TranslationResult]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[True],
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Future[list[TranslationResult]]: ...

    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[TranslationResult] | Future[list[TranslationResult]]:
        """Translate texts; an empty or blank one becomes an empty one.

        Args:
            texts: one result each, in their order.
            target_prefix: what each target begins with: text or ids, or None.
            asynchronous: return a future at once. Problems with the input are raised here all the
                same; the call waits while the queue is full.
            options: decoding options as one value; keywords win over it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: naming every text that cannot be decoded.
            ConfigError: unknown or contradictory options.
            TokenizerError: the bundle holds no tokenizer.
        """
        sources = check_rows("texts", texts, "strings")
        given = given_options(options, keywords)
        resolver = self.engine.resolver
        resolved, prefixes = resolver.resolve_rows(given, target_prefix, len(sources))
        requests = self.engine.requests(sources, prefixes, resolved, as_ids=False)

        def assemble(found: Hypotheses) -> list[TranslationResult]:
            return [
                self.engine.result(text, request.ids if request else [], hypotheses, resolved)
                for text, request, hypotheses in zip(sources, requests, found, strict=True)
            ]

        return self._run(requests, resolved, assemble, asynchronous)

    @overload
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[False] = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[TranslationResult]: ...

    @overload
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[True],
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Future[list[TranslationResult]]: ...

    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[TranslationResult] | Future[list[TranslationResult]]:
        """Decode rows of source ids, taken as the encoder sees them: no special tokens are added.

        Args:
            ids: one result each, in their order; an empty row becomes an empty hypothesis.
            target_prefix: what each target begins with: ids or text, or None.
            asynchronous: see ``translate``.
            options: decoding options as one value; keywords win over it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: naming every row that cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        rows = check_rows("ids", ids, "rows of ids")
        given = given_options(options, keywords)
        extra = (
            [
                Problem(
                    None, Message(Option("replace_unknowns"), " acts on text; generate gives ids")
                )
            ]
            if given.get("replace_unknowns") is True
            else []
        )
        resolver = self.engine.resolver
        resolved, prefixes = resolver.resolve_rows(given, target_prefix, len(rows), extra)
        requests = self.engine.requests(rows, prefixes, resolved, as_ids=True)

        def assemble(found: Hypotheses) -> list[TranslationResult]:
            return [
                TranslationResult(None, hypotheses, request.ids if request else [])
                for request, hypotheses in zip(requests, found, strict=True)
            ]

        return self._run(requests, resolved, assemble, asynchronous)

    def score(
        self,
        sources: Iterable[str | Sequence[int]],
        targets: Iterable[str | Sequence[int]],
        *,
        options: DecodingOptions | None = None,
        **keywords: Unpack[ScoringKeywords],
    ) -> list[Hypothesis]:
        """Log-probabilities of given targets.

        Args:
            sources: texts, or rows of ids as the encoder sees them.
            targets: texts, or rows of ids without start and end token; one for each source. The
                end token is scored with them.
            options: decoding options as one value; keywords win over it.
            **keywords: ``length_penalty``, ``coverage_penalty``, ``return_attention``,
                ``attention_layer``, ``attention_head``, ``return_token_scores``,
                ``return_end_token``, ``batch_size``, ``batch_type``, ``max_input_length``,
                ``truncate``.

        Returns:
            For each target what decoding would have returned, had it chosen it.

        Raises:
            InputError: naming every pair that cannot be scored.
            ConfigError: unknown options, or such as say how to choose tokens.
        """
        return self.scorer.score(sources, targets, given_options(options, keywords))

    @cached_property
    def scorer(self) -> Scorer:
        """Scores given targets, for programs that read them one by one."""
        return Scorer(self.engine)

    def stream(
        self,
        text: str,
        *,
        target_prefix: Prefix = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Iterator[str]:
        """Translate one text, giving its translation piece by piece as it is decoded.

        No piece ends inside a character, and all together are what ``translate`` gives.

        Args:
            text: what to translate.
            target_prefix: what the target begins with; it is the first piece.
            options: decoding options as one value; keywords win over it.
            **keywords: see ``DecodingOptions``; greedy search or sampling.

        Raises:
            InputError: the text cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        given = given_options(options, keywords)
        extra = unstreamable(given)
        resolved, (prefix,) = self.engine.resolver.resolve(given, [target_prefix], extra)
        request = self.engine.request(text, 0, prefix, resolved, as_ids=False)
        return stream_text(self.engine, request, resolved)

    def translate_iterable(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Iterable[Prefix] | None = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Iterator[TranslationResult]:
        """Translate any number of texts, in constant memory.

        Texts are read ahead, decoded in batches of like length, and given back in their order; the
        next ones are read while these are decoded.

        Args:
            texts: may be endless.
            target_prefix: one for each text.
            options: decoding options as one value; keywords win over it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: a text cannot be decoded; when its turn comes.
            ConfigError: unknown or contradictory options; at once.
        """
        resolved, _ = self.engine.resolver.resolve(given_options(options, keywords))
        return translate_texts(self.engine, texts, target_prefix, resolved)

    def translate_file(
        self,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        target_prefix: Prefix = None,
        jsonl: bool = False,
        resume: bool = False,
        force: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> FileSummary:
        """Translate a file line by line, in constant memory; what ``tfexport translate`` does.

        Args:
            source: UTF-8 lines.
            output: a line for each hypothesis that was asked for; empty for a bad line.
            target_prefix: what every target begins with.
            jsonl: write one JSON object for each line instead.
            resume: go on with an output that was not finished; begin it if there is none.
            force: replace an output that exists.
            options: decoding options as one value; keywords win over it.
            **keywords: see ``DecodingOptions``.

        Returns:
            How many lines there were, and which could not be decoded.

        Raises:
            ConfigError: unknown or contradictory options.
            OutputExistsError: the output stands in the way, or was begun in another way.
            OSError: a file cannot be read or written.
        """
        # Lines of text say no scores.
        given = {"return_scores": jsonl, **given_options(options, keywords)}
        resolved, (prefix,) = self.engine.resolver.resolve(given, [target_prefix])
        line_format = LineFormat(jsonl=jsonl, hypotheses=resolved.num_hypotheses)
        task = LineTask(resolved, line_format, prefix)
        return translate_file(self.engine, source, output, task, resume=resume, force=force)

    def encode(self, text: str, truncate: bool = False) -> list[int]:
        """A text to ids as the encoder sees them; see ``TextCodec.encode``."""
        return self.engine.texts.encode(text, truncate)

    def decode(self, tokens: Sequence[int]) -> str:
        """Target ids to text; see ``TextCodec.decode``."""
        return self.engine.texts.decode(tokens)

    def close(self) -> None:
        """Wait for what was submitted, and stop the workers; a later call starts others."""
        self.engine.close()

    def _run(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        assemble: Callable[[Hypotheses], Result],
        asynchronous: bool,
    ) -> Result | Future[Result]:
        if asynchronous:
            return self.engine.submit(requests, options, assemble)
        return assemble(self.engine.decode(requests, options))

    def __repr__(self) -> str:
        limits = self.manifest.limits
        threads = self.engine.pool_size or usable_cores()
        return (
            f"<Translator of {str(self.path)!r}: vocabularies of {limits.source_vocab_size} and "
            f"{limits.target_vocab_size}, {self.engine.layout.workers} workers, {threads} threads>"
        )

    def __enter__(self) -> Translator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
