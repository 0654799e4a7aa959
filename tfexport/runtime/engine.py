"""The engine: an open bundle that decodes requests, in the calling thread or in workers.

What reads terms is imported for the first row that has some.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tfexport import graph_io
from tfexport.bundle import BundleCheck, opening_bundle
from tfexport.errors import (
    ForkError,
    InputError,
    Message,
    Option,
    Problem,
    TooLongError,
    join_problems,
)
from tfexport.module_rows import read_row, shape_key, unmasked_ids
from tfexport.runtime.media.limits import MediaLimits
from tfexport.runtime.media.preprocessor import Files, open_preprocessor
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.model.open_model import choose_engine, open_model
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.parallel.workers import (
    BATCHES_AHEAD,
    ClosedError,
    Workers,
    gather,
    in_order,
    make_batches,
)
from tfexport.runtime.resolve import Resolver, check_own
from tfexport.runtime.results import Hypothesis, Term, TranslationResult
from tfexport.runtime.search import Request, ResolvedOptions, decode
from tfexport.runtime.text.codec import TextCodec, check_text
from tfexport.runtime.text.vocabulary_map import VocabularyMap

if TYPE_CHECKING:  # slow to import, and seldom needed
    from concurrent.futures import Future

    from tfexport.runtime.search.required import Required
    from tfexport.runtime.term_tokens import TermTokens
    from tfexport.runtime.terms import Terms

Result = TypeVar("Result")
Hypotheses = list[list[Hypothesis]]  # hypotheses of each row, best first
MOST_INPUT_BYTES = 64 << 20  # of arrays that are read, as of files, before they are decoded


@dataclass(frozen=True)
class Job:
    """One row of a stream.

    Attributes:
        number: of the row, as its source counts.
        request: the row to decode; None for a bad one, or one with nothing to decode.
        problem: the reason why it is bad.
        text: of the row; empty if it is not text.
    """

    number: int
    request: Request | None
    problem: Message | None = None
    text: str = ""


class Engine:
    """An open bundle with its tokenizers and workers. Safe to call from several threads.

    Attributes:
        path: the path of the bundle.
        manifest: the manifest of the bundle.
        model: its graphs.
        texts: its tokenizers.
        files: makes rows of files of sound or pictures.
        layout: the numbers of workers and threads.
        reason: why the native engine is not used; empty if it is.
        pool_size: threads of onnxruntime's pool, 0 for its own choice; or of a native call.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        layout: ThreadLayout | None = None,
        vocabulary_map: str | os.PathLike[str] | Mapping[int, Sequence[int]] | None = None,
        engine: EngineName = "auto",
        media_limits: MediaLimits | None = None,
        check: BundleCheck | None = None,
    ) -> None:
        """Check a bundle and open it; see ``Translator``.

        ``check`` is one of ``check_ahead`` for this bundle.
        """
        self.path, self.layout = Path(bundle), layout or ThreadLayout()
        self._opening = threading.Lock()
        self._workers: Workers | None = None
        self._process = os.getpid()
        with opening_bundle(self.path, check) as self.manifest:
            check_own(self.manifest.generation, str(self.path))
            chosen, self.reason = choose_engine(self.manifest, engine)
            native = chosen == "native"
            self.pool_size = self.layout.each() if native else self.layout.pool_size()
            self.model = open_model(self.path, self.manifest, chosen, self.pool_size)
            self._io = self.manifest.module_io
            self.texts = TextCodec(self.path, self.manifest)
            self.files = self._files(media_limits or MediaLimits())
            self._map = None
            if vocabulary_map is not None:
                self._map = VocabularyMap.read(vocabulary_map, self.manifest, self.texts)

    def _files(self, limits: MediaLimits) -> Files:
        names = (tensor.name for tensor in self.manifest.inputs)
        preprocessor = open_preprocessor(self.manifest.preprocessing, limits)
        return Files(preprocessor, self.manifest.media, frozenset(names))

    @property
    def gives_text(self) -> bool:
        """Whether there is a tokenizer of the target."""
        return "target" in self.manifest.tokenizers

    @cached_property
    def resolver(self) -> Resolver:
        """Resolves options for this bundle."""
        return Resolver(self.manifest, self.texts)

    @cached_property
    def term_tokens(self) -> TermTokens:
        """The tokens of terms."""
        from tfexport.runtime.term_tokens import TermTokens  # noqa: PLC0415

        return TermTokens(self.manifest, self.texts)

    def request(
        self,
        source: str | Sequence[int],
        number: int,
        prefix: tuple[int, ...],
        options: ResolvedOptions,
        *,
        as_ids: bool,
        required: Required | None = None,
    ) -> Request | None:
        """Check one input and make a request of it; None for a blank or empty one.

        Args:
            source: a text, or ids that go to the encoder as they are.
            number: index of the input in its call, which seeds its random numbers.
            prefix: the forced start of its target.
            options: how to decode it.
            as_ids: whether the source has to be ids, or a text.
            required: what its target has to contain; of a text as ``required`` makes it.

        Raises:
            InputError: naming what is wrong with it.
            ForkError: the process was forked after the bundle was opened.
        """
        self._check_process()
        if self._io is not None:
            self.manifest.require_ids()
        if as_ids:
            most = options.truncate, options.max_input_length
            ids = self.texts.check_ids(cast("Sequence[int]", source), *most)
        else:
            ids = self._ids_of(cast("str", source), required is not None, options)
        if not ids:
            return None
        prefix = options.with_first_token(prefix)
        if required is not None and not options.takes_required:
            from tfexport.runtime.term_tokens import check_supported  # noqa: PLC0415

            check_supported(options)
        candidates = None
        if self._map is not None:
            candidates = self._map.candidates(ids, options.always_allowed)
        padded = self._io is None or self._io.padded
        group = () if padded else (len(ids),)
        return Request(ids, number, prefix, candidates, group=group, required=required)

    def required(self, text: str, terms: Terms | None, options: ResolvedOptions) -> Required | None:
        """Find terms in a text; return what its target has to contain, None if none occurs.

        Raises:
            InputError: see ``TermTokens.required``.
        """
        found = terms.locate(text) if terms else None
        return self.term_tokens.required(text, found, options) if found else None

    def _ids_of(self, source: str, whole: bool, options: ResolvedOptions) -> list[int]:
        """The ids of a text; with ``whole`` it is never cut."""
        limit, framing = options.max_input_length, options.framing
        check_text(source)
        try:
            return self.texts.encode(source, options.truncate and not whole, limit, framing)
        except TooLongError as error:
            if not options.truncate:
                raise
            text = ", and would be cut; terms need the whole text"
            raise InputError(Message(error.message, text)) from None

    def request_from(
        self, row: Any, number: int, prefix: tuple[int, ...], options: ResolvedOptions
    ) -> Request | None:
        """Check one row of a user's module's inputs and make a request of it.

        Args:
            row: input to array, without the batch axis; of a model that takes ids, ``input_ids``.
                Of a bundle with preprocessing, "audio" or "image" and a file in their place.
            number: see ``request``.
            prefix: see ``request``.
            options: see ``request``.

        Raises:
            InputError: naming everything that is wrong with it.
            ForkError: see ``request``.
        """
        self._check_process()
        io, row = self._io, self.files.prepare(row)
        if io is None:
            arrays, problems = read_row(graph_io.SOURCE_INPUTS, row)
        else:
            arrays, problems = read_row(io.inputs, row, io.below, io.longest)
        if problems:
            raise InputError("; ".join(problems))
        if io is None:
            return self.request(unmasked_ids(arrays), number, prefix, options, as_ids=True)
        if graph_io.INPUT_IDS in arrays:
            self.texts.check_ids(arrays[graph_io.INPUT_IDS].tolist())
        group = shape_key(arrays, io.padded)
        full = options.with_first_token(prefix)
        return Request([], number, full, inputs=arrays, group=("arrays", *group))

    def decode(self, requests: Sequence[Request | None], options: ResolvedOptions) -> Hypotheses:
        """Decode rows; return the hypotheses of each, an empty one without a request."""
        if self.layout.workers > 1:
            return self.submit(requests, options, lambda found: found).result()
        batches = make_batches(requests, options)
        found = [self._decode(requests, batch, options) for batch in batches]
        return in_order(len(requests), batches, found)

    def submit(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        assemble: Callable[[Hypotheses], Result],
        decoded: Callable[[int], object] | None = None,
    ) -> Future[Result]:
        """Decode in the workers; blocks while their queue is full.

        Args:
            requests: None for a row that needs no decoding.
            options: how to decode all of them.
            assemble: turns the hypotheses of all rows into the future's result.
            decoded: called with the number of rows of each finished batch, in the thread that
                decoded it.
        """
        self._check_process()
        batches = make_batches(requests, options)

        def submit(batch: Sequence[int]) -> Future[Hypotheses]:
            return self._in_workers(
                lambda workers: workers.submit(self._decode, requests, batch, options)
            )

        parts: list[Future[Hypotheses]] = []
        for batch in batches:
            parts.append(submit(batch))
            if decoded is not None:
                parts[-1].add_done_callback(partial(_tell, decoded, len(batch)))
        return gather(parts, lambda found: assemble(in_order(len(requests), batches, found)))

    def try_submit(
        self,
        requests: Sequence[Request | None],
        options: ResolvedOptions,
        assemble: Callable[[Hypotheses], Result],
    ) -> Future[Result] | None:
        """Submit without blocking; return None, and decode nothing, if the queue is too full.

        A call of more batches than ``queue_size`` is never accepted.
        """
        self._check_process()
        batches = make_batches(requests, options)
        jobs = [(requests, batch, options) for batch in batches]
        parts = self._in_workers(lambda workers: workers.try_submit(self._decode, jobs))
        if parts is None:
            return None
        return gather(parts, lambda found: assemble(in_order(len(requests), batches, found)))

    def decode_stream(
        self,
        jobs: Iterable[Job],
        options: ResolvedOptions,
        chunk: int,
        decoded: Callable[[int], object] | None = None,
    ) -> Iterator[tuple[Job, list[Hypothesis]]]:
        """Decode jobs in their order, in chunks of ``chunk`` jobs, or fewer with large arrays.

        The next chunk is read while one is decoded, unless ``chunk`` is 1: then each job is
        answered before the next one is read. The first chunk is one batch, and each further one is
        twice as large, so that the first results come soon.

        Args:
            jobs: the jobs to decode.
            options: how to decode all of them.
            chunk: jobs that are batched together.
            decoded: see ``submit``.
        """
        source = iter(jobs)
        ahead, size = 0 if chunk == 1 else 1, max(1, chunk // BATCHES_AHEAD)
        waiting: deque[tuple[list[Job], Future[Hypotheses]]] = deque()
        while read := _read(source, size):
            size = min(2 * size, chunk)
            requests = [job.request for job in read]
            waiting.append((read, self.submit(requests, options, lambda found: found, decoded)))
            while len(waiting) > ahead:
                yield from _pairs(*waiting.popleft())
        while waiting:
            yield from _pairs(*waiting.popleft())

    def result(
        self,
        text: str,
        ids: list[int],
        hypotheses: list[Hypothesis],
        options: ResolvedOptions,
        *,
        terms: Terms | None = None,
    ) -> TranslationResult:
        """Detokenize hypotheses and make a result of them.

        Args:
            text: the source text.
            ids: its tokens, special tokens included.
            hypotheses: best first.
            options: how they were decoded.
            terms: see ``required``.
        """
        around = self.texts.num_special_tokens(options.framing) if ids else (0, 0)
        result = TranslationResult(None, hypotheses, ids, framing=around)
        texts = []
        for place, made in enumerate(hypotheses):
            if options.replace_unknowns and ids:
                alignment = result.alignment(place)
                texts.append(self.texts.fill_unknowns(made.tokens, alignment, text))
            else:
                texts.append(self.texts.decode(made.tokens))
        if options.replace_unknowns and not options.return_attention:
            hypotheses = [replace(made, attention=None) for made in hypotheses]
        unknown = self.count_unknown(ids)
        unmet: tuple[Term, ...] = ()
        # Of the text as it was decoded the search knows it; unknown words may be replaced in it.
        if terms and ids and (
            hypotheses[0].unmet or options.replace_unknowns or self.term_tokens.has_left_out
        ):  # fmt: skip
            unmet = self.term_tokens.unmet(terms.find(text), texts[0], options)
        return TranslationResult(texts[0], hypotheses, ids, texts, around, unknown, unmet)

    def count_unknown(self, ids: Sequence[int]) -> int:
        """How many source ids are the unknown token."""
        unk = self.manifest.special_ids.unk
        return 0 if unk is None else list(ids).count(unk)

    def close(self) -> None:
        """Wait for submitted batches, stop the workers and release the model's memory.

        A later call starts workers and opens the model again, if its files are still the same.
        """
        with self._opening:
            workers, self._workers = self._workers, None
        if workers is not None:  # outside the lock, which a worker may need
            workers.close()
        self.model.close()

    def _decode(
        self, requests: Sequence[Request | None], batch: Sequence[int], options: ResolvedOptions
    ) -> Hypotheses:
        chosen = [request for i in batch if (request := requests[i]) is not None]
        return decode(self.model, chosen, options)

    def _in_workers(self, submit: Callable[[Workers], Result]) -> Result:
        """Submit to the workers, and start them if necessary."""
        while True:
            with self._opening:
                self._workers = self._workers or Workers(
                    self.layout.workers, self.layout.most_waiting
                )
                workers = self._workers
            try:
                return submit(workers)
            except ClosedError:  # another thread closed them meanwhile: open new ones
                continue

    def _check_process(self) -> None:
        """Refuse to decode in a fork, which has none of the engine's threads."""
        threaded = self.pool_size != 1 or (self._workers is not None and not self._workers.are_here)
        if threaded and os.getpid() != self._process:
            raise ForkError(
                f"{self.path}: was opened in process {self._process}, and this is its fork "
                f"{os.getpid()}, which has no threads. Open the translator after the fork, "
                "or start processes by 'spawn'."
            )


def _read(jobs: Iterator[Job], most: int) -> list[Job]:
    """The next jobs: at most ``most``, and fewer if their arrays are large."""
    found, held = list[Job](), 0
    for job in islice(jobs, most):
        found.append(job)
        held += 0 if job.request is None else job.request.input_bytes
        if held >= MOST_INPUT_BYTES:
            break
    return found


def _tell(decoded: Callable[[int], object], rows: int, _: object) -> None:
    decoded(rows)


def _pairs(jobs: list[Job], found: Future[Hypotheses]) -> Iterator[tuple[Job, list[Hypothesis]]]:
    return zip(jobs, found.result(), strict=True)


Prefixes = Sequence[tuple[int, ...]]


def acts_on_text(given: Mapping[str, Any], call: str) -> list[Problem]:
    """The problem of an option that needs source text, for a call without text."""
    if given.get("replace_unknowns") is not True:
        return []
    text = f" acts on text; {call} has none"
    return [Problem(None, Message(Option("replace_unknowns"), text))]


def cut_ids(given: Mapping[str, Any]) -> list[Problem]:
    """The problems of options that cut ids, for rows of arrays."""
    text = " cuts rows of ids; rows of arrays are taken as they are"
    names = [name for name in ("truncate", "max_input_length") if given.get(name)]
    return [Problem(None, Message(Option(name), text)) for name in names]


def requests_of(
    engine: Engine,
    sources: Sequence[Any],
    prefixes: Prefixes,
    options: ResolvedOptions,
    *,
    as_ids: bool,
    terms: Sequence[Terms | None] | None = None,
    required: Sequence[Required | None] | None = None,
) -> list[Request | None]:
    """Make requests of texts or of rows of ids; see ``Engine.request``.

    Args:
        engine: an open bundle.
        sources: texts, or rows of ids.
        prefixes: of each row.
        options: how to decode them.
        as_ids: whether they have to be ids.
        terms: of each text; None without any.
        required: of each row of ids; None without any.

    Raises:
        InputError: naming everything that is wrong with any of them.
    """
    call, noun = ("generate", "row") if as_ids else ("translate", "text")
    found: Sequence[Required | InputError | None] | None = required
    if terms is not None:
        # In turn with the tokenizer, each would put the other's memory out of the caches.
        found = [
            _required(engine, source, each, options)
            for source, each in zip(sources, terms, strict=True)
        ]

    def check(source: Any, number: int, prefix: tuple[int, ...]) -> Request | None:
        of_row = None if found is None else found[number]
        if isinstance(of_row, InputError):
            raise of_row
        return engine.request(source, number, prefix, options, as_ids=as_ids, required=of_row)

    return _check_all(call, noun, sources, prefixes, check)


def _required(
    engine: Engine, source: Any, terms: Terms | None, options: ResolvedOptions
) -> Required | InputError | None:
    """Call ``Engine.required``; its error is returned, as all rows are checked first."""
    if terms is None or not isinstance(source, str):
        return None
    try:
        return engine.required(source, terms, options)
    except InputError as error:
        return error


def requests_from(
    engine: Engine, rows: Sequence[Any], prefixes: Prefixes, options: ResolvedOptions
) -> list[Request | None]:
    """Make requests of rows of a user's module's inputs; see ``Engine.request_from``.

    Raises:
        InputError: naming everything that is wrong with any of them.
    """
    check = partial(engine.request_from, options=options)
    return _check_all("generate_from", "row", rows, prefixes, check)


def _check_all(
    call: str,
    noun: str,
    sources: Sequence[Any],
    prefixes: Prefixes,
    check: Callable[[Any, int, tuple[int, ...]], Request | None],
) -> list[Request | None]:
    requests: list[Request | None] = []
    problems = []
    for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        try:
            requests.append(check(source, i, prefix))
        except InputError as error:
            problems.append(Message(f"{noun} {i}: ", error.message))
    if problems:
        raise InputError(join_problems(call, problems))
    return requests
