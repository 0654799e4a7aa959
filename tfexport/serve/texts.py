"""Translation of the texts of a request, by one model, or each by a model of its language."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from tfexport.errors import InputError, join_some
from tfexport.markup.document import PLAIN, Markup
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Submission
from tfexport.runtime.terms import Terms
from tfexport.serve.call import Call, Result, seen
from tfexport.serve.detection import (
    LIBRARY,
    LOOKED_AT,
    can_detect,
    detect,
    is_loaded,
)
from tfexport.serve.failures import RequestError, late, wrong
from tfexport.serve.glossaries import HOW, NoDictionaryError, pair_of
from tfexport.serve.metrics import Metrics
from tfexport.serve.models import (
    ModelChoice,
    ServerModel,
    choose_by_languages,
    choose_only,
    sources_of,
)
from tfexport.serve.rows import TextRequest, TextRows, TextTranslation, assemble, prepare
from tfexport.serve.service import Service
from tfexport.serve.settings import Settings

OnStep = Callable[[Step], object]
UNFINISHED = "X-Unfinished-Texts"  # a header
UNMET = "X-Unmet-Terms"  # a header
KEPT = "X-Tfexport-Kept"  # a header
LEAST = 0.3  # a language with less confidence is not used


def check_size(
    settings: Settings, call: Call, *texts: Sequence[Sized], prefixes: Sequence[Sized] = ()
) -> None:
    """Count the texts of a call, and refuse too many.

    Args:
        settings: the settings of the server.
        call: the call, which gets the numbers.
        *texts: lists of texts, or of rows of ids.
        prefixes: the prefixes of translations, which count towards the limit of the texts.

    Raises:
        RequestError: naming what is too large.
    """
    call.texts = max(map(len, texts))
    call.characters = sum(map(len, chain(*texts)))
    problems = []
    if call.texts > settings.max_texts:
        problems.append(f"{call.texts} texts are more than the {settings.max_texts} of a request")
    characters = call.characters + sum(map(len, prefixes))
    if characters > settings.max_characters:
        problems.append(
            f"{characters} characters are more than the {settings.max_characters} of a request"
        )
    if problems:
        raise RequestError(413, problems)


async def translate(
    metrics: Metrics, choice: ModelChoice, request: TextRequest, call: Call
) -> list[TextTranslation]:
    """Translate the texts of a call.

    Raises:
        RequestError: it is invalid, or its deadline has passed.
        TfexportError: likewise, by the library.
    """
    rows, submission = await submit_texts(choice, request, call)
    found = await outcome(submission, call)
    metrics.characters += call.characters
    return await call.in_thread(assemble, choice.model, rows, found)


async def translate_between(
    service: Service, call: Call, request: TextRequest, source: str | None, target: str
) -> list[TextTranslation]:
    """Translate texts with the models that have their languages.

    Args:
        service: the server.
        call: the call of the request.
        request: texts for any models; sentences that are too long for one are divided.
        source: the language of the texts; None to detect that of each.
        target: the language of the translations.

    Raises:
        RequestError: there is no such model, or the language of a text cannot be detected.
        TfexportError: see ``translate``.
    """
    run = call.in_thread if source is not None else partial(detecting, call)
    choices = await run(_choices, service, request, source, target)
    groups: dict[tuple[str, str, Markup], list[int]] = {}
    for place, ((choice, _), text) in enumerate(zip(choices, request.texts, strict=True)):
        markup = _markup_of(text, request.markup, choice.model)
        groups.setdefault((choice.model.name, choice.source, markup), []).append(place)
    jobs = []
    for (*_, markup), indices in groups.items():
        choice, _ = choices[indices[0]]
        choice.model.serve(call)
        texts = [request.texts[place] for place in indices]
        part = replace(request, texts=texts, divide=True, indices=indices, markup=markup)
        jobs.append(translate(service.metrics, choice, part, call))
    translations = chain(*await asyncio.gather(*jobs))
    by_place = dict(zip(chain(*groups.values()), translations, strict=True))
    return [
        replace(by_place[place], source=choice.source, confidence=confidence)
        for place, (choice, confidence) in enumerate(choices)
    ]


def _markup_of(text: str, markup: Markup, model: ServerModel) -> Markup:
    """The markup of one text: none of a plain text without placeholders, each by itself.

    A model without attention could not place them: its plain texts have none.
    """
    can_place = model.engine.manifest.attention_shape is not None
    return markup if markup.format != "text" or (can_place and markup.is_needed(text)) else PLAIN


async def detecting(call: Call, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run work that may detect languages: in a thread if it has to load the library.

    Raises:
        RequestError: the deadline passed before it was done.
    """
    run = call.in_thread if is_loaded() else call.aside
    return await run(work, *arguments)


def _choices(
    service: Service, request: TextRequest, source: str | None, target: str
) -> list[tuple[ModelChoice, float]]:
    """A model for each text, and the confidence in its language."""
    if source is not None:
        choice = choose_by_languages(service.models, source, target)
        return [(choice, 1.0)] * len(request.texts)
    texts = [_words(text, request.markup) for text in request.texts]
    only = choose_only(service.models, target)
    if only is not None:
        return [(only, _confidence(text, only.source)) for text in texts]
    sources = sources_of(service.models, target)
    languages = [_find(text, texts, sources) for text in texts]
    problems = [
        f"text {place}: its language was not detected; give one of {join_some(sources, 12)}"
        for place, language in enumerate(languages)
        if language is None
    ]
    if problems and not can_detect():
        raise wrong(
            f"give the language of the texts, one of {join_some(sources, 12)}; this server "
            f"cannot detect it, because {LIBRARY} is not installed"
        )
    if problems:
        raise wrong(problems)
    return [
        (choose_by_languages(service.models, language[0], target), language[1])
        for language in languages
        if language is not None
    ]


