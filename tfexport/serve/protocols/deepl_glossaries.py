"""The glossaries of DeepL's protocol: version 2, of one pair of languages, and version 3."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.runtime.text.glossary import parse_csv, parse_tsv, write_tsv
from tfexport.runtime.text.glossary_files import check_languages
from tfexport.runtime.text.language_codes import Code
from tfexport.serve.bodies import (
    FORM,
    JSON,
    Fields,
    First,
    check_media_type,
    read_form,
    read_json,
)
from tfexport.serve.call import call_of
from tfexport.serve.failures import RequestError, wrong
from tfexport.serve.glossaries import (
    Entries,
    GlossaryInfo,
    Pair,
    StoredGlossary,
    merged,
    pair_of,
    without,
)
from tfexport.serve.models import choose_by_languages
from tfexport.serve.openapi import describe
from tfexport.serve.service import Service

TSV = "text/tab-separated-values"
_FIELDS = 32  # of a form


class Dictionary(Fields):
    """The entries of a pair of languages."""

    source_lang: str
    target_lang: str
    entries: str = pydantic.Field(description="one a line: source, tab or comma, target")
    entries_format: Literal["tsv", "csv"] = "tsv"

    def pair(self, service: Service) -> Pair:
        """Its languages, which a model has.

        Raises:
            RequestError: naming what is wrong.
        """
        pair = pair_of(self.source_lang, self.target_lang)
        choose_by_languages(service.models, *pair)
        return pair

    def read(self) -> Entries:
        """Its entries.

        Raises:
            InputError: naming everything that is wrong with them.
        """
        if self.entries_format == "csv":
            found = parse_csv(self.entries)
            check_languages(found, self.source_lang, self.target_lang)
        else:
            found = parse_tsv(self.entries, alternatives=False)
        return {source: targets[0] for source, targets in found.entries.items()}


class CreateCall(Dictionary):
    """A request to store a glossary of one pair of languages."""

    name: str


_Dictionaries = Annotated[list[Dictionary], First()]


class CreateSeveralCall(Fields):
    """A request to store a glossary."""

    name: str
    dictionaries: _Dictionaries = pydantic.Field(min_length=1)


class ChangeCall(Fields):
    """A request to rename a glossary, or to add entries to its dictionaries."""

    name: str | None = None
    dictionaries: _Dictionaries = pydantic.Field([])

    @pydantic.model_validator(mode="after")
    def _check_any(self) -> "ChangeCall":
        if self.name is None and not self.dictionaries:
            raise ValueError("give a name, or dictionaries")
        return self


def routes(service: Service) -> APIRouter:
    """The paths of both versions."""
    router = APIRouter(tags=["DeepL"])
    _add_version_2(router, service)
    _add_version_3(router, service)
    _add_dictionaries(router, service)
    return router


def _add_version_2(router: APIRouter, service: Service) -> None:
    kept = service.glossaries

    @router.get("/v2/glossary-language-pairs", summary="List pairs of languages for glossaries.")
    async def pairs(request: Request) -> Response:
        found = await call_of(request.scope).aside(_pairs, service)
        listed = [{"source_lang": source, "target_lang": target} for source, target in found]
        return JSONResponse({"supported_languages": listed})

    @router.post(
        "/v2/glossaries",
        status_code=201,
        **describe(CreateCall, "Store a glossary of one pair of languages.", JSON, FORM),
    )
    async def create(request: Request) -> Response:
        call = call_of(request.scope)
        kind = check_media_type(call.headers, JSON, FORM)

        def work() -> GlossaryInfo:
            if kind == JSON:
                body = read_json(CreateCall, call.body)
            else:
                body = read_form(CreateCall, call.body, (), _FIELDS)
            return kept.create(body.name, {body.pair(service): body.read()})

        return JSONResponse(_single(await call.aside(work)), 201)

    @router.get("/v2/glossaries", summary="List the glossaries of one pair of languages.")
    async def list_all(request: Request) -> Response:
        found = await call_of(request.scope).aside(kept.listed)
        return JSONResponse({"glossaries": [_single(one) for one in found if len(one.sizes) == 1]})

    @router.get("/v2/glossaries/{glossary}", summary="Describe a glossary.")
    async def describe_one(request: Request, glossary: str) -> Response:
        return JSONResponse(_single(await call_of(request.scope).aside(kept.info, glossary)))

    @router.get("/v2/glossaries/{glossary}/entries", summary="The entries of a glossary, as TSV.")
    async def entries(request: Request, glossary: str) -> Response:
        call = call_of(request.scope)
        _check_accepts(call.headers.get(b"accept", b"").decode("latin-1"))

        def work() -> str:
            (pair,) = _only(kept.info(glossary)).sizes
            return _as_tsv(kept.entries(glossary, pair))

        return Response(await call.aside(work), media_type=TSV)

    @router.delete("/v2/glossaries/{glossary}", status_code=204, summary="Delete a glossary.")
    async def delete(request: Request, glossary: str) -> Response:
        await call_of(request.scope).aside(kept.delete, glossary)
        return Response(status_code=204)


def _add_version_3(router: APIRouter, service: Service) -> None:
    kept = service.glossaries

    @router.post(
        "/v3/glossaries", status_code=201, **describe(CreateSeveralCall, "Store a glossary.")
    )
    async def create(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)

        def work() -> GlossaryInfo:
            body = read_json(CreateSeveralCall, call.body)
            return kept.create(body.name, _dictionaries(body.dictionaries, service))

        return JSONResponse(_described(await call.aside(work)), 201)

    @router.get("/v3/glossaries", summary="List the glossaries.")
    async def list_all(request: Request) -> Response:
        found = await call_of(request.scope).aside(kept.listed)
        return JSONResponse({"glossaries": [_described(one) for one in found]})

    @router.get("/v3/glossaries/{glossary}", summary="Describe a glossary.")
    async def describe_one(request: Request, glossary: str) -> Response:
        return JSONResponse(_described(await call_of(request.scope).aside(kept.info, glossary)))

    @router.patch(
        "/v3/glossaries/{glossary}", **describe(ChangeCall, "Rename a glossary, or add entries.")
    )
    async def change(request: Request, glossary: str) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)

        def work() -> GlossaryInfo:
            body = read_json(ChangeCall, call.body)
            added = _dictionaries(body.dictionaries, service)

            def changed(before: StoredGlossary) -> StoredGlossary:
                return merged(before, added, body.name)

            return kept.change(glossary, changed)

        return JSONResponse(_described(await call.aside(work)))

    @router.delete("/v3/glossaries/{glossary}", status_code=204, summary="Delete a glossary.")
    async def delete(request: Request, glossary: str) -> Response:
        await call_of(request.scope).aside(kept.delete, glossary)
        return Response(status_code=204)


def _add_dictionaries(router: APIRouter, service: Service) -> None:
    kept = service.glossaries

    @router.get("/v3/glossaries/{glossary}/entries", summary="The entries of a dictionary.")
    async def entries(request: Request, glossary: str) -> Response:
        pair = _asked_pair(request)
        found = await call_of(request.scope).aside(lambda: _as_tsv(kept.entries(glossary, pair)))
        values = {**_languages(pair), "entries": found, "entries_format": "tsv"}
        return JSONResponse({"dictionaries": [values]})

    @router.put(
        "/v3/glossaries/{glossary}/dictionaries",
        **describe(Dictionary, "Replace or add a dictionary."),
    )
    async def replace_dictionary(request: Request, glossary: str) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)

        def work() -> dict[str, Any]:
            body = read_json(Dictionary, call.body)
            pair, made = body.pair(service), body.read()
            kept.change(glossary, lambda before: merged(before, {pair: made}, fresh=True))
            return {**_languages(pair), "entry_count": len(made)}

        return JSONResponse(await call.aside(work))

    @router.delete(
        "/v3/glossaries/{glossary}/dictionaries", status_code=204, summary="Delete a dictionary."
    )
    async def delete_dictionary(request: Request, glossary: str) -> Response:
        pair = _asked_pair(request)
        await call_of(request.scope).aside(
            kept.change, glossary, lambda before: without(before, pair)
        )
        return Response(status_code=204)


def _dictionaries(given: list[Dictionary], service: Service) -> dict[Pair, Entries]:
    found: dict[Pair, Entries] = {}
    for place, one in enumerate(given):
        pair = one.pair(service)
        if pair in found:
            raise wrong(f"dictionaries[{place}]: there is another one from {' to '.join(pair)}")
        found[pair] = one.read()
    return found


def _pairs(service: Service) -> list[Pair]:
    """The pairs of languages that models with known languages translate."""
    found: dict[Pair, None] = {}
    for model in service.models:
        sources, targets = (
            dict.fromkeys(Code.of(code).language for code in codes)
            for codes in (model.languages.sources, model.languages.targets)
        )
        found |= {(one, other): None for one in sources for other in targets if one != other}
    return list(found)


def _check_accepts(given: str) -> None:
    kinds = [part.partition(";")[0].strip().lower() for part in given.split(",")]
    if given.strip() and not {TSV, "text/*", "*/*"}.intersection(kinds):
        raise RequestError(415, f"Accept {given[:60]!r}: entries are {TSV}")


def _asked_pair(request: Request) -> Pair:
    """The languages in a path.

    Raises:
        RequestError: one of them is missing, or no code.
    """
    given = request.query_params
    problems = [
        f"{name}: is missing" for name in ("source_lang", "target_lang") if not given.get(name)
    ]
    if problems:
        raise wrong(problems)
    return pair_of(given["source_lang"], given["target_lang"])


def _only(info: GlossaryInfo) -> GlossaryInfo:
    """A glossary of one pair of languages, as version 2 has them."""
    if len(info.sizes) != 1:
        raise wrong(f"the glossary has {len(info.sizes)} dictionaries; /v3/glossaries has such")
    return info


def _single(info: GlossaryInfo) -> dict[str, Any]:
    ((pair, size),) = _only(info).sizes.items()
    return {
        "glossary_id": info.id, "name": info.name, "ready": True, **_languages(pair),
        "creation_time": info.created, "entry_count": size,
    }  # fmt: skip


def _described(info: GlossaryInfo) -> dict[str, Any]:
    listed = [{**_languages(pair), "entry_count": size} for pair, size in info.sizes.items()]
    return {
        "glossary_id": info.id, "name": info.name, "dictionaries": listed,
        "creation_time": info.created,
    }  # fmt: skip


def _languages(pair: Pair) -> dict[str, str]:
    return {"source_lang": pair[0], "target_lang": pair[1]}


def _as_tsv(entries: Mapping[str, str]) -> str:
    return write_tsv({source: (target,) for source, target in entries.items()})
