"""The choice of the model that serves a request: by name, or by languages for each text."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tfexport.errors import join_some
from tfexport.runtime.language_tokens import LanguagePair
from tfexport.serve.call import Call
from tfexport.serve.detection import LIBRARY, LOOKED_AT, Detected, can_detect, detect
from tfexport.serve.failures import RequestError, wrong
from tfexport.serve.language_codes import UNKNOWN
from tfexport.serve.models import Model, Models
from tfexport.serve.sentences import Split
from tfexport.serve.service import Service
from tfexport.serve.texts import Asked, Translated, translate

LEAST = 0.3  # a language with less confidence is not used


@dataclass(frozen=True)
class ModelChoice:
    """A model, and the languages between which it translates.

    Attributes:
        model: the model that serves the request.
        source: code of the texts' language; "und" if unknown.
        target: code of the translations' language; "und" if unknown.
        language_pair: the language tokens for the model.
    """

    model: Model
    source: str
    target: str
    language_pair: LanguagePair


def choose_named(
    models: Models, name: str | None, source: str | None, target: str | None
) -> ModelChoice:
    """Choose a model by its name, or by languages if there are several.

    Raises:
        RequestError: there is none, or it does not know the languages.
    """
    if name is not None:
        model = models.get(name)
    elif len(models.names) == 1:
        (model,) = models
    elif source is None and target is None:
        raise wrong(f"model: choose one of {join_some(models.names)}")
    else:
        return _matching(models, source, target)[0]
    choice = _choice(model, source, target)
    if choice is None:
        raise _foreign(model, source, target)
    return choice


def choose_by_languages(models: Models, source: str, target: str) -> ModelChoice:
    """Choose the first model that translates between languages.

    Raises:
        RequestError: there is none.
    """
    return _matching(models, source, target)[0]


def choose_only(models: Models, target: str) -> ModelChoice | None:
    """The first model that writes a language, if all such models read the same language.

    None if they read several languages; then the language has to be detected.

    Raises:
        RequestError: no model writes it.
    """
    found = _matching(models, None, target)
    sources = {code for choice in found for code in choice.model.languages.sources}
    if len(sources) > 1:
        return None
    return _choice(found[0].model, next(iter(sources), None), target)


def sources_of(models: Models, target: str) -> list[str]:
    """The languages from which there are translations into a language."""
    found = _matching(models, None, target)
    return list(dict.fromkeys(code for one in found for code in one.model.languages.sources))


def use(call: Call, model: Model) -> None:
    """Keep a model open until the call ends."""
    call.model = model.name
    call.exits.enter_context(model.in_use())


def _matching(models: Models, source: str | None, target: str | None) -> list[ModelChoice]:
    """The models that have these languages; those with unknown languages come last."""
    every = [*models]
    found = [choice for model in every if (choice := _choice(model, source, target)) is not None]
    if not found:
        pair = f"from {source or 'any language'} to {target or 'any language'}"
        raise wrong(f"no model translates {pair[:80]}; there are {_pairs(every)}")
    return sorted(found, key=lambda choice: choice.model.languages.unknown)


def _pairs(models: Sequence[Model]) -> str:
    return join_some([
        f"{'/'.join(model.languages.sources[:5])}-{'/'.join(model.languages.targets[:5])}"
        for model in models
    ])  # fmt: skip


def _foreign(model: Model, source: str | None, target: str | None) -> RequestError:
    """The failure of a request for languages that a model does not have."""
    problems = []
    for side, code in (("source", source), ("target", target)):
        known = getattr(model.languages, f"{side}s")
        if code is not None and getattr(model.languages, side)(code) is None:
            problems.append(
                f"{side}_language: {code[:40]!r} is not a language of the model {model.name!r}; "
                f"known: {join_some(sorted(known), 12)}"
            )
    return wrong(problems)


def _choice(model: Model, source: str | None, target: str | None) -> ModelChoice | None:
    """The model with these languages in its own form; None if it does not have them."""
    languages = model.languages
    reads = None if source is None else languages.source(source)
    writes = None if target is None else languages.target(target)
    if (source is not None and reads is None) or (target is not None and writes is None):
        return None
    known = reads or languages.default_source
    written = writes or _only_target(model)
    return ModelChoice(
        model, known or UNKNOWN, written or UNKNOWN, languages.language_pair(reads, writes)
    )


def _only_target(model: Model) -> str | None:
    known = model.engine.manifest.languages
    default = None if known is None else known.target
    targets = model.languages.targets
    return targets[0] if len(targets) == 1 else default


@dataclass(frozen=True)
class Wanted:
    """A request that names languages instead of a model.

    Attributes:
        source: language of the texts; None to detect it.
        target: language of the translations.
        options: the options of decoding, by name.
        split: see ``Asked``.
    """

    source: str | None
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    split: Split | None = None


@dataclass(frozen=True)
class Answered:
    """The translation of one text.

    Attributes:
        source: its language.
        confidence: confidence in the source language, from 0 to 1; 1 if the caller named it.
        found: the translation.
    """

    source: str
    confidence: float
    found: Translated


async def translate_between(
    service: Service, call: Call, texts: Sequence[str], wanted: Wanted
) -> list[Answered]:
    """Translate texts with the models that have their languages.

    Raises:
        RequestError: there is no such model, or the language of a text cannot be detected.
        TfexportError: see ``translate``.
    """
    choices = await call.in_thread(_choices, service, texts, wanted)
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (choice, _) in enumerate(choices):
        groups.setdefault((choice.model.name, choice.source), []).append(place)
    jobs = []
    for indices in groups.values():
        choice, _ = choices[indices[0]]
        use(call, choice.model)
        asked = Asked(
            [texts[place] for place in indices], wanted.options, None, choice.language_pair,
            choice.source, choice.target, wanted.split, divide=True, indices=indices,
        )  # fmt: skip
        jobs.append(translate(service.metrics, choice.model, asked, call))
    found = await asyncio.gather(*jobs)
    made = dict(zip(chain(*groups.values()), chain(*found), strict=True))
    return [
        Answered(choice.source, confidence, made[place])
        for place, (choice, confidence) in enumerate(choices)
    ]


def _choices(
    service: Service, texts: Sequence[str], wanted: Wanted
) -> list[tuple[ModelChoice, float]]:
    """A model for each text, and the confidence in its language."""
    if wanted.source is not None:
        choice = choose_by_languages(service.models, wanted.source, wanted.target)
        return [(choice, 1.0)] * len(texts)
    only = choose_only(service.models, wanted.target)
    if only is not None:
        return [(only, _confidence(text, only.source)) for text in texts]
    sources = sources_of(service.models, wanted.target)
    found = [_find(text, texts, sources) for text in texts]
    problems = [
        f"text {place}: its language was not detected; give one of {join_some(sources, 12)}"
        for place, one in enumerate(found)
        if one is None
    ]
    if problems and not can_detect():
        raise wrong(
            f"give the language of the texts, one of {join_some(sources, 12)}; this server "
            f"cannot detect it, because {LIBRARY} is not installed"
        )
    if problems:
        raise wrong(problems)
    return [
        (choose_by_languages(service.models, one.code, wanted.target), one.confidence)
        for one in found
        if one is not None
    ]


def _find(text: str, texts: Sequence[str], sources: Sequence[str]) -> Detected | None:
    """The language of a text, or that of all texts if this one is too short."""
    for looked_at in (text, "\n".join(texts)[:LOOKED_AT]):
        best = next(iter(detect(looked_at, sources)), None)
        if best is not None and best.confidence >= LEAST:
            return best
    return None


def _confidence(text: str, source: str) -> float:
    """The confidence that a text is in the only language that is read."""
    return next((one.confidence for one in detect(text, [source])), 0.0)
