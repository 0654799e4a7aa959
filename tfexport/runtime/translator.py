"""The public interface of decoding: texts or ids to results.

numpy, and what needs it, is imported when a bundle is opened, while the digests of its files are
computed in a thread. What not every program needs is imported by the call that needs it. Signatures
name types of both by ``tfexport.runtime``. So a process decodes its first sentence sooner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tfexport import runtime, typing
from tfexport.bundle import Manifest, check_ahead
from tfexport.runtime.media.limits import MOST_SECONDS, MediaLimits
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.options import (
    DecodingKeywords,
    DecodingOptions,
    ScoringKeywords,
    TranslationKeywords,
    given_options,
    naming_options,
)
from tfexport.runtime.parallel.cpu import ThreadLayout, usable_cores
from tfexport.runtime.text.codec import LanguagePair, TextCodec, check_rows
from tfexport.typing import Unpack

if TYPE_CHECKING:
    from tfexport.runtime.scorer import Scorer

Result = TypeVar("Result")


class Translator:
    """A bundle, opened for decoding. Safe to use from several threads.

    ``close``, or leaving the ``with`` block, waits for submitted batches and releases the model's
    memory. After a fork the child process has to open its own translator.

    Attributes:
        engine: the lower interface, for programs such as servers that batch requests themselves.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        threads: int = 0,
        *,
        workers: int = 1,
        queue_size: int | None = None,
        vocabulary_map: str | os.PathLike[str] | Mapping[int, Sequence[int]] | None = None,
        engine: EngineName = "auto",
        media_limits: MediaLimits | None = None,
    ) -> None:
        """Check a bundle and load it.

        Args:
            bundle: its folder.
            threads: threads of each worker; 0 divides the usable cores among the workers.
            workers: batches decoded in parallel, with shared weights, on ``workers * threads``
                threads.
            queue_size: batches that may be queued or running before a further submission blocks;
                by default four for each worker.
            vocabulary_map: a lexical shortlist, the target tokens allowed for each source token:
                a file, or a mapping of ids. docs/decoding.md has the format.
            engine: "onnxruntime"; "native", of the distribution tfexport-native; or "auto", the
                native one if it is installed and covers the model.
            media_limits: how long a sound, and how large a picture, ``generate_from`` reads.

        Raises:
            BundleError: it is missing, damaged or too new.
            ConfigError: a number is out of bounds, or the native engine cannot run the bundle.
            InputError: the vocabulary map is malformed, or names unknown tokens.
        """
        layout = ThreadLayout(workers, threads, queue_size)
        check = check_ahead(bundle)  # while the following is imported
        from tfexport.runtime.engine import Engine  # noqa: PLC0415

        self.engine = Engine(bundle, layout, vocabulary_map, engine, media_limits, check)

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
        target_prefix: Sequence[runtime.Prefix] | None = None,
        terms: runtime.GivenTerms = None,
        source_language: str | None = None,
        target_language: str | None = None,
        asynchronous: Literal[False] = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[runtime.TranslationResult]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        terms: runtime.GivenTerms = None,
        source_language: str | None = None,
        target_language: str | None = None,
        asynchronous: Literal[True],
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> typing.Future[list[runtime.TranslationResult]]: ...

    @naming_options(DecodingKeywords)
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        terms: runtime.GivenTerms = None,
        source_language: str | None = None,
        target_language: str | None = None,
        asynchronous: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[runtime.TranslationResult] | typing.Future[list[runtime.TranslationResult]]:
        """Translate texts; the translation of a blank text is empty.

        Args:
            texts: each gives one result, in the same order.
            target_prefix: the forced start of each target, as text or ids; None for none.
            terms: pairs of a source phrase and its target phrase, or a list of these of which one
                suffices: where the source phrase occurs, a target phrase has to. Or ``Terms``, made
                of such pairs once; or a list of ``Terms`` and None, one for each text. Terms that
                cannot be met are in the result's ``unmet_terms``.
            source_language: code of the language of the texts, for models with language tokens;
                None for the bundle's default.
            target_language: code of the language to translate into, in the same way.
            asynchronous: return a future. Invalid input is still raised by the call itself, which
                blocks while the queue is full.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: naming every text that cannot be decoded, or terms that are wrong.
            ConfigError: unknown or contradictory options.
            TokenizerError: the bundle holds no tokenizer.
        """
        from tfexport.runtime.engine import requests_of  # noqa: PLC0415

        sources = check_rows("texts", texts, "strings")
        given = given_options(options, keywords)
        resolver = self.engine.resolver
        language_pair = LanguagePair(source_language, target_language)
        resolved, prefixes = resolver.resolve_rows(
            given, target_prefix, len(sources), language_pair=language_pair
        )
        row_terms: list[runtime.Terms | None] = [None] * len(sources)
        if terms is not None:
            from tfexport.runtime.terms import terms_of_rows  # noqa: PLC0415

            row_terms = terms_of_rows(terms, len(sources))
        requests = requests_of(
            self.engine, sources, prefixes, resolved, as_ids=False, terms=row_terms
        )

        def assemble(found: runtime.Hypotheses) -> list[runtime.TranslationResult]:
            return [
                self.engine.result(
                    text, request.ids if request else [], hypotheses, resolved, terms=of_row
                )
                for text, request, hypotheses, of_row in zip(
                    sources, requests, found, row_terms, strict=True
                )
            ]

        return self._run(requests, resolved, assemble, asynchronous)

    @overload
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        required: runtime.GivenRequired = None,
        target_language: str | None = None,
        asynchronous: Literal[False] = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[runtime.TranslationResult]: ...

    @overload
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        required: runtime.GivenRequired = None,
        target_language: str | None = None,
        asynchronous: Literal[True],
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> typing.Future[list[runtime.TranslationResult]]: ...

    @naming_options(DecodingKeywords)
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        required: runtime.GivenRequired = None,
        target_language: str | None = None,
        asynchronous: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[runtime.TranslationResult] | typing.Future[list[runtime.TranslationResult]]:
        """Decode rows of source ids, which go to the encoder as they are, without special tokens.

        Args:
            ids: each row gives one result, in the same order; that of an empty row is empty.
            target_prefix: the forced start of each target, as ids or text; None for none.
            required: for each row, what its target has to contain, or None: a list of
                requirements, each a list of phrases of which one suffices, each a list of ids. One
                that is listed twice has to be met twice. What cannot be met is in ``unmet`` of the
                hypotheses, by its index.
            target_language: code of the language to translate into, for models whose decoder has a
                token for it; None for the bundle's default.
            asynchronous: see ``translate``.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: naming every row that cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        from tfexport.runtime.engine import acts_on_text, requests_of  # noqa: PLC0415
        from tfexport.runtime.results import TranslationResult  # noqa: PLC0415

        rows = check_rows("ids", ids, "rows of ids")
        given = given_options(options, keywords)
        extra = acts_on_text(given, "generate")
        resolver = self.engine.resolver
        language_pair = LanguagePair(target=target_language, as_ids=True)
        resolved, prefixes = resolver.resolve_rows(
            given, target_prefix, len(rows), extra, language_pair
        )
        of_rows: Sequence[runtime.Required | None] | None = None
        if required is not None:
            from tfexport.runtime.term_tokens import required_of_rows  # noqa: PLC0415

            size = self.manifest.limits.target_vocab_size
            of_rows = required_of_rows(required, len(rows), size, resolved)
        requests = requests_of(self.engine, rows, prefixes, resolved, as_ids=True, required=of_rows)

        def assemble(found: runtime.Hypotheses) -> list[runtime.TranslationResult]:
            given = [request.ids if request else [] for request in requests]
            return [
                TranslationResult(
                    None, hypotheses, ids, unknown_tokens=self.engine.count_unknown(ids)
                )
                for ids, hypotheses in zip(given, found, strict=True)
            ]

        return self._run(requests, resolved, assemble, asynchronous)

    @naming_options(DecodingKeywords)
    def generate_from(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        target_prefix: Sequence[runtime.Prefix] | None = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[runtime.TranslationResult]:
        """Decode rows of a user's module's inputs: images, frames, ids, several at once.

        Args:
            rows: each maps an input to its array, without the batch axis, and gives one result, in
                the same order. Rows of one shape are decoded together. A bundle with preprocessing
                takes files too: ``{"audio": sound}`` or ``{"image": picture}``, each a path, the
                bytes of a file, or samples and their rate ``(array, rate)``, or an array of pixels.
            target_prefix: the forced start of each target, as ids or text; None for none.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: naming every row that cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        from tfexport.runtime.engine import acts_on_text, cut_ids, requests_from  # noqa: PLC0415
        from tfexport.runtime.results import TranslationResult  # noqa: PLC0415

        listed = check_rows("rows", rows, "mappings of input to array")
        given = given_options(options, keywords)
        extra = [*acts_on_text(given, "generate_from"), *cut_ids(given)]
        resolved, prefixes = self.engine.resolver.resolve_rows(
            given, target_prefix, len(listed), extra, LanguagePair(as_ids=True)
        )
        requests = requests_from(self.engine, listed, prefixes, resolved)
        found = self.engine.decode(requests, resolved)
        if not self.engine.gives_text:
            return [TranslationResult(None, hypotheses) for hypotheses in found]
        return [self.engine.result("", [], hypotheses, resolved) for hypotheses in found]

    def transcribe(
        self,
        sounds: Iterable[Any],
        *,
        options: runtime.TranscriptionOptions | None = None,
        most_seconds: float = MOST_SECONDS,
        **keywords: Unpack[runtime.TranscriptionKeywords],
    ) -> list[runtime.Transcription]:
        """Transcribe sounds of any length with a Whisper model, as transformers' ``generate`` does.

        Args:
            sounds: each the path of a file, its bytes, or samples and their rate ``(array, rate)``.
            options: options as one value; keywords override it.
            most_seconds: of one sound.
            **keywords: see ``TranscriptionOptions``.

        Raises:
            InputError: naming every sound that cannot be transcribed.
            ConfigError: the bundle is of another model, or options are unknown or contradictory.
        """
        from tfexport.runtime.speech.transcriber import Transcriber  # noqa: PLC0415
        from tfexport.runtime.speech.transcription import merge_options  # noqa: PLC0415

        chosen = merge_options(options, keywords)
        listed = check_rows("sounds", sounds, "sounds")
        return Transcriber(self.engine, chosen, most_seconds).transcribe(listed)

    @naming_options(ScoringKeywords)
    def score(
        self,
        sources: Iterable[str | Sequence[int]],
        targets: Iterable[str | Sequence[int]],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[ScoringKeywords],
    ) -> list[runtime.Hypothesis]:
        """Score given targets by teacher forcing.

        Args:
            sources: texts, or rows of ids as ``generate`` takes them.
            targets: texts, or rows of ids without start and end token; one for each source. The
                log-probability of the end token is included.
            source_language: see ``translate``.
            target_language: see ``translate``; a target text gets its token, a row of ids has to
                contain it.
            options: decoding options as one value; keywords override it.
            **keywords: ``length_penalty``, ``coverage_penalty``, ``return_attention``,
                ``attention_layer``, ``attention_head``, ``return_token_scores``,
                ``return_end_token``, ``batch_size``, ``batch_type``, ``max_input_length``,
                ``truncate``.

        Returns:
            The hypothesis of each target, as a search returns it.

        Raises:
            InputError: naming every pair that cannot be scored.
            ConfigError: unknown options, or those of search and sampling.
        """
        given = given_options(options, keywords, changed_only=True)
        language_pair = LanguagePair(source_language, target_language)
        return self.scorer.score(sources, targets, given, language_pair)

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer of ``score``, for programs that score pairs as they arrive."""
        from tfexport.runtime.scorer import Scorer  # noqa: PLC0415

        return Scorer(self.engine)

    @naming_options(DecodingKeywords)
    def stream(
        self,
        text: str,
        *,
        target_prefix: runtime.Prefix = None,
        source_language: str | None = None,
        target_language: str | None = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Iterator[str]:
        """Translate one text and yield its translation in pieces, as they are decoded.

        Pieces consist of complete characters; joined they are the text that ``translate`` returns
        with ``beam_size=1``: a beam that is the bundle's own default cannot be streamed, and is
        left out.

        Args:
            text: the source text.
            target_prefix: the forced start of the target, which is yielded first.
            source_language: see ``translate``.
            target_language: see ``translate``.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``; greedy search or sampling.

        Raises:
            InputError: the text cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        from tfexport.runtime.streaming import stream_text, streamed, unstreamable  # noqa: PLC0415

        given = given_options(options, keywords)
        extra = unstreamable(given)
        language_pair = LanguagePair(source_language, target_language)
        resolved, (prefix,) = self.engine.resolver.resolve(
            streamed(given), [target_prefix], extra, language_pair
        )
        request = self.engine.request(text, 0, prefix, resolved, as_ids=False)
        return stream_text(self.engine, request, resolved)

    @naming_options(DecodingKeywords)
    def translate_iterable(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Iterable[runtime.Prefix] | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> Iterator[runtime.TranslationResult]:
        """Translate any number of texts in constant memory.

        Texts are read ahead in chunks and batched by length; results come in the order of the
        texts. The next chunk is read while one is decoded.

        Args:
            texts: may be endless.
            target_prefix: one for each text.
            source_language: the language of all texts; see ``translate``.
            target_language: see ``translate``.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``.

        Raises:
            InputError: a text cannot be decoded; raised in place of its result.
            ConfigError: unknown or contradictory options; raised by the call itself.
        """
        from tfexport.runtime.streaming import translate_texts  # noqa: PLC0415

        language_pair = LanguagePair(source_language, target_language)
        given = given_options(options, keywords)
        resolved, _ = self.engine.resolver.resolve(given, language_pair=language_pair)
        return translate_texts(self.engine, texts, target_prefix, resolved)

    @naming_options(TranslationKeywords)
    def translate_file(
        self,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        target_prefix: runtime.Prefix = None,
        jsonl: bool = False,
        resume: bool = False,
        force: bool = False,
        options: DecodingOptions | None = None,
        **keywords: Unpack[TranslationKeywords],
    ) -> runtime.FileSummary:
        """Translate a file line by line in constant memory, as ``tfexport translate`` does.

        Args:
            source: UTF-8 lines.
            output: ``num_hypotheses`` lines for each input line, empty if it cannot be decoded.
            target_prefix: the forced start of every target.
            jsonl: write one JSON object for each input line instead.
            resume: continue an unfinished output; start a new one if there is none.
            force: replace an output that exists.
            options: decoding options as one value; keywords override it.
            **keywords: see ``DecodingOptions``; ``source_language`` and ``target_language``, as
                ``translate`` takes them.

        Returns:
            The number of lines, and which of them could not be decoded.

        Raises:
            ConfigError: unknown or contradictory options.
            OutputExistsError: the output exists, or was started with another input or other
                options.
            OSError: a file cannot be read or written.
        """
        from tfexport.runtime.files.line_stream import LineFormat, LineTask  # noqa: PLC0415
        from tfexport.runtime.files.resumable import translate_file  # noqa: PLC0415

        # Text lines show no scores, and greedy search is faster without.
        given = {"return_scores": jsonl, **given_options(options, keywords)}
        language_pair = LanguagePair(
            given.pop("source_language", None), given.pop("target_language", None)
        )
        resolved, (prefix,) = self.engine.resolver.resolve(
            given, [target_prefix], language_pair=language_pair
        )
        line_format = LineFormat(jsonl=jsonl, num_hypotheses=resolved.num_hypotheses)
        task = LineTask(resolved, line_format, prefix)
        return translate_file(self.engine, source, output, task, resume=resume, force=force)

    def encode(self, text: str, truncate: bool = False) -> list[int]:
        """Tokenize a source text, with special tokens except language tokens."""
        return self.engine.texts.encode(text, truncate)

    def decode(self, tokens: Sequence[int]) -> str:
        """Detokenize target ids; see ``TextCodec.decode``."""
        return self.engine.texts.decode(tokens)

    def close(self) -> None:
        """Wait for submitted batches, stop the workers and release the model's memory.

        A later call starts workers and opens the model again; it raises ``BundleError`` if its
        files were replaced meanwhile.
        """
        self.engine.close()

    def _run(
        self,
        requests: Sequence[runtime.Request | None],
        options: runtime.ResolvedOptions,
        assemble: Callable[[runtime.Hypotheses], Result],
        asynchronous: bool,
    ) -> Result | typing.Future[Result]:
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
