"""The choice of the model that serves a request."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfexport.errors import join_some
from tfexport.runtime.language_tokens import LanguagePair
from tfexport.serve.call import Call
from tfexport.serve.failures import wrong
from tfexport.serve.model_languages import UNKNOWN
from tfexport.serve.models import Model, Models


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
        model = _matching(list(models), source, target)[0]
    _check(model, source, target)
    return _choice(model, source, target)


def choose_by_languages(models: Models, source: str, target: str) -> ModelChoice:
    """Choose the first model that translates between languages.

    Raises:
        RequestError: there is none.
    """
    return _choice(_matching(list(models), source, target)[0], source, target)


def choose_only(models: Models, target: str) -> ModelChoice | None:
    """The first model that writes a language, if all such models read the same language.

    None if they read several languages; then the language has to be detected.

    Raises:
        RequestError: no model writes it.
    """
    found = _matching(list(models), None, target)
    sources = {code for model in found for code in model.languages.sources}
    return _choice(found[0], next(iter(sources), None), target) if len(sources) < 2 else None


def sources_of(models: Models, target: str) -> list[str]:
    """The languages from which there are translations into a language."""
    found = _matching(list(models), None, target)
    return list(dict.fromkeys(code for model in found for code in model.languages.sources))


def use(call: Call, model: Model) -> None:
    """Keep a model open until the call ends."""
    call.model = model.name
    call.exits.enter_context(model.in_use())


def _matching(models: Sequence[Model], source: str | None, target: str | None) -> list[Model]:
    def fits(model: Model) -> bool:
        reads = source is None or model.languages.source(source) is not None
        return reads and (target is None or model.languages.target(target) is not None)

    # Models with known languages come before models with unknown languages.
    found = sorted(filter(fits, models), key=lambda model: model.languages.unknown)
    if not found:
        pair = f"from {source or 'any language'} to {target or 'any language'}"
        raise wrong(f"no model translates {pair[:80]}; there are {_pairs(models)}")
    return found


def _pairs(models: Sequence[Model]) -> str:
    return join_some([
        f"{'/'.join(model.languages.sources[:5])}-{'/'.join(model.languages.targets[:5])}"
        for model in models
    ])  # fmt: skip


def _check(model: Model, source: str | None, target: str | None) -> None:
    problems = []
    for side, code in (("source", source), ("target", target)):
        known = getattr(model.languages, f"{side}s")
        if code is not None and getattr(model.languages, side)(code) is None:
            problems.append(
                f"{side}_language: {code[:40]!r} is not a language of the model {model.name!r}; "
                f"known: {join_some(sorted(known), 12)}"
            )
    if problems:
        raise wrong(problems)


def _choice(model: Model, source: str | None, target: str | None) -> ModelChoice:
    languages = model.languages
    known = languages.source(source) if source else languages.default_source
    written = languages.target(target) if target else _only_target(model)
    return ModelChoice(
        model, known or source or UNKNOWN, written or target or UNKNOWN,
        languages.language_pair(source, target),
    )  # fmt: skip


def _only_target(model: Model) -> str | None:
    known = model.engine.manifest.languages
    default = None if known is None else known.target
    targets = model.languages.targets
    return targets[0] if len(targets) == 1 else default
