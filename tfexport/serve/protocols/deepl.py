"""The protocol of DeepL: the parts that apply to local models."""

from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.markup.document import PLAIN, Markup
from tfexport.markup.placeholders import CERTAIN
from tfexport.markup.tokens import TagRules
from tfexport.runtime.text.language_codes import UNKNOWN, Code, language_name
from tfexport.runtime.text.sentences import Split
from tfexport.serve.bodies import (
    FORM,
    JSON,
    Fields,
    Texts,
    check_media_type,
    form_fields,
    read_form,
    read_json,
    unsupported,
)
from tfexport.serve.call import call_of
from tfexport.serve.failures import wrong
from tfexport.serve.models import TEXT, ServerModels
from tfexport.serve.openapi import describe
from tfexport.serve.rows import TextRequest
from tfexport.serve.service import Service
from tfexport.serve.texts import (
    check_size,
    cut_headers,
    stored_terms,
    translate_between,
    unmet_values,
)

NO_LIMIT = 1_000_000_000_000  # characters, as DeepL specifies for accounts without a limit
_FIELDS = 32  # of a form, besides its texts
_REGIONS = {"en": ["GB", "US"], "pt": ["BR", "PT"]}
_OTHER_SCRIPTS = {("sr", "Latn")}
_NAMES = {"EN-GB": "English (British)", "EN-US": "English (American)",
          "PT-BR": "Portuguese (Brazilian)", "PT-PT": "Portuguese (European)",
          "NB": "Norwegian (Bokmål)"}  # fmt: skip
_SPLITS: dict[str, Split] = {"0": "none", "1": "lines", "nonewlines": "punctuation"}


def _as_text(value: Any) -> Any:
    # A number in JSON, a digit in a form.
    return str(int(value)) if isinstance(value, bool | int) else value


def _split(value: str | None) -> str | None:
    if value is not None and value not in _SPLITS:
        raise ValueError(f"{value[:40]!r} is not one of {', '.join(_SPLITS)}")
    return value


def _tags(value: Any) -> Any:
    """Names of tags: a list, or a text with commas."""
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        names = [name.strip() for part in parts for name in part.split(",")]
        return tuple(name for name in names if name)
    raise ValueError("is neither a list of names nor a text with commas")


_Nothing = Annotated[Any, unsupported()]
_EMPTY = pydantic.BeforeValidator(lambda value: value or None)
_Numbers = Annotated[tuple[str, ...], pydantic.BeforeValidator(_tags)]
_Tags = Annotated[tuple[str, ...], pydantic.BeforeValidator(_tags)]


class TranslateCall(Fields):
    """A request to translate."""

    text: Texts
    target_lang: str = pydantic.Field(min_length=1)
    source_lang: str | None = None
    split_sentences: Annotated[
        str | None, pydantic.BeforeValidator(_as_text), pydantic.AfterValidator(_split)
    ] = pydantic.Field(None, description="by default as the model reads texts")
    preserve_formatting: bool = pydantic.Field(
        False, description="accepted without effect: white space is always preserved"
    )
    show_billed_characters: bool = False
    formality: Annotated[Any, unsupported("default", "prefer_more", "prefer_less")] = None
    model_type: Annotated[Any, unsupported("prefer_quality_optimized", "latency_optimized")] = None
    enable_beta_languages: Annotated[Any, unsupported("0", "false", False)] = None
    tag_handling: Annotated[Literal["html", "xml"] | None, _EMPTY] = None
    tag_handling_version: Annotated[Any, unsupported("v1", "v2")] = None
    outline_detection: bool = pydantic.Field(
        True, description="elements of XML without text around them end a sentence"
    )
    non_splitting_tags: _Tags = pydantic.Field((), description="never end a sentence")
    splitting_tags: _Tags = pydantic.Field((), description="end a sentence")
    ignore_tags: _Tags = pydantic.Field((), description="whose content is not translated")
    placeholders: bool = pydantic.Field(
        True, description="of this server only: {name}, ${x}, %(name)s and %1$s of plain texts stay"
    )
    context: _Nothing = None
    glossary_id: Annotated[str | None, _EMPTY] = pydantic.Field(
        None, description="of a stored glossary; needs source_lang"
    )
    glossary_ids: _Numbers = pydantic.Field(
        (), max_length=5, description="of stored glossaries; of equal sources the first counts"
    )
    style_id: _Nothing = None
    translation_memory_id: _Nothing = None
    translation_memory_threshold: _Nothing = None
    custom_instructions: _Nothing = None

    @pydantic.model_validator(mode="after")
    def _check_tags(self) -> "TranslateCall":
        if self.tag_handling is None and (
            self.non_splitting_tags or self.splitting_tags or self.ignore_tags
        ):
            raise ValueError("names of tags need tag_handling")
        if self.glossary_id is not None and self.glossary_ids:
            raise ValueError("give glossary_id or glossary_ids, not both")
        if self.glossaries and not self.source_lang:
            raise ValueError("glossary_id: needs source_lang, and this request has none")
        return self

    @property
    def glossaries(self) -> tuple[str, ...]:
        """The ids of its glossaries."""
        return self.glossary_ids if self.glossary_id is None else (self.glossary_id,)

    def markup(self) -> Markup:
        """The markup of the texts, with the rules for its elements."""
        if self.tag_handling is None:
            return Markup("text", CERTAIN) if self.placeholders else PLAIN
        rules = TagRules(
            frozenset(self.ignore_tags), frozenset(self.splitting_tags),
            frozenset(self.non_splitting_tags), self.outline_detection,
        )  # fmt: skip
        return Markup(self.tag_handling, rules=rules)


