"""The server's own protocol: JSON, and server-sent events."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.errors import TfexportError
from tfexport.serve.bodies import (
    JSON,
    StrictFields,
    Texts,
    check_amount,
    check_media_type,
    problems_of,
)
from tfexport.serve.call import call_of
from tfexport.serve.choice import Choice, choose_named, use
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.model_languages import UNKNOWN
from tfexport.serve.models import Model
from tfexport.serve.openapi import describe
from tfexport.serve.protocols.own_results import (
    answer,
    scored,
    to_json,
)
from tfexport.serve.protocols.own_stream import stream
from tfexport.serve.scoring import prepare_pairs
from tfexport.serve.sentences import Split
from tfexport.serve.service import Service
from tfexport.serve.texts import Asked
from tfexport.serve.translating import aside, check_size, translate

Kind = TypeVar("Kind", bound=StrictFields)
Prefixes = Sequence[str | list[int] | None]


class Call(StrictFields):
    """The fields that both calls have."""

    model: str | None = pydantic.Field(None, description="which, if there are several")
    options: dict[str, Any] = pydantic.Field(
        {}, description="decoding options by name, source_language and target_language"
    )


class TranslateCall(Call):
    """A request to translate."""

    texts: Texts = pydantic.Field(description="of any number of sentences and lines")
    split_sentences: Split | None = pydantic.Field(
        None, description="texts into sentences; by default as the model reads texts"
    )
    divide: bool = pydantic.Field(
        False, description="sentences that are too long for the model, instead of refusing them"
    )
    stream: bool = pydantic.Field(False, description="one text, as server-sent events")


class ScoreCall(Call):
    """A request to score targets."""

    sources: Texts
    targets: Texts = pydantic.Field(description="one for each source")


class _Options:
    """The options of a call, those of decoding apart from the others."""

    def __init__(self, given: Mapping[str, Any], texts: int | None) -> None:
        self.decoding = dict(given)
        self.problems: list[str] = []
        self.source = self._language("source_language")
        self.target = self._language("target_language")
        self.prefixes = None if texts is None else self._prefixes(texts)
        self.counted = [one for one in self.prefixes or () if one is not None]

    def _language(self, name: str) -> str | None:
        code = self.decoding.pop(name, None)
        if code is None or (isinstance(code, str) and code):
            return code
        self.problems.append(f"options.{name}: is not a language code")
        return None

    def _prefixes(self, texts: int) -> Prefixes | None:
        given: Any = self.decoding.pop("target_prefix", None)
        if given is None:
            return None
        if isinstance(given, str):
            return [given] * texts
        kinds = (str, list, type(None))
        if not isinstance(given, list) or not all(isinstance(one, kinds) for one in given):
            self.problems.append("options.target_prefix: is neither a text nor a list of them")
            return None
        if len(given) != texts:
            self.problems.append(
                f"options.target_prefix: holds {len(given)} prefixes for {texts} texts"
            )
        return [*given]


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["tfexport"])

    @router.post("/v1/translate", **describe(TranslateCall, "Translate texts."))
    async def translate_texts(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(request.scope, JSON)
        body = await aside(call, lambda: _read(TranslateCall, call.body, service))
        if body.stream and len(body.texts) != 1:
            raise wrong(f"stream: one text is streamed at a time, not {len(body.texts)}")
        options = _Options(body.options, len(body.texts))
        check_size(service.settings, call, body.texts, options.counted)
        choice = _choose(service, body, options)
        use(call, choice.model)
        asked = Asked(
            body.texts, options.decoding, options.prefixes, choice.spoken, choice.source,
            choice.target, body.split_sentences, body.divide, stream=body.stream,
        )  # fmt: skip
        if body.stream:
            return await stream(service.metrics, choice.model, asked, call)
        found = await translate(service.metrics, choice.model, asked, call)
        body_of = await aside(call, lambda: answer(choice.model.name, found, call))
        return Response(body_of, media_type=JSON)

    @router.post("/v1/score", **describe(ScoreCall, "Score given translations."))
    async def score(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(request.scope, JSON)
        body = await aside(call, lambda: _read(ScoreCall, call.body, service))
        if len(body.sources) != len(body.targets):
            raise wrong(f"there are {len(body.sources)} sources and {len(body.targets)} targets")
        check_size(service.settings, call, body.sources, body.targets)
        options = _Options(body.options, None)
        choice = _choose(service, body, options)
        model = choice.model
        use(call, model)
        pairs, resolved = await aside(call, lambda: prepare_pairs(
            model, body.sources, body.targets, options.decoding, choice.spoken
        ))  # fmt: skip
        found = await service.scoring.score(model, pairs, resolved, call)
        scores = await aside(call, lambda: to_json([scored(one) for one in found]))
        return Response(
            b'{"model":%b,"scores":%b}' % (to_json(model.name), scores), media_type=JSON
        )

    @router.get("/v1/models", summary="List the models.")
    async def list_models() -> Response:
        return JSONResponse({"models": [_listed(model) for model in service.models]})

    return router


def _choose(service: Service, body: Call, options: _Options) -> Choice:
    if options.problems:
        raise wrong(options.problems)
    return choose_named(service.models, body.model, options.source, options.target)


def _read(kind: type[Kind], body: bytes, service: Service) -> Kind:
    """Read a body; problems of decoding options are named beside those of fields."""
    given = check_amount(body)
    try:
        return kind.model_validate_json(body)
    except pydantic.ValidationError as error:
        problems = list(problems_of(kind, error))
    options = given.get("options") if isinstance(given, dict) else None
    if isinstance(options, dict):
        problems += _problems_of_options(options, next(iter(service.models)))
    raise wrong(problems)


def _problems_of_options(given: Mapping[str, Any], model: Model) -> list[str]:
    options = _Options(given, None)
    options.decoding.pop("target_prefix", None)
    try:
        spoken = model.languages.spoken(options.source, options.target)
        model.engine.resolver.resolve(options.decoding, spoken=spoken)
    except TfexportError as error:
        return [*options.problems, spelled(error)]
    return options.problems


def _listed(model: Model) -> dict[str, Any]:
    scheduler, languages = model.scheduler, model.languages
    return {
        "name": model.name,
        "version": model.version,
        "languages": {
            "source": list(languages.sources) or [UNKNOWN],
            "target": list(languages.targets) or [UNKNOWN],
        },
        "split_sentences": model.split,
        "input": "text" if model.engine.gives_text else "ids",
        "engine": model.engine.model.engine,
        "batching": "continuous" if scheduler.continuous else "dynamic",
        **({"reason": scheduler.reason} if scheduler.reason else {}),
    }
