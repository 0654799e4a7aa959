"""``POST /v1/pieces``: the text of each token of a source and of its translation."""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tfexport.errors import InputError
from tfexport.runtime.text.sentences import Split
from tfexport.serve.bodies import JSON, First, StrictFields, check_media_type, read_json
from tfexport.serve.call import call_of
from tfexport.serve.failures import spelled, wrong
from tfexport.serve.models import ModelChoice, choose_named
from tfexport.serve.openapi import describe
from tfexport.serve.rows import TextRequest, prepare
from tfexport.serve.service import Service
from tfexport.serve.texts import check_size

UNDECIDED = "\ufffd"  # from bytes that do not make a character yet
WINDOW = 16  # tokens before one that affect its text


_Rows = Annotated[list[Annotated[list[int], First()]], First()]


class PiecesCall(StrictFields):
    """A request for the pieces of a text and of its translation."""

    model: str | None = pydantic.Field(None, description="which, if there are several")
    text: str = pydantic.Field(description="that was translated")
    tokens: _Rows = pydantic.Field(description="of its translation, a row a sentence")
    source_language: str | None = None
    target_language: str | None = None
    split_sentences: Split | None = pydantic.Field(None, description="as for the translation")
    divide: bool = pydantic.Field(False, description="as for the translation")


def routes(service: Service) -> APIRouter:
    """The path of the protocol."""
    router = APIRouter(tags=["tfexport"])

    @router.post("/v1/pieces", **describe(PiecesCall, "Give the texts of tokens."))
    async def give_pieces(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)
        body = await call.in_thread(read_json, PiecesCall, call.body)
        tokens = [token for row in body.tokens for token in row]
        check_size(service.settings, call, [body.text], [tokens])
        choice = choose_named(
            service.models, body.model, body.source_language, body.target_language
        )
        choice.model.serve(call)
        sentences = await call.in_thread(_sentences, choice, body)
        return JSONResponse({"model": choice.model.name, "sentences": sentences})

    return router


def _sentences(choice: ModelChoice, body: PiecesCall) -> list[dict[str, Any]]:
    request = TextRequest([body.text], split=body.split_sentences, divide=body.divide)
    rows = prepare(choice, request)
    ((parts,), texts) = rows.split_texts, choice.model.engine.texts
    if len(body.tokens) != len(parts.sentences):
        raise wrong(
            f"tokens: {len(body.tokens)} rows for the {len(parts.sentences)} sentences of text"
        )
    before, after = texts.num_special_tokens(rows.options.framing)
    found = []
    for place, (sentence, tokens) in enumerate(zip(parts.sentences, body.tokens, strict=True)):
        try:
            texts.encode_target(tokens)
        except InputError as error:
            raise wrong(f"tokens[{place}]: {spelled(error)}") from None
        surfaces = texts.surfaces(sentence)
        found.append(
            {
                "source": sentence,
                "source_pieces": [*[""] * before, *surfaces, *[""] * after],
                "pieces": [*_pieces(texts.decode, tokens)],
            }
        )
    return found


def _pieces(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> Iterator[str]:
    for place in range(len(tokens)):
        window = tokens[max(0, place - WINDOW) : place + 1]
        before = decode(window[:-1]).rstrip(UNDECIDED)
        text = decode(window).rstrip(UNDECIDED)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))
        yield text[len([*same]) :]
