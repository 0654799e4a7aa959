"""The protocol of LibreTranslate: the parts that apply to local models."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import pydantic_core
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.markup.document import Markup
from tfexport.markup.placeholders import CERTAIN
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.language_codes import UNKNOWN, language_name, listed_codes
from tfexport.runtime.text.sentences import Split
from tfexport.serve.bodies import (
    FORM,
    JSON,
    MOST_TERMS,
    Fields,
    Texts,
    check_amount,
    check_media_type,
    form_fields,
    read_form,
    read_json,
)
from tfexport.serve.call import Call, call_of
from tfexport.serve.detection import LIBRARY, can_detect, detect
from tfexport.serve.failures import LIBRETRANSLATE, RequestError, wrong
from tfexport.serve.models import TEXT, ServerModels
from tfexport.serve.openapi import describe
from tfexport.serve.rows import TextRequest, TextTranslation
from tfexport.serve.service import Service
from tfexport.serve.texts import (
    check_size,
    cut_headers,
    detecting,
    stored_terms,
    translate_between,
    unmet_values,
)

AUTO = "auto"
_FIELDS = 32  # of a form
_DETECTED = 5  # languages that are listed for a text

Kind = TypeVar("Kind", bound=Fields)


def _phrases(value: Any) -> Any:
    """A glossary: an object, which in a form is text, or an id."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = pydantic_core.from_json(value)
        except ValueError as error:
            raise ValueError(f"invalid JSON: {str(error)[:200]}") from None
        if len(value) > MOST_TERMS:
            raise ValueError(f"{len(value)} names; {MOST_TERMS} at most")
    if not value or isinstance(value, str):
        return value or None
    if not isinstance(value, dict):
        raise ValueError("should be an object of phrases, or the id of a stored glossary")
    for source, targets in value.items():
        listed = targets if isinstance(targets, list) else [targets]
        if not all(isinstance(target, str) for target in listed):
            raise ValueError(f"the target of {source[:60]!r} is neither a text nor a list of texts")
    return value


_Glossary = Annotated[
    str | dict[str, str | list[str]] | None, pydantic.BeforeValidator(_phrases)
]  # fmt: skip


class TranslateCall(Fields):
    """A request to translate."""

    q: Annotated[str, pydantic.Tag("one")] | Annotated[Texts, pydantic.Tag("several")] = (
        pydantic.Field(
            description="a text, or a list of texts",
            discriminator=pydantic.Discriminator(
                lambda value: "several" if isinstance(value, list) else "one"
            ),
        )
    )
    source: str = pydantic.Field(AUTO, min_length=1)
    target: str = pydantic.Field(min_length=1)
    format: Literal["text", "html"] = "text"
    alternatives: int = pydantic.Field(0, ge=0)
    split_sentences: Split | None = pydantic.Field(
        None, description="of this server only; by default as the model reads texts"
    )
    placeholders: bool = pydantic.Field(
        True, description="of this server only: {name}, ${x}, %(name)s and %1$s of plain texts stay"
    )
    glossary: _Glossary = pydantic.Field(
        None, description="of this server only: source phrases with their target phrases, or lists "
        "of these; in a form as JSON. Or the id of a stored glossary",
    )  # fmt: skip
    api_key: str | None = None

    def markup(self) -> Markup:
        """The markup of the texts."""
        kept = CERTAIN if self.format == "text" and self.placeholders else None
        return Markup(self.format, kept)


class DetectCall(Fields):
    """A text whose language is to be detected."""

    q: str
    api_key: str | None = None


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["LibreTranslate"])

    @router.post("/translate", **describe(TranslateCall, "Translate texts.", JSON, FORM))
    async def translate_texts(request: Request) -> Response:
        call = call_of(request.scope)
        kind = check_media_type(call.headers, JSON, FORM)
        body = await call.in_thread(_read, service, TranslateCall, kind, call.body)
        source = None if body.source == AUTO else body.source
        texts = [body.q] if isinstance(body.q, str) else body.q
        check_size(service.settings, call, texts)
        text_request = TextRequest(
            texts, _options(body.alternatives), split=body.split_sentences,
            markup=body.markup(), terms=await _terms(service, call, body),
        )  # fmt: skip
        translations = await translate_between(service, call, text_request, source, body.target)
        headers = cut_headers(translations)
        return JSONResponse(_answer(service, translations, body), headers=headers)

    @router.post("/detect", **describe(DetectCall, "Find the language of a text.", JSON, FORM))
    async def detect_language(request: Request) -> Response:
        call = call_of(request.scope)
        kind = check_media_type(call.headers, JSON, FORM)
        body = await call.in_thread(_read, service, DetectCall, kind, call.body)
        check_size(service.settings, call, [body.q])
        if not await detecting(call, can_detect):
            raise RequestError(404, f"/detect: {LIBRARY} is not installed on this server")
        codes = [code for one in _listed(service.models) if (code := one["code"]) != UNKNOWN]
        confidences = await call.in_thread(detect, body.q, codes)
        return JSONResponse([
            {"confidence": _percent(confidence), "language": code}
            for code, confidence in islice(confidences.items(), _DETECTED) if _percent(confidence)
        ])  # fmt: skip

    @router.get("/languages", summary="List languages, each with those it is translated into.")
    async def languages(request: Request) -> Response:
        _check_key(service, _key_without_body(request))
        return JSONResponse(_listed(service.models))

    @router.get("/frontend/settings", summary="What a page needs to know.")
    async def settings() -> Response:
        return JSONResponse(_settings(service))

    for path in ("/suggest", "/translate_file"):
        router.add_api_route(path, _refuse, methods=["GET", "POST"], include_in_schema=False)
    return router


