"""Streaming: any number of texts, and one text token by token."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfexport.errors import InputError, Message, Option, Problem
from tfexport.runtime.engine import Engine, Job
from tfexport.runtime.options import is_integer
from tfexport.runtime.parallel.workers import rows_ahead
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import TranslationResult
from tfexport.runtime.search import Request, ResolvedOptions, StepwiseSearch

UNDECIDED = "\ufffd"  # written by tokenizers for incomplete UTF-8 bytes


class TextStream:
    """Turns tokens into pieces of text that consist of complete characters and are final.

    Joined, the pieces are the text of all tokens. Text is held back while it ends in an incomplete
    character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], whole_words: bool = False) -> None:
        """Start a new text.

        Args:
            decode: ids to text.
            whole_words: hold back a word until the next one starts, for tokenizers whose later
                tokens may change it (WordPiece joins ``do n ' t`` to ``don't``).
        """
        self._decode, self._whole_words = decode, whole_words
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Add a token; returns the text that is now final, often empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        # White space is held back too: decoders strip it at the end of a text.
        certain = text.rstrip(UNDECIDED).rstrip()
        if self._whole_words:
            certain = certain[: max(certain.rfind(" "), 0)]
        return self._show(certain)

    def end(self) -> str:
        """The text that was held back so far."""
        return self._show(self._decode(self._tokens))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) :]
        self._shown = text
        return piece


def translate_texts(
    engine: Engine,
    texts: Iterable[str],
    prefixes: Iterable[Prefix] | None,
    options: ResolvedOptions,
) -> Iterator[TranslationResult]:
    """Translate any number of texts in their order; see ``Translator.translate_iterable``."""
    jobs = _read_texts(engine, texts, prefixes, options)
    for job, found in engine.decode_stream(jobs, options, rows_ahead(options)):
        if job.problem is not None:
            raise InputError(job.problem)
        yield engine.result(job.text, job.request.ids if job.request else [], found, options)


def _read_texts(
    engine: Engine,
    texts: Iterable[str],
    prefixes: Iterable[Prefix] | None,
    options: ResolvedOptions,
) -> Iterator[Job]:
    given = iter(prefixes) if prefixes is not None else None
    for number, text in enumerate(texts):
        try:
            prefix = engine.resolver.check_prefix(
                next(given, None) if given else None, options.max_length, options.end_tokens
            )
            request = engine.request(text, number, prefix, options, as_ids=False)
            yield Job(number, request, text=text)
        except InputError as error:
            yield Job(number, None, Message(f"text {number}: ", error.message))


def unstreamable(keywords: Mapping[str, Any]) -> list[Problem]:
    """The problems of options that could change tokens after they were yielded."""
    texts = [
        Message(Option(name), " cannot be streamed: the tokens may change later")
        for name in ("return_alternatives", "replace_unknowns")
        if keywords.get(name) is True
    ]
    texts += [
        Message(Option(name), f" {keywords[name]} cannot be streamed: it must be 1")
        for name in ("beam_size", "num_hypotheses")
        if is_integer(keywords.get(name)) and keywords[name] > 1
    ]
    return [Problem(None, text) for text in texts]


def streamed(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call with those that streaming needs, which override a bundle's own beam.

    ``unstreamable`` reports the caller's own options that cannot be streamed.
    """
    return {"beam_size": 1, "num_hypotheses": 1, **keywords}


def stream_text(engine: Engine, request: Request | None, options: ResolvedOptions) -> Iterator[str]:
    """Yield the translation of one text in pieces, as they are decoded."""
    if request is None:
        return
    shown = TextStream(engine.texts.decode, engine.texts.target.whole_words)
    for token in request.prefix:
        if piece := shown.add(token):
            yield piece
    search = StepwiseSearch(engine.model, [request], options)
    while search.active:
        for step in search.step():
            if options.return_end_token or step.token not in options.end_tokens:
                piece = shown.add(step.token)
                if piece:
                    yield piece
    if piece := shown.end():
        yield piece