def _words(text: str, markup: Markup) -> str:
    """A text without its markup, for the detection of its language."""
    try:
        return markup.words(text) if markup else text
    except InputError:  # which the translation reports
        return text


def _find(text: str, texts: Sequence[str], sources: Sequence[str]) -> tuple[str, float] | None:
    """The language of a text and its confidence, or of all texts if this one is too short."""
    for looked_at in (text, "\n".join(texts)[:LOOKED_AT]):
        code, confidence = next(iter(detect(looked_at, sources).items()), ("", 0.0))
        if confidence >= LEAST:
            return code, confidence
    return None


def _confidence(text: str, source: str) -> float:
    """The confidence that a text is in the only language that is read."""
    return detect(text, [source]).get(source, 0.0)


async def submit_texts(
    choice: ModelChoice, request: TextRequest, call: Call, on_step: OnStep | None = None
) -> tuple[TextRows, Submission]:
    """Submit the rows of texts to the model's scheduler; the end of the call cancels them.

    Raises:
        RequestError: the call is invalid, or its deadline has passed.
        TfexportError: the library refuses it, or too many requests wait.
    """
    made = list[Submission]()

    def leave() -> None:
        call.ended = True
        for submission in made:
            submission.cancel()

    def work() -> TextRows:
        rows = prepare(choice, request)
        submission = choice.model.scheduler.submit(
            rows.requests, rows.options, deadline=call.deadline, on_step=on_step
        )
        made.append(submission)
        if call.ended:  # if the call has ended meanwhile, cancel here
            made[0].cancel()
        return rows

    call.exits.callback(leave)
    return await call.in_thread(work), made[0]


async def outcome(submission: Submission, call: Call) -> list[list[Hypothesis]]:
    """The hypotheses of a submission.

    Raises:
        RequestError: the call's deadline has passed.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[list[Hypothesis]]] = loop.create_future()
    found.add_done_callback(seen)
    ended = _ended.setdefault(loop, _Ended())
    submission.future.add_done_callback(lambda future: ended.add(loop, future, found))
    timer = loop.call_later(max(call.left, 0.0), _expire, found)
    try:
        return await found
    finally:
        timer.cancel()


def _expire(found: "asyncio.Future[Any]") -> None:
    if not found.done():
        found.set_exception(late())


class _Ended:
    """Outcomes on their way from the threads that decode to an event loop, in groups.

    To wake a loop is a system call, for which a thread gives the GIL away and then waits for it: it
    is made once for all rows that end before the loop looks.
    """

    def __init__(self) -> None:
        self._pairs = deque[tuple[Future[Any], "asyncio.Future[Any]"]]()
        self._called = False  # whether the loop is going to look

    def add(
        self, loop: asyncio.AbstractEventLoop, source: Future[Any], found: "asyncio.Future[Any]"
    ) -> None:
        """Pass the outcome of a future on to one of the loop; callable from any thread."""
        self._pairs.append((source, found))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # first: what is added from now on calls again
        while self._pairs:
            source, found = self._pairs.popleft()
            if found.done():  # too late, or nobody waits
                continue
            if source.cancelled():
                found.cancel()
            elif (error := source.exception()) is not None:
                found.set_exception(error)
            else:
                found.set_result(source.result())


_ended = WeakKeyDictionary[asyncio.AbstractEventLoop, _Ended]()


async def stored_terms(
    service: Service, call: Call, numbers: Sequence[str], field: str, languages: tuple[str, str]
) -> Terms | None:
    """The terms of stored glossaries; None without any.

    Args:
        service: the server.
        call: the call of the request.
        numbers: ids of glossaries; of equal sources the entry of the first counts.
        field: the name of their field, for messages.
        languages: codes of the texts and the translations, in any form.

    Raises:
        RequestError: there is no such glossary, or none of these languages.
    """
    if not numbers:
        return None
    if not service.glossaries.enabled:
        raise wrong(f"{field}: this server keeps no glossaries; {HOW}")
    pair = pair_of(*languages)
    try:
        return await call.aside(service.glossaries.terms, numbers, pair)
    except NoDictionaryError as error:
        raise wrong(f"{field}: {error.message}") from None


def cut_headers(translations: Sequence[TextTranslation]) -> dict[str, str]:
    """Headers with the numbers of cut translations, of terms that were not met, of what stays."""
    counts = {
        UNFINISHED: sum(not one.hypotheses[0].finished for one in translations),
        UNMET: sum(len(one.unmet) for one in translations),
        KEPT: sum(one.kept for one in translations),
    }
    return {name: str(count) for name, count in counts.items() if count}


def unmet_values(translation: TextTranslation) -> list[dict[str, Any]]:
    """The terms that a translation does not meet, as JSON values."""
    return [{"source": term.source, "targets": [*term.targets]} for term in translation.unmet]