async def _refuse(request: Request) -> Response:
    raise RequestError(404, f"{request.url.path}: not available on this server; it has /translate, "
                  "/detect, /languages and /frontend/settings")  # fmt: skip


def _read(service: Service, fields: type[Kind], kind: str, body: bytes) -> Kind:
    """Read a body, starting with its key."""
    if service.keys.needed:
        key = _key_of_json(body) if kind == JSON else _key_of_form(body)
        _check_key(service, key)
    return read_json(fields, body) if kind == JSON else read_form(fields, body, (), _FIELDS)


def _key_of_json(body: bytes) -> str | None:
    value = check_amount(body)
    key = value.get("api_key") if isinstance(value, dict) else None
    return key if isinstance(key, str) else None


def _key_of_form(body: bytes) -> str | None:
    try:
        return form_fields(body, _FIELDS).get("api_key", [None])[0]
    except RequestError:
        return None


def _check_key(service: Service, key: str | None) -> None:
    if not service.keys.allow(None if key is None else key.encode()):
        raise LIBRETRANSLATE.refusal()


def _key_without_body(request: Request) -> str | None:
    """The key of a request without a body: in the path, or in a form."""
    found = request.query_params.get("api_key")
    if found is not None:
        return found
    return _key_of_form(call_of(request.scope).body)


async def _terms(service: Service, call: Call, body: TranslateCall) -> Terms | None:
    """The terms of a request: its own, or those of a stored glossary."""
    if isinstance(body.glossary, str):
        if body.source == AUTO:
            raise wrong("glossary: a stored one needs the language in source")
        pair = (body.source, body.target)
        return await stored_terms(service, call, [body.glossary], "glossary", pair)
    return await call.aside(Terms.of, body.glossary.items()) if body.glossary else None


def _options(alternatives: int) -> dict[str, Any]:
    """Alternatives are the other hypotheses of beam search; the protocol has no scores."""
    count = alternatives + 1
    beam = {"beam_size": count, "num_hypotheses": count} if alternatives else {}
    return {"return_scores": False, **beam}


def _answer(
    service: Service, translations: list[TextTranslation], body: TranslateCall
) -> dict[str, Any]:
    single = isinstance(body.q, str)
    texts = [one.texts[0] for one in translations]
    values: dict[str, Any] = {"translatedText": texts[0] if single else texts}
    if body.source == AUTO:
        short = {own: code for model in service.models
                 for code, own in listed_codes(model.languages.sources).items()}  # fmt: skip
        detected = [
            {"confidence": _percent(one.confidence), "language": short.get(one.source, one.source)}
            for one in translations
        ]
        values["detectedLanguage"] = detected[0] if single else detected
    if body.alternatives:
        others = [_others(one.texts) for one in translations]
        values["alternatives"] = others[0] if single else others
    if body.glossary:
        unmet = [unmet_values(one) for one in translations]
        values["unmetTerms"] = unmet[0] if single else unmet
    return values


def _others(texts: Sequence[str]) -> list[str]:
    """The texts that differ from the first and from one another."""
    return list(dict.fromkeys(text for text in texts if text != texts[0]))


def _percent(confidence: float) -> float:
    return round(100 * confidence, 1)


def _listed(models: ServerModels) -> list[dict[str, Any]]:
    targets: dict[str, dict[str, None]] = {}  # in the order of the models
    for model in models.taking(TEXT) or models:
        known = model.languages
        sources, written = (
            list(listed_codes(codes)) or [UNKNOWN] for codes in (known.sources, known.targets)
        )
        for code in sources:
            others = [other for other in written if other != code or code == UNKNOWN]
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
