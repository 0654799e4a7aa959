"""Translation of the texts of a request: into rows, through a scheduler, and back into texts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import InputError, Problem
from tfexport.runtime.resolve import Prefix
from tfexport.runtime.results import Hypothesis, TranslationResult
from tfexport.runtime.scheduler import Submission
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.spoken import UNSAID, Spoken
from tfexport.runtime.step import Step
from tfexport.runtime.text.codec import check_text
from tfexport.runtime.text_streams import streamed, unstreamable
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.models import Model
from tfexport.serve.row_limits import check_lengths, within_limits
from tfexport.serve.sentences import Layout, Split, split_text

OnStep = Callable[[Step], object]


@dataclass(frozen=True)
class Asked:
    """The texts of a request, and how they are to be translated.

    Attributes:
        texts: in the order of the results.
        options: of decoding, by name.
        prefixes: beginnings of the translations, one a text; None for none.
        spoken: languages that the model is told.
        language: code of the texts' language, for splitting; empty if unknown.
        split: into sentences; see ``split_text``.
        stream: tokens are shown as they come.
    """

    texts: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Sequence[Prefix] | None = None
    spoken: Spoken = UNSAID
    language: str = ""
    split: Split = "lines"
    stream: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a request, which a model decodes.

    Attributes:
        options: of all rows.
        requests: one a row.
        layouts: one a text; their sentences, in order, are the rows.
    """

    options: ResolvedOptions
    requests: list[Request | None]
    layouts: list[Layout]


@dataclass(frozen=True)
class Made:
    """One translation of a text.

    Attributes:
        text: with the white space of the source around its sentences.
        tokens: of all sentences.
        score: of one sentence its own; of several the mean, weighted by tokens.
        token_scores: of all sentences; None if they are not asked for.
    """

    text: str
    tokens: list[int]
    score: float
    token_scores: list[float] | None


@dataclass(frozen=True)
class Translated:
    """A text's translations.

    Attributes:
        made: best first.
        sentences: the results that it is made of.
    """

    made: list[Made]
    sentences: list[TranslationResult]


def prepare(model: Model, asked: Asked) -> Rows:
    """Split and tokenize texts.

    Raises:
        ConfigError: options are wrong.
        InputError: a text cannot be decoded.
        RequestError: the call is wrong for this server.
    """
    _check_texts(asked.texts)
    layouts = [split_text(text, asked.language, asked.split) for text in asked.texts]
    prefixes = _prefixes(asked, layouts)
    given: Mapping[str, Any] = asked.options
    problems = list[Problem]()
    if asked.stream:
        given, problems = streamed(given), unstreamable(given)
    options, ids = model.options.resolve(given, prefixes, problems, asked.spoken)
    options = within_limits(model, options, asked.options)
    requests = _requests(model, layouts, ids, options)
    check_lengths(model, requests)
    return Rows(options, requests, layouts)


def submit(model: Model, rows: Rows, deadline: float, on_step: OnStep | None = None) -> Submission:
    """Hand rows to the model's scheduler.

    Raises:
        QueueFullError: too many requests wait.
    """
    return model.scheduler.submit(rows.requests, rows.options, deadline=deadline, on_step=on_step)


def assemble(model: Model, rows: Rows, found: Sequence[list[Hypothesis]]) -> list[Translated]:
    """Make texts of the hypotheses of rows."""
    results = iter(zip(rows.requests, found, strict=True))
    made = []
    for layout in rows.layouts:
        sentences = []
        for sentence in layout.sentences:
            request, hypotheses = next(results)
            ids = request.ids if request else []
            sentences.append(model.engine.result(sentence, ids, hypotheses, rows.options))
        made.append(Translated(_joined(layout, sentences), sentences))
    return made


def _check_texts(texts: Sequence[str]) -> None:
    problems = []
    for place, text in enumerate(texts):
        try:
            check_text(text)
        except InputError as error:
            problems.append(f"text {place}: {error}")
    if problems:
        raise wrong(problems)


def _requests(
    model: Model,
    layouts: Sequence[Layout],
    prefixes: Sequence[tuple[int, ...]],
    options: ResolvedOptions,
) -> list[Request | None]:
    requests: list[Request | None] = []
    problems = []
    for place, layout in enumerate(layouts):
        for sentence in layout.sentences:
            number = len(requests)
            try:
                request = model.engine.request(
                    sentence, number, prefixes[number], options, as_ids=False
                )
            except InputError as error:
                problems.append(f"text {place}: {spelled(error)}")
                request = None
            requests.append(request)
    if problems:
        raise wrong(problems)
    return requests


def _prefixes(asked: Asked, layouts: Sequence[Layout]) -> list[Prefix]:
    """The prefix of each text goes to its first sentence."""
    prefixes: list[Prefix] = []
    for place, layout in enumerate(layouts):
        own = asked.prefixes[place] if asked.prefixes is not None else None
        prefixes += [own if i == 0 else None for i in range(len(layout.sentences))]
    return prefixes


def _joined(layout: Layout, sentences: Sequence[TranslationResult]) -> list[Made]:
    if not sentences:
        return [Made(layout.join([]), [], 0.0, None)]
    most = max(len(result.hypotheses) for result in sentences)
    return [_choose(layout, sentences, place) for place in range(most)]


def _choose(layout: Layout, sentences: Sequence[TranslationResult], place: int) -> Made:
    """The hypotheses of one place, or the last of sentences that have fewer."""
    places = [min(place, len(result.hypotheses) - 1) for result in sentences]
    pairs = list(zip(sentences, places, strict=True))
    chosen = [result.hypotheses[i] for result, i in pairs]
    scores = [one.token_scores for one in chosen]
    return Made(
        layout.join([result.texts[i] for result, i in pairs]),
        [token for one in chosen for token in one.tokens],
        _mean_score(chosen),
        None if None in scores else [value for values in scores for value in values or []],
    )


def _mean_score(chosen: Sequence[Hypothesis]) -> float:
    if len(chosen) == 1:
        return chosen[0].score
    weights = [len(one.tokens) + 1 for one in chosen]  # with the end token
    return math.fsum(one.score * n for one, n in zip(chosen, weights, strict=True)) / sum(weights)
