"""The front door of decoding: a bundle, texts or ids in, results out."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, TypeVar, overload

from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError, ForkError, InputError, join_problems, shown
from tfexport.runtime.files.scores import Scorer
from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.parallel.batches import make_batches, rows_ahead
from tfexport.runtime.parallel.cpu import are_restricted, usable_cores
from tfexport.runtime.parallel.workers import ClosedError, Workers, gather
from tfexport.runtime.resolve import Prefix, Resolver
from tfexport.runtime.results import Hypothesis, TranslationResult
from tfexport.runtime.search import Request, ResolvedOptions, StepwiseSearch, decode
from tfexport.runtime.text.codec import Texts, check_rows
from tfexport.runtime.text.streaming import TextStream
from tfexport.runtime.text.vocabulary_map import VocabularyMap

if TYPE_CHECKING:
    from tfexport.runtime.files.resumable import FileSummary

MOST_THREADS = 1024  # twice what the largest machines have
MOST_WAITING = 1_000_000
Result = TypeVar("Result")


class Job(Protocol):
    """One row of a stream; it is not decoded if it has no request."""

    @property
    def request(self) -> Request | None:
        """What to dispatch."""


AnyJob = TypeVar("AnyJob", bound=Job)


class Translator:
    """Decodes with one bundle. Safe to call from several threads.

    As a context manager, or with ``close``, it waits for what was submitted. A process that is
    forked cannot use its parent's: it opens its own.
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
        queue_size = 4 * workers if queue_size is None and _is_whole(workers) else queue_size
        problems = [
            f"{name}: {shown(value)} is not a whole number from {least} to {most}"
            for name, value, least, most in (
                ("threads", threads, 0, MOST_THREADS), ("workers", workers, 1, MOST_THREADS),
                ("queue_size", queue_size, 1, MOST_WAITING),
            )
            if not _is_whole(value) or not least <= value <= most
        ]  # fmt: skip
        if not problems and threads * workers > MOST_THREADS:
            problems.append(f"{workers} workers of {threads} threads are more than {MOST_THREADS}")
        if problems:
            raise ConfigError(join_problems("translator", problems))
        assert queue_size is not None
        self.path = Path(bundle)
        self.manifest = open_bundle(self.path)
        self._workers, self._queue_size = workers, queue_size
        self._opening = threading.Lock()
        self._pool: Workers | None = None
        self._process = os.getpid()
        self._pool_size = _pool_size(threads, workers)
        self._model = Model(self.path, self.manifest, self._pool_size)
        self.texts = Texts(self.path, self.manifest)
        self._map = None
        if vocabulary_map is not None:
            self._map = VocabularyMap.read(vocabulary_map, self.manifest, self.texts)

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[False] = False,
        **options: Any,
    ) -> list[TranslationResult]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[True],
        **options: Any,
    ) -> "Future[list[TranslationResult]]": ...

    def translate(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: bool = False,
        **options: Any,
    ) -> "list[TranslationResult] | Future[list[TranslationResult]]":
        """Translate texts; an empty or blank one becomes an empty one.

        Args:
            texts: one result each, in their order.
            target_prefix: what each target begins with: text or ids, or None.
            asynchronous: return a future at once. Problems with the input are raised here all the
                same; the call waits while the queue is full.
            **options: see ``DecodingOptions``.

        Raises:
            InputError: naming every text that cannot be decoded.
            ConfigError: unknown or contradictory options.
            TokenizerError: the bundle holds no tokenizer.
        """
        sources = check_rows("texts", texts, "strings")
        resolved, prefixes = self._resolve(options, target_prefix, len(sources))
        requests = self._requests(sources, prefixes, resolved, as_ids=False)

        def assemble(found: list[list[Hypothesis]]) -> list[TranslationResult]:
            return [
                self.describe(text, request.ids if request else [], hypotheses, resolved)
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
        **options: Any,
    ) -> list[TranslationResult]: ...

    @overload
    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: Literal[True],
        **options: Any,
    ) -> "Future[list[TranslationResult]]": ...

    def generate(
        self,
        ids: Iterable[Sequence[int]],
        *,
        target_prefix: Sequence[Prefix] | None = None,
        asynchronous: bool = False,
        **options: Any,
    ) -> "list[TranslationResult] | Future[list[TranslationResult]]":
        """Decode rows of source ids, taken as the encoder sees them: no framing is added.

        Args:
            ids: one result each, in their order; an empty row becomes an empty hypothesis.
            target_prefix: what each target begins with: ids or text, or None.
            asynchronous: see ``translate``.
            **options: see ``DecodingOptions``.

        Raises:
            InputError: naming every row that cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        rows = check_rows("ids", ids, "rows of ids")
        extra = (
            ["replace_unknowns acts on text; generate gives ids"]
            if options.get("replace_unknowns") is True
            else []
        )
        resolved, prefixes = self._resolve(options, target_prefix, len(rows), extra)
        requests = self._requests(rows, prefixes, resolved, as_ids=True)

        def assemble(found: list[list[Hypothesis]]) -> list[TranslationResult]:
            return [
                TranslationResult(None, hypotheses, request.ids if request else [])
                for request, hypotheses in zip(requests, found, strict=True)
            ]

        return self._run(requests, resolved, assemble, asynchronous)

    def score(
        self,
        sources: Iterable[str | Sequence[int]],
        targets: Iterable[str | Sequence[int]],
        **options: Any,
    ) -> list[Hypothesis]:
        """How likely given targets are.

        Args:
            sources: texts, or rows of ids as the encoder sees them.
            targets: texts, or rows of ids without start and end token; one for each source. The
                end token is scored with them.
            **options: ``length_penalty``, ``coverage_penalty``, ``return_attention``,
                ``attention_layer``, ``attention_head``, ``return_token_scores``,
                ``return_end_token``, ``batch_size``, ``batch_type``, ``max_input_length``,
                ``truncate``.

        Returns:
            For each target what decoding would have returned, had it chosen it.

        Raises:
            InputError: naming every pair that cannot be scored.
            ConfigError: unknown options, or such as say how to choose tokens.
        """
        return self.scorer.score(sources, targets, options)

    @cached_property
    def scorer(self) -> Scorer:
        """What scores given targets, for who reads them one by one."""
        return Scorer(self, self._model)

    def stream(self, text: str, *, target_prefix: Prefix = None, **options: Any) -> Iterator[str]:
        """Translate one text, giving its translation piece by piece as it is decoded.

        No piece ends inside a character, and all together are what ``translate`` gives.

        Args:
            text: what to translate.
            target_prefix: what the target begins with; it is the first piece.
            **options: see ``DecodingOptions``; greedy search or sampling.

        Raises:
            InputError: the text cannot be decoded.
            ConfigError: unknown or contradictory options.
        """
        extra = [f"{name} cannot be streamed: tokens would have to be taken back"
                 for name in ("return_alternatives", "replace_unknowns")
                 if options.get(name) is True]  # fmt: skip
        for name in ("beam_size", "num_hypotheses"):
            if _is_whole(options.get(name)) and options[name] > 1:
                extra.append(f"{name} {options[name]} cannot be streamed: it must be 1")
        resolved, (prefix,) = self.resolver.resolve(options, [target_prefix], extra)
        request = self.request(text, 0, prefix, resolved, as_ids=False)
        return self._stream(request, resolved)

    def _stream(self, request: Request | None, options: ResolvedOptions) -> Iterator[str]:
        if request is None:
            return
        shown = TextStream(self.decode, self.texts.target.unknown_is_word)
        for token in request.prefix:
            if piece := shown.add(token):
                yield piece
        search = StepwiseSearch(self._model, [request], options)
        keep_end = options.return_end_token
        while search.active:
            for step in search.step():
                if keep_end or step.token not in options.end_tokens:
                    piece = shown.add(step.token)
                    if piece:
                        yield piece
        if piece := shown.end():
            yield piece

    def translate_iterable(
        self,
        texts: Iterable[str],
        *,
        target_prefix: Iterable[Prefix] | None = None,
        **options: Any,
    ) -> Iterator[TranslationResult]:
        """Translate any number of texts, in constant memory.

        Texts are read ahead, decoded in batches of like length, and given back in their order; the
        next ones are read while these are decoded.

        Args:
            texts: may be endless.
            target_prefix: one for each text.
            **options: see ``DecodingOptions``.

        Raises:
            InputError: a text cannot be decoded; when its turn comes.
            ConfigError: unknown or contradictory options; at once.
        """
        resolved, _ = self.resolver.resolve(options)
        return self._translate_iterable(texts, target_prefix, resolved)

    def _translate_iterable(
        self, texts: Iterable[str], prefixes: Iterable[Prefix] | None, options: ResolvedOptions
    ) -> Iterator[TranslationResult]:
        def jobs() -> Iterator[_TextJob]:
            given = iter(prefixes) if prefixes is not None else None
            for number, text in enumerate(texts):
                try:
                    prefix = self.resolver.check_prefix(
                        next(given, None) if given else None,
                        options.max_length,
                        options.end_tokens,
                    )
                    request = self.request(text, number, prefix, options, as_ids=False)
                    yield _TextJob(text, request, None)
                except InputError as error:
                    yield _TextJob(text, None, InputError(f"text {number}: {error}"))

        for job, found in self.decode_stream(jobs(), options, rows_ahead(options)):
            if job.problem is not None:
                raise job.problem
            ids = job.request.ids if job.request else []
            yield self.describe(job.text, ids, found, options)

    def translate_file(
        self,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        target_prefix: Prefix = None,
        jsonl: bool = False,
        resume: bool = False,
        force: bool = False,
        **options: Any,
    ) -> "FileSummary":
        """Translate a file line by line, in constant memory; what ``tfexport translate`` does.

        Args:
            source: UTF-8 lines.
            output: a line for each hypothesis that was asked for; empty for a bad line.
            target_prefix: what every target begins with.
            jsonl: write one JSON object for each line instead.
            resume: go on with an output that was not finished; begin it if there is none.
            force: replace an output that exists.
            **options: see ``DecodingOptions``.

        Returns:
            How many lines there were, and which could not be decoded.

        Raises:
            ConfigError: unknown or contradictory options.
            OutputExistsError: the output stands in the way, or was begun in another way.
            OSError: a file cannot be read or written.
        """
        from tfexport.runtime.files.line_format import json_format, text_format
        from tfexport.runtime.files.resumable import describe_run, translate_file

        # Lines of text say no scores.
        options = {"return_scores": jsonl, **options}
        resolved, (prefix,) = self.resolver.resolve(options, [target_prefix])
        count = resolved.num_hypotheses
        write = json_format(several=count > 1) if jsonl else text_format(count)
        return translate_file(
            self, source, output, resolved, write, prefix=prefix,
            described=describe_run(resolved, jsonl=jsonl), lines_each=1 if jsonl else count,
            resume=resume, force=force,
        )  # fmt: skip

    def decode_stream(
        self, jobs: Iterable[AnyJob], options: ResolvedOptions, chunk: int
    ) -> Iterator[tuple[AnyJob, list[Hypothesis]]]:
        """Decode jobs in their order, ``chunk`` of them read at a time.

        While a chunk is decoded the next one is read, except if ``chunk`` is 1: then every job is
        answered before the next is asked for.
        """
        source = iter(jobs)
        ahead = 0 if chunk == 1 else 1
        waiting: deque[tuple[list[AnyJob], Future[list[list[Hypothesis]]]]] = deque()
        while read := list(islice(source, chunk)):
            requests = [job.request for job in read]
            waiting.append((read, self._submit(requests, options, lambda found: found)))
            while len(waiting) > ahead:
                yield from _pairs(*waiting.popleft())
        while waiting:
            yield from _pairs(*waiting.popleft())

    def request(
        self,
        source: str | Sequence[int],
        number: int,
        prefix: tuple[int, ...],
        options: ResolvedOptions,
        *,
        as_ids: bool,
    ) -> Request | None:
        """One input, checked; None for one that is blank or empty.

        Args:
            source: a text, or ids as the encoder sees them.
            number: of the input in its call; draws depend on it.
            prefix: of its target.
            options: how to decode it.
            as_ids: which of the two it has to be.

        Raises:
            InputError: naming what is wrong with it.
            ForkError: see ``_check_process``.
        """
        self._check_process()
        read: Callable[..., list[int]] = self.texts.check_ids if as_ids else self.texts.encode
        ids = read(source, options.truncate, options.max_input_length)
        if not ids:
            return None
        candidates = None
        if self._map is not None:
            candidates = self._map.candidates(ids, options.end_tokens)
        return Request(ids, number, prefix, candidates)

    def describe(
        self, text: str, ids: list[int], hypotheses: list[Hypothesis], options: ResolvedOptions
    ) -> TranslationResult:
        """Hypotheses to a result, with the texts of all.

        Args:
            text: what was translated.
            ids: of it, as the encoder saw them.
            hypotheses: best first.
            options: how they were decoded.
        """
        before, after = self.texts.framing if ids else (0, 0)
        result = TranslationResult(None, hypotheses, ids, framing=(before, after))
        texts = []
        for place, made in enumerate(hypotheses):
            if options.replace_unknowns and ids:
                alignment = result.alignment(place)
                texts.append(self.texts.fill_unknowns(made.tokens, alignment, text))
            else:
                texts.append(self.decode(made.tokens))
        if not options.return_attention and options.replace_unknowns:
            hypotheses = [
                Hypothesis(made.tokens, made.score, None, made.token_scores, made.finished)
                for made in hypotheses
            ]
        return TranslationResult(texts[0], hypotheses, ids, texts, (before, after))

    def encode(self, text: str, truncate: bool = False) -> list[int]:
        """A text to ids as the encoder sees them; see ``Texts.encode``."""
        return self.texts.encode(text, truncate)

    def decode(self, tokens: Sequence[int]) -> str:
        """Target ids to text; see ``Texts.decode``."""
        return self.texts.decode(tokens)

    @cached_property
    def resolver(self) -> Resolver:
        """What checks options against this bundle."""
        return Resolver(self.manifest, self.texts, lambda: self._model.has_attention)

    def _resolve(
        self,
        options: Mapping[str, Any],
        prefixes: Sequence[Prefix] | None,
        count: int,
        extra: Sequence[str] = (),
    ) -> tuple[ResolvedOptions, list[tuple[int, ...]]]:
        if prefixes is None:
            return self.resolver.resolve(options, [None] * count, extra)
        try:
            prefixes = check_rows("target_prefix", prefixes, "prefixes, one for each row")
        except InputError as error:
            extra, prefixes = [*extra, str(error)], []
            count = 0
        if len(prefixes) != count:
            extra = [*extra, f"target_prefix holds {len(prefixes)} prefixes for {count} rows"]
        return self.resolver.resolve(options, prefixes, extra)

    def _requests(
        self,
        sources: Sequence[Any],
        prefixes: Sequence[tuple[int, ...]],
        options: ResolvedOptions,
        as_ids: bool,
    ) -> list[Request | None]:
        verb, noun = ("generate", "row") if as_ids else ("translate", "text")
        requests: list[Request | None] = []
        problems = []
        for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            try:
                requests.append(self.request(source, i, prefix, options, as_ids=as_ids))
            except InputError as error:
                problems.append(f"{noun} {i}: {error}")
        if problems:
            raise InputError(join_problems(verb, problems))
        return requests

    def _run(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        assemble: Callable[[list[list[Hypothesis]]], Result],
        asynchronous: bool,
    ) -> "Result | Future[Result]":
        if asynchronous:
            return self._submit(requests, options, assemble)
        if self._workers > 1:
            return self._submit(requests, options, assemble).result()
        batches = make_batches(requests, options)
        found = [self._decode(requests, batch, options) for batch in batches]
        return assemble(_in_order(len(requests), batches, found))

    def _submit(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        assemble: Callable[[list[list[Hypothesis]]], Result],
    ) -> "Future[Result]":
        batches = make_batches(requests, options)
        jobs = [self._work(requests, batch, options) for batch in batches]
        return gather(jobs, lambda found: assemble(_in_order(len(requests), batches, found)))

    def _work(
        self, requests: Sequence[Request | None], batch: Sequence[int], options: ResolvedOptions
    ) -> "Future[list[list[Hypothesis]]]":
        while True:
            with self._opening:
                self._pool = self._pool or Workers(self._workers, self._queue_size)
                pool = self._pool
            try:
                return pool.submit(self._decode, requests, batch, options)
            except ClosedError:  # by another thread, after we took it: open new ones
                continue

    def _decode(
        self, requests: Sequence[Request | None], batch: Sequence[int], options: ResolvedOptions
    ) -> list[list[Hypothesis]]:
        chosen = [request for i in batch if (request := requests[i]) is not None]
        return decode(self._model, chosen, options)

    def _check_process(self) -> None:
        """Refuse to decode where this translator's threads are not.

        Raises:
            ForkError: the process was forked after it was opened.
        """
        threaded = self._pool_size != 1 or (self._pool is not None and not self._pool.are_here)
        if threaded and os.getpid() != self._process:
            raise ForkError(
                f"{self.path}: was opened in process {self._process}, and this is its fork "
                f"{os.getpid()}, to which threads do not pass. Open the translator after the fork, "
                "or start processes by 'spawn'."
            )

    def close(self) -> None:
        """Wait for what was submitted, and stop the workers; a later call starts others."""
        with self._opening:
            pool, self._pool = self._pool, None
        # Outside the lock, which a worker may need to finish.
        if pool is not None:
            pool.close()

    def __repr__(self) -> str:
        limits = self.manifest.limits
        threads = self._pool_size or usable_cores()
        return (
            f"<Translator of {str(self.path)!r}: vocabularies of {limits.source_vocab_size} and "
            f"{limits.target_vocab_size}, {self._workers} workers, {threads} threads>"
        )

    def __enter__(self) -> "Translator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _TextJob:
    text: str
    request: Request | None
    problem: InputError | None


def _pairs(
    jobs: list[AnyJob], found: "Future[list[list[Hypothesis]]]"
) -> Iterator[tuple[AnyJob, list[Hypothesis]]]:
    return zip(jobs, found.result(), strict=True)


def _in_order(
    count: int, batches: Sequence[Sequence[int]], found: Sequence[list[list[Hypothesis]]]
) -> list[list[Hypothesis]]:
    """What each batch gave, in the order of the rows; rows of no batch are empty."""
    results = [[_empty()] for _ in range(count)]
    for batch, rows in zip(batches, found, strict=True):
        for i, hypotheses in zip(batch, rows, strict=True):
            results[i] = hypotheses
    return results


def _empty() -> Hypothesis:
    # A new one each time: its list of tokens is the caller's.
    return Hypothesis([], 0.0)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _pool_size(threads: int, workers: int) -> int:
    """The size of onnxruntime's pool, which all workers share, each with its own thread besides.

    0 stands for onnxruntime's own choice, which knows the machine but not what of it a container
    may use.
    """
    if threads == 0:
        if workers == 1 and not are_restricted():
            return 0
        threads = max(1, usable_cores() // workers)
    return workers * (threads - 1) + 1
