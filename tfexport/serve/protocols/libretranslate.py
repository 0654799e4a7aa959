"""The protocol of LibreTranslate, as far as it applies."""

import urllib.parse
from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.serve.bodies import FORM, JSON, Fields, check_media_type, read_form, read_json
from tfexport.serve.call import call_of
from tfexport.serve.choice import choose_by_languages, use
from tfexport.serve.dialects import LIBRETRANSLATE
from tfexport.serve.failures import RequestError
from tfexport.serve.language_names import language_name
from tfexport.serve.model_languages import UNKNOWN
from tfexport.serve.models import Models
from tfexport.serve.openapi import describe
from tfexport.serve.service import Service
from tfexport.serve.texts import Asked, Translated
from tfexport.serve.translating import check_size, translate

AUTO = "auto"
_CERTAIN = 100.0  # that a text is in the model's only language
_FIELDS = 32  # of a form


class TranslateCall(Fields):
    """A request to translate."""

    q: Annotated[str, pydantic.Tag("one")] | Annotated[list[str], pydantic.Tag("several")] = (
        pydantic.Field(
            description="a text, or a list of texts",
            discriminator=pydantic.Discriminator(
                lambda value: "several" if isinstance(value, list) else "one"
            ),
        )
    )
    source: str = pydantic.Field(AUTO, min_length=1)
    target: str = pydantic.Field(min_length=1)
    format: Literal["text"] = pydantic.Field("text", description="HTML is not translated here")
    alternatives: int = pydantic.Field(0, ge=0)
    api_key: str | None = None


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["LibreTranslate"])

    @router.post("/translate", **describe(TranslateCall, "Translate texts.", forms=True))
    async def translate_texts(request: Request) -> Response:
        call = call_of(request.scope)
        kind = check_media_type(request.scope, JSON, FORM)
        body = _read(kind, call.body)
        _check_key(service, body.api_key)
        source = None if body.source == AUTO else body.source
        texts = [body.q] if isinstance(body.q, str) else body.q
        check_size(service.settings, call, texts)
        choice = choose_by_languages(service.models, source, body.target)
        use(call, choice.model)
        asked = Asked(texts, _options(body.alternatives), None, choice.spoken, choice.source)
        found = await translate(service.metrics, choice.model, asked, call)
        return JSONResponse(_answer(found, body, choice.source))

    @router.get("/languages", summary="List languages, each with those it is translated into.")
    async def languages(request: Request) -> Response:
        _check_key(service, _key_beside(request))
        return JSONResponse(_listed(service.models))

    @router.get("/frontend/settings", summary="What a page needs to know.")
    async def settings() -> Response:
        return JSONResponse(_settings(service))

    for path in ("/detect", "/suggest", "/translate_file"):
        router.add_api_route(path, _refuse, methods=["GET", "POST"], include_in_schema=False)
    return router


async def _refuse(request: Request) -> Response:
    raise RequestError(404, f"{request.url.path}: this server does not have it; it has /translate, "
                  "/languages and /frontend/settings")  # fmt: skip


def _read(kind: str, body: bytes) -> TranslateCall:
    if kind == JSON:
        return read_json(TranslateCall, body)
    return read_form(TranslateCall, body, (), _FIELDS)


def _check_key(service: Service, key: str | None) -> None:
    if not service.keys.allow(None if key is None else key.encode()):
        raise LIBRETRANSLATE.refusal()


def _key_beside(request: Request) -> str | None:
    """The key of a request without a body of its own kind: in the path, or in a form."""
    found = request.query_params.get("api_key")
    if found is not None:
        return found
    try:
        fields = urllib.parse.parse_qs(call_of(request.scope).body.decode())
    except ValueError:
        return None
    return fields.get("api_key", [None])[0]


def _options(alternatives: int) -> dict[str, Any]:
    """Alternatives are the other hypotheses of a beam; the protocol has no scores."""
    wanted = alternatives + 1
    beam = {"beam_size": wanted, "num_hypotheses": wanted} if alternatives else {}
    return {"return_scores": False, **beam}


def _answer(found: list[Translated], body: TranslateCall, source: str) -> dict[str, Any]:
    single = isinstance(body.q, str)
    texts = [one.made[0].text for one in found]
    others = [[made.text for made in one.made[1:]] for one in found]
    detected = [{"confidence": _CERTAIN, "language": source} for _ in found]
    values: dict[str, Any] = {"translatedText": texts[0] if single else texts}
    if body.source == AUTO:
        values["detectedLanguage"] = detected[0] if single else detected
    if body.alternatives:
        values["alternatives"] = others[0] if single else others
    return values


def _listed(models: Models) -> list[dict[str, Any]]:
    targets: dict[str, dict[str, None]] = {}  # in the order of the models
    for model in models:
        known = model.languages
        for code in known.sources or (UNKNOWN,):
            others = [other for other in known.targets or (UNKNOWN,)
                      if other != code or code == UNKNOWN]  # fmt: skip
            targets.setdefault(code, {}).update(dict.fromkeys(others))
    for code in [code for found in targets.values() for code in found]:
        targets.setdefault(code, {})
    return [
        {"code": code, "name": language_name(code), "targets": list(found)}
        for code, found in targets.items()
    ]


def _settings(service: Service) -> dict[str, Any]:
    listed = _listed(service.models)
    first = listed[0]
    target = (first["targets"] or [first["code"]])[0]

    def language(code: str) -> dict[str, str]:
        return {"code": code, "name": language_name(code)}

    return {
        "apiKeys": service.keys.needed,
        "keyRequired": service.keys.needed,
        "charLimit": service.settings.max_characters,
        "frontendTimeout": 500,
        "language": {"source": language(first["code"]), "target": language(target)},
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
    }