_LISTS = ("text", "non_splitting_tags", "splitting_tags", "ignore_tags", "custom_instructions",
          "glossary_ids")  # fmt: skip


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["DeepL"])

    @router.post("/v2/translate", **describe(TranslateCall, "Translate texts.", JSON, FORM))
    async def translate_texts(request: Request) -> Response:
        call = call_of(request.scope)
        kind = check_media_type(call.headers, JSON, FORM)
        body = await call.in_thread(_read, kind, call.body, service.settings.max_texts)
        check_size(service.settings, call, body.text)
        split = None if body.split_sentences is None else _SPLITS[body.split_sentences]
        options = {"return_scores": False}  # the protocol has none
        terms = await stored_terms(service, call, body.glossaries, "glossary_id", (
            body.source_lang or "", body.target_lang,
        ))  # fmt: skip
        text_request = TextRequest(
            body.text, options, split=split, markup=body.markup(), terms=terms
        )
        found = await translate_between(
            service, call, text_request, body.source_lang or None, body.target_lang
        )
        translations = [
            {
                "detected_source_language": source_code(one.source),
                "text": one.texts[0],
                "billed_characters": len(text),
                **({"unmet_terms": unmet_values(one)} if one.unmet else {}),
            }
            for text, one in zip(body.text, found, strict=True)
        ]
        headers = cut_headers(found)
        return JSONResponse({"translations": translations}, headers=headers)

    @router.get("/v2/languages", summary="List languages of sources, or of targets.")
    async def languages(request: Request) -> Response:
        side = _side(request)
        return JSONResponse(_listed(service.models, side))

    @router.get("/v2/usage", summary="Characters that were translated since the start.")
    async def usage() -> Response:
        count = service.metrics.characters
        return JSONResponse({"character_count": count, "character_limit": NO_LIMIT})

    return router


def _read(kind: str, body: bytes, max_texts: int) -> TranslateCall:
    if kind == JSON:
        return read_json(TranslateCall, body)
    return read_form(TranslateCall, body, _LISTS, max_texts + _FIELDS)


def _side(request: Request) -> str:
    """Whether source or target languages are requested: in the path, or in a form."""
    given = request.query_params.get("type")
    if given is None:
        fields = form_fields(call_of(request.scope).body, _FIELDS)
        given = fields.get("type", ["source"])[0]
    if given not in ("source", "target"):
        raise wrong(f"type: {given[:40]!r} is neither source nor target")
    return given


def source_code(code: str) -> str:
    """A source language as the protocol writes it: without region and script."""
    return Code.of(code).language.upper()


def target_codes(code: str) -> list[str]:
    """The target languages of the protocol for a language of a model.

    Clients refuse English and Portuguese without a region.
    """
    parts = Code.of(code)
    if parts.language in _REGIONS:
        regions = [parts.region] if parts.region else _REGIONS[parts.language]
        return [f"{parts.language}-{region}".upper() for region in regions]
    if parts.language == "zh":
        return [f"ZH-{parts.script.upper() or 'HANS'}"]
    script = parts.script if (parts.language, parts.script) in _OTHER_SCRIPTS else ""
    return [str(Code(parts.language, script)).upper()]


def _listed(models: ServerModels, side: str) -> list[dict[str, Any]]:
    codes: dict[str, str] = {}  # in the order of the models
    for model in models.taking(TEXT) or models:
        for code in getattr(model.languages, f"{side}s") or (UNKNOWN,):
            for listed in target_codes(code) if side == "target" else [source_code(code)]:
                codes.setdefault(listed, _NAMES.get(listed) or language_name(listed))
    extra = {"supports_formality": False} if side == "target" else {}
    return [{"language": code, "name": name, **extra} for code, name in codes.items()]
