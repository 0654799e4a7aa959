"""Windows of sounds: what the decoder is given, how they are decoded, and whether to trust it.

Source: ``generate`` of Whisper in transformers; Radford et al. 2022, section 3.8.
Axes: B windows, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError
from tfexport.runtime.engine import Engine
from tfexport.runtime.model.interface import Floats
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.search.batch import BatchSteps, Choice, prefill, run
from tfexport.runtime.search.beam import BeamChoice
from tfexport.runtime.search.logits import LogitFilters, log_normalizer, token_log_probs
from tfexport.runtime.search.stepwise import StepwiseChoice
from tfexport.runtime.speech.rules import WindowRule, compression_ratio
from tfexport.runtime.speech.transcription import WindowOptions
from tfexport.runtime.speech.words import token_times
from tfexport.runtime.text.codec import LanguagePair
from tfexport.speech import STRIDE, Speech

TOP_K = 50  # of transformers' sampling, where a folder names no other


@dataclass(frozen=True)
class Window:
    """A window of a sound.

    Attributes:
        encoded: what the encoder made of its sound; see ``encode_windows``.
        ids: the tokens that decoding goes on from.
        task_tokens: how many of them, the last ones, are not of a prompt.
        longest: the most tokens, these included.
        number: of the sound.
        seek: its first frame.
    """

    encoded: Any
    ids: tuple[int, ...]
    task_tokens: int
    longest: int
    number: int
    seek: int


@dataclass(frozen=True)
class WindowResult:
    """The tokens of a window.

    Attributes:
        tokens: without the end token.
        avg_logprob: their mean log-probability, the end token included.
        compression_ratio: of these tokens.
        no_speech_prob: the probability of silence.
        temperature: at which they were decoded.
        finished: whether an end token ended them.
    """

    tokens: tuple[int, ...]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    temperature: float
    finished: bool = True

    def is_silence(self, options: WindowOptions) -> bool:
        """Whether the window is left out."""
        if options.no_speech_threshold is None or options.logprob_threshold is None:
            return False
        doubtful = self.avg_logprob < options.logprob_threshold
        return doubtful and self.no_speech_prob > options.no_speech_threshold

    def is_doubtful(self, options: WindowOptions) -> bool:
        """Whether the window has to be decoded again, at another temperature."""
        ratio, least = options.compression_ratio_threshold, options.logprob_threshold
        repetitive = ratio is not None and self.compression_ratio > ratio
        improbable = least is not None and self.avg_logprob < least
        return (repetitive or improbable) and not self.is_silence(options)


def task_tokens(
    speech: Speech, start: int, options: WindowOptions, language: str | None
) -> list[int]:
    """The tokens from which a window is decoded if nothing comes before it."""
    ids = [start]
    if speech.multilingual and language is not None:
        ids += [speech.languages[language], speech.tasks[options.task]]
    return ids if options.timestamps else [*ids, speech.no_timestamps]


def encode_windows(engine: Engine, inputs: Sequence[Mapping[str, NDArray[Any]]]) -> list[Any]:
    """Run the encoder over windows, which share a batch: for each what the decoder needs of it."""
    options = _options(engine, 0.0, None, 0)
    requests = [engine.request_from(row, number, (), options) for number, row in enumerate(inputs)]
    rows = [request.source for request in requests if request is not None]
    if len(rows) < len(inputs):
        raise InputError("an empty window")
    return [*engine.model.encoded(rows)]


def detect_languages(
    engine: Engine, speech: Speech, encoded: Sequence[Any]
) -> list[tuple[str, float]]:
    """The language of each window and its probability among all languages."""
    options = _options(engine, 0.0, None, 0)
    requests = [Request([], number, encoded=row) for number, row in enumerate(encoded)]
    logits = prefill(engine.model, requests, options).logits
    assert logits is not None
    ids = sorted((number, code) for code, number in speech.languages.items())
    found = logits[:, [number for number, _ in ids]].astype(np.float64)
    best = found.argmax(-1)
    weights = np.exp(found - found.max(-1, keepdims=True))
    return [
        (ids[place][1], float(row[place] / row.sum()))
        for place, row in zip(best, weights, strict=True)
    ]


def decode_windows(
    engine: Engine, speech: Speech, windows: Sequence[Window], options: WindowOptions,
    temperature: float, seed: int, batch_size: int, going: Callable[[], bool] | None = None,
) -> list[WindowResult]:  # fmt: skip
    """Decode windows; those whose given tokens are equally many share batches.

    Raises:
        AbandonedError: ``going``, which is called between steps, returned false.
    """
    groups: dict[Any, list[int]] = {}
    for place, window in enumerate(windows):
        key = window.ids[0], len(window.ids), window.task_tokens, window.longest
        groups.setdefault(key, []).append(place)
    found: dict[int, WindowResult] = {}
    for places in groups.values():
        for at in range(0, len(places), batch_size):
            batch = places[at : at + batch_size]
            made = _decode(
                engine, speech, [windows[place] for place in batch], options, temperature, seed,
                going,
            )  # fmt: skip
            found |= dict(zip(batch, made, strict=True))
    return [found[place] for place in range(len(windows))]


def _decode(
    engine: Engine, speech: Speech, windows: Sequence[Window], how: WindowOptions,
    temperature: float, seed: int, going: Callable[[], bool] | None,
) -> list[WindowResult]:  # fmt: skip
    first = windows[0]
    given = len(first.ids) - 1  # without the start token of the search
    own = _options(engine, temperature, first.ids[0], seed, how.beam_size)
    options = replace(own, max_length=first.longest - 1, going=going)
    # Drawing is among the best tokens, whose probabilities are those of these alone.
    top_k = (own.top_k or TOP_K) if temperature else 0
    eos = engine.manifest.special_ids.eos
    rule = WindowRule(speech, eos, given, how.timestamps, top_k)
    requests = [
        Request([], window.number, window.ids[1:], sample=window.seek, rule=rule,
                encoded=window.encoded)
        for window in windows
    ]  # fmt: skip
    watch = len(first.ids) - first.task_tokens
    prefilled = prefill(engine.model, requests, options, watch=watch)
    assert prefilled.watched is not None
    silent = _probabilities(prefilled.watched, speech.no_speech)
    choice: Choice
    if options.beam_size > 1:
        normalizer = engine.model.log_normalizer or log_normalizer
        choice = BeamChoice(requests, options, prefilled, normalizer)
    else:
        choice = StepwiseChoice(requests, options, prefilled)
    steps = BatchSteps(engine.model, requests, options, prefilled)
    made = []
    found = run(choice, steps)
    for request, (hypothesis,), no_speech in zip(requests, found, silent, strict=True):
        tokens = tuple(hypothesis.tokens[given:])
        if options.beam_size > 1:
            scores = _scores(engine, request, options, tokens)
        else:
            assert hypothesis.token_scores is not None
            scores = hypothesis.token_scores[given:]
        ratio = compression_ratio(tokens, engine.model.vocab_size) if tokens else 0.0
        mean = math.fsum(scores) / len(scores) if scores else -math.inf
        own_tokens = tokens[:-1] if hypothesis.finished else tokens
        ended = bool(hypothesis.finished)
        made.append(WindowResult(own_tokens, mean, ratio, no_speech, temperature, ended))
    return made


def _scores(
    engine: Engine, request: Request, options: ResolvedOptions, tokens: Sequence[int]
) -> list[float]:
    """The log-probability of each token among those that the rules allow at its place.

    Beams rank by log-probabilities before the rules, which say less of a window.
    """
    given = len(request.prefix)
    ids = np.array([[options.bos_id, *request.prefix, *tokens]], np.int64)
    logits = engine.model.step(ids[:, :-1], engine.model.encode([request.source]))[0, given:]
    logits -= log_normalizer(logits)[:, None].astype(logits.dtype)
    filters, row = LogitFilters(options, [request]), np.zeros(1, np.intp)
    for place in range(len(tokens)):
        filters.apply(logits[place : place + 1], ids[:, 1 : 1 + given + place], row)
    return [float(score) for score in token_log_probs(logits, ids[0, 1 + given :])]


def times_of_tokens(
    engine: Engine, speech: Speech, window: Window, decoded: WindowResult, frames: int
) -> list[float]:
    """When each token of a decoded window ends, in seconds from its first frame.

    Args:
        engine: of the bundle; its model has alignment.
        speech: the settings of the model.
        window: the window.
        decoded: its tokens.
        frames: of the sound from the first one of the window on; not positive in the silence
            after it.
    """
    # A last token that is no end token was never given to the decoder: it ends with the one before.
    seen = len(decoded.tokens) - (not decoded.finished)
    if seen < 1:
        return [0.0] * len(decoded.tokens)
    given = len(window.ids)
    assert speech.alignment_heads is not None
    ids = (*window.ids, *decoded.tokens[:seen])
    weights = engine.model.alignment(window.encoded, ids, speech.alignment_heads)
    # As in transformers, a number below 0 counts from the end.
    within = weights[:, given:, : frames // STRIDE or None]
    times = [float(time) for time in token_times(within, speech.median_filter_width)]
    return times if decoded.finished else [*times, times[-1]]


def _probabilities(logits: Floats, token: int) -> list[float]:
    """The probability of a token: (B, V) to B numbers."""
    ids = np.full(len(logits), token)
    return [float(value) for value in np.exp(token_log_probs(logits, ids))]


def _options(
    engine: Engine, temperature: float, start: int | None, seed: int, beam_size: int = 1
) -> ResolvedOptions:
    """The options of a search: the model's own, but its first tokens are those of the windows.

    Args:
        engine: of an open bundle.
        temperature: of sampling; 0 for the most probable tokens.
        start: the first token of the windows; None for the model's start token.
        seed: of sampling.
        beam_size: hypotheses that are followed; of sampling it is 1.
    """
    keywords: dict[str, Any] = {"beam_size": beam_size, "num_hypotheses": 1, "sampling": False}
    if temperature:
        keywords = {"sampling": True, "temperature": temperature, "seed": seed, "beam_size": 1,
                    "num_hypotheses": 1}  # fmt: skip
    found, _ = engine.resolver.resolve(keywords, language_pair=LanguagePair(as_ids=True))
    return replace(
        found, bos_id=found.bos_id if start is None else start, first_token=None,
        return_token_scores=True, return_end_token=True, return_scores=True,
    )  # fmt: skip
