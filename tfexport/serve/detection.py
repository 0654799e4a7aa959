"""Detection of the language of texts, and choice of the model by languages."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tfexport.errors import join_some
from tfexport.serve.call import Call
from tfexport.serve.failures import wrong
from tfexport.serve.language_codes import Code
from tfexport.serve.model_choice import (
    ModelChoice,
    choose_by_languages,
    choose_only,
    sources_of,
    use,
)
from tfexport.serve.sentences import Split
from tfexport.serve.service import Service
from tfexport.serve.texts import Asked, Translated
from tfexport.serve.translating import in_thread, translate

LIBRARY = "py3langid"
LOOKED_AT = 2000  # characters of a text that are used; more do not change the result
LEAST = 0.3  # a language with less confidence is not used
# Languages for which the library has another code than models have.
_OTHER_NAMES = {"wuu": "zh", "no": "nb"}


@dataclass(frozen=True)
class Detected:
    """The language of a text.

    Attributes:
        code: the code in the form of the model, or of the caller's list.
        confidence: from 0 to 1, relative to the other candidates and the likeliest other language.
    """

    code: str
    confidence: float


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


def can_detect() -> bool:
    """Whether the library that finds languages is installed."""
    return _identifier() is not None


def detect(text: str, candidates: Sequence[str]) -> list[Detected]:
    """The candidates that the library knows, likeliest first; none if a text has no evidence."""
    ranked = _ranks(text[:LOOKED_AT])
    if not ranked or max(ranked.values()) <= 2 / len(ranked):  # no evidence of any language
        return []
    likely = {code: ranked[name] for code in candidates if (name := _name(code)) in ranked}
    names = {_name(code) for code in candidates}
    other = max((value for name, value in ranked.items() if name not in names), default=0.0)
    total = sum({_name(code): value for code, value in likely.items()}.values()) + other
    found = [Detected(code, value / total) for code, value in likely.items()]
    return sorted(found, key=lambda one: -one.confidence)


async def translate_between(
    service: Service, call: Call, texts: Sequence[str], wanted: Wanted
) -> list[Answered]:
    """Translate texts with the models that have their languages.

    Raises:
        RequestError: there is no such model, or the language of a text cannot be detected.
        TfexportError: see ``translate``.
    """
    choices = await in_thread(call, lambda: _choices(service, texts, wanted))
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (choice, _) in enumerate(choices):
        groups.setdefault((choice.model.name, choice.source), []).append(place)
    for indices in groups.values():
        use(call, choices[indices[0]][0].model)
    found = await asyncio.gather(*(
        translate(service.metrics, choices[indices[0]][0].model,
                  _asked(choices[indices[0]][0], texts, indices, wanted), call)
        for indices in groups.values()
    ))  # fmt: skip
    made = {
        place: one
        for indices, several in zip(groups.values(), found, strict=True)
        for place, one in zip(indices, several, strict=True)
    }
    return [
        Answered(choice.source, confidence, made[place])
        for place, (choice, confidence) in enumerate(choices)
    ]


def _asked(
    choice: ModelChoice, texts: Sequence[str], indices: Sequence[int], wanted: Wanted
) -> Asked:
    return Asked(
        [texts[place] for place in indices], wanted.options, None, choice.language_pair,
        choice.source, choice.target, wanted.split, divide=True, indices=indices,
    )  # fmt: skip


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


def _name(code: str) -> str:
    return Code.of(code).language


@lru_cache(256)
def _ranks(text: str) -> Mapping[str, float]:
    """The likelihood of every language that the library knows; none without it."""
    identifier = _identifier()
    if identifier is None or not text.strip():
        return {}
    found: dict[str, float] = {}
    for name, value in identifier.rank(text):
        name = _OTHER_NAMES.get(name, name)
        found[name] = found.get(name, 0.0) + float(value)
    return found


_loading = threading.Lock()


def _identifier() -> Any:
    with _loading:
        return _load()


@lru_cache(1)
def _load() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
