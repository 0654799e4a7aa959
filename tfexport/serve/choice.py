"""Which model serves a request."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfexport.errors import join_some
from tfexport.runtime.spoken import Spoken
from tfexport.serve.call import Call
from tfexport.serve.failures import wrong
from tfexport.serve.model_languages import UNKNOWN
from tfexport.serve.models import Model, Models


@dataclass(frozen=True)
class Choice:
    """A model, and the languages between which it translates.

    Attributes:
        model: that serves the request.
        source: code of the texts' language; "und" if nobody knows.
        spoken: what the model is told.
    """

    model: Model
    source: str
    spoken: Spoken


def choose_named(
    models: Models, name: str | None, source: str | None, target: str | None
) -> Choice:
    """Choose a model by its name, or by languages where there are several.

    Raises:
        RequestError: there is none, or it does not know the languages.
    """
    if name is not None:
        model = models.get(name)
    elif len(models.names) == 1:
        (model,) = models
    elif source is None and target is None:
        raise wrong(f"model: say which one of {join_some(models.names)}")
    else:
        model = _matching(list(models), source, target)[0]
    _check(model, source, target)
    return _choice(model, source, target)


def choose_by_languages(models: Models, source: str | None, target: str) -> Choice:
    """Choose the first model that translates between languages.

    Args:
        models: of the server.
        source: None where the caller leaves it to the server.
        target: language of the translations.

    Raises:
        RequestError: there is none, or the source could be one of several.
    """
    found = _matching(list(models), source, target)
    if source is None:
        read = sorted({code for model in found for code in _reads(model)})
        if len(read) > 1:
            raise wrong(f"the language of the texts has to be said: one of {join_some(read)}")
    return _choice(found[0], source, target)


def use(call: Call, model: Model) -> None:
    """Keep a model open until the call ends."""
    call.model = model.name
    call.exits.enter_context(model.in_use())


def _reads(model: Model) -> Sequence[str]:
    languages = model.languages
    return [languages.default_source] if languages.default_source else languages.sources


def _matching(models: Sequence[Model], source: str | None, target: str | None) -> list[Model]:
    def fits(model: Model) -> bool:
        reads = source is None or model.languages.source(source) is not None
        return reads and (target is None or model.languages.target(target) is not None)

    # Models that are known to translate so come before those of which nobody knows.
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


def _choice(model: Model, source: str | None, target: str | None) -> Choice:
    languages = model.languages
    known = languages.source(source) if source else languages.default_source
    return Choice(model, known or source or UNKNOWN, languages.spoken(source, target))
