"""The server's own protocol: JSON, and server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import pydantic
import pydantic_core
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tfexport.errors import TfexportError
from tfexport.markup.document import Format, Markup
from tfexport.markup.placeholders import Kind as PlaceholderKind
from tfexport.markup.placeholders import Placeholders
from tfexport.preprocessing import IMAGE
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Submission
from tfexport.runtime.streaming import TextStream
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.language_codes import UNKNOWN
from tfexport.runtime.text.sentences import Split
from tfexport.serve.bodies import (
    JSON,
    MOST_TERMS,
    First,
    StrictFields,
    Texts,
    check_amount,
    check_media_type,
    problems_of,
)
from tfexport.serve.call import Call, call_of, seen
from tfexport.serve.failures import RequestError, as_failure, spelled, wrong
from tfexport.serve.files import FileRequest, read_files
from tfexport.serve.metrics import Metrics
from tfexport.serve.models import TEXT, ModelChoice, ServerModel, choose_named
from tfexport.serve.openapi import describe
from tfexport.serve.rows import TextRequest, TextRows, TextTranslation, assemble
from tfexport.serve.scoring import prepare_pairs
from tfexport.serve.service import Service
from tfexport.serve.texts import check_size, outcome, submit_texts, translate, unmet_values

_MORE = ("token_scores", "source_tokens", "attention", "alignment")  # if requested


def answer(model: str, translations: Sequence[TextTranslation], call: Call) -> bytes:
    """The JSON of translations.

    Raises:
        RequestError: the deadline has passed, or the client has gone.
    """
    made = list[bytes]()
    for one in translations:
        call.check()
        made.append(to_json(translation(one, call)))
    return b'{"model":%b,"translations":[%b]}' % (to_json(model), b",".join(made))


def to_json(value: Any) -> bytes:
    """JSON, in a tenth of the time of Python's own encoder."""
    return pydantic_core.to_json(value)


def translation(found: TextTranslation, call: Call) -> dict[str, Any]:
    """A text's translation, with all hypotheses if there are several.

    Attention of a single sentence is next to its tokens. Attention of several sentences is listed
    under ``sentences``.

    Raises:
        RequestError: the deadline has passed, or the client has gone.
    """
    made = list[dict[str, Any]]()
    for place in range(len(found.texts)):
        call.check()
        made.append(_made(found, place))
    values = {**made[0], "unknown_tokens": found.unknown}
    if found.unmet:
        values["unmet_terms"] = unmet_values(found)
    if len(made) > 1:
        values["hypotheses"] = made
    attends = any(one.hypotheses[0].attention is not None for one in found.sentences)
    if len(found.sentences) > 1 and attends:
        values["sentences"] = [
            _kept(sentence.to_dict(hypotheses=False)) for sentence in found.sentences
        ]
    return values


def scored(found: Hypothesis) -> dict[str, Any]:
    """The score of a target."""
    values = found.to_dict()
    del values["finished"]
    return values


def _made(found: TextTranslation, place: int) -> dict[str, Any]:
    if len(found.sentences) == 1:
        (sentence,) = found.sentences
        one = replace(  # of this hypothesis only
            sentence, text=sentence.texts[place], texts=sentence.texts[place : place + 1],
            hypotheses=sentence.hypotheses[place : place + 1],
        )  # fmt: skip
        return {**_kept(one.to_dict()), "text": found.texts[place]}
    return _kept({"text": found.texts[place], **found.hypotheses[place].to_dict()})


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    names = ("text", "score", "tokens", "finished", *_MORE)
    return {name: values[name] for name in names if name in values}


class LiveText:
    """The translation of a text so far, with its sentences in order."""

    def __init__(self, model: ServerModel, rows: TextRows) -> None:
        """Start without text.

        Args:
            model: the model that decodes.
            rows: the rows of one text.
        """
        (self._parts,) = rows.split_texts
        self._options, texts = rows.options, model.engine.texts
        self._streams, self._waiting = list[TextStream](), list[list[str]]()
        for request, sentence in zip(rows.requests, self._parts.sentences, strict=True):
            stream = TextStream(texts.decode, texts.target.whole_words)
            self._streams.append(stream)
            prefix = () if request is None else request.prefix
            begun = [stream.add(token) for token in prefix]
            self._waiting.append([sentence] if request is None else begun)
        self._kept = [request is None for request in rows.requests]
        self._ended = [*self._kept]
        self._place, self._begun = 0, False  # of the current sentence
        self._shown = ["", ""]  # the sentence before and the current one

    def add(self, step: Step) -> Iterator[str]:
        """Take a token; return the text that it adds."""
        if self._options.return_end_token or step.token not in self._options.end_tokens:
            self._waiting[step.row].append(self._streams[step.row].add(step.token))
        if step.last:
            self._end(step.row)
        yield from self._show()

    def end(self) -> Iterator[str]:
        """The text that is not shown yet, with the white space at the end."""
        for row in range(self._place, len(self._streams)):
            if not self._ended[row]:
                self._end(row)
        yield from self._show()
        if self._parts.gaps[-1]:
            yield self._parts.gaps[-1]

    def _end(self, row: int) -> None:
        self._waiting[row].append(self._streams[row].end())
        self._ended[row] = True

    def _show(self) -> Iterator[str]:
        while self._place < len(self._streams):
            text = "".join(self._waiting[self._place])
            self._waiting[self._place].clear()
            gap = ""
            if not self._begun and (text or self._ended[self._place]):
                gap, self._begun = self._gap(text), True
            self._shown[1] += text
            if gap or text:
                yield gap + text
            if not self._ended[self._place]:
                return
            self._place, self._begun, self._shown = self._place + 1, False, [self._shown[1], ""]

    def _gap(self, text: str) -> str:
        """The white space before the current sentence, which starts with this text."""
        place = self._place
        kept = any(self._kept[max(place - 1, 0) : place + 1])
        return self._parts.gap(place, self._shown[0], text, kept)


EVENTS = "text/event-stream"
HEARTBEAT = 15.0  # seconds of silence after which a comment keeps proxies connected
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_AT_ONCE = 64  # tokens of an event
PING = ": ping\n\n"


async def stream(
    metrics: Metrics, choice: ModelChoice, request: TextRequest, call: Call
) -> Response:
    """Start to translate a text; errors of the request are raised before the first event."""
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[Step]()

    def on_step(step: Step) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, step)

    rows, submission = await submit_texts(choice, request, call, on_step)
    metrics.characters += call.characters
    events = _events(choice.model, rows, submission, steps, call)
    return StreamingResponse(events, media_type=EVENTS, headers=EVENT_HEADERS)


async def _events(
    model: ServerModel,
    rows: TextRows,
    submission: Submission,
    steps: "asyncio.Queue[Step]",
    call: Call,
) -> AsyncIterator[str]:
    token = None
    found = asyncio.ensure_future(outcome(submission, call))
    found.add_done_callback(seen)
    try:
        live = await call.in_thread(LiveText, model, rows)
        while not found.done():
            token = asyncio.ensure_future(steps.get())
            waiting = {token, found}
            await asyncio.wait(waiting, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            if token.done():
                for piece in _shown(live, token.result(), steps):
                    yield _event({"text": piece})
                continue
            token.cancel()
            if not found.done():
                yield PING
        hypotheses = found.result()
        while not steps.empty():
            for piece in _shown(live, steps.get_nowait(), steps):
                yield _event({"text": piece})
        for piece in live.end():
            yield _event({"text": piece})
        last = await call.in_thread(_whole, model, rows, hypotheses, call)
        yield f'data: {{"done": true, "translation": {last}}}\n\n'
    except (RequestError, TfexportError) as error:
        failure = error if isinstance(error, RequestError) else as_failure(error)
        if failure is None:
            raise
        call.problem = failure.logged
        yield _event({"error": failure.message, "status": failure.status})
    finally:
        found.cancel()
        if token is not None:
            token.cancel()


def _shown(live: LiveText, step: Step, steps: "asyncio.Queue[Step]") -> Iterator[str]:
    """The event of a token; later tokens join it if the client is too slow."""
    pieces = [*live.add(step)]
    if steps.qsize() >= _AT_ONCE:
        for _ in range(_AT_ONCE):
            pieces += live.add(steps.get_nowait())
    text = "".join(pieces)
    if text:
        yield text


def _whole(
    model: ServerModel, rows: TextRows, found: Sequence[list[Hypothesis]], call: Call
) -> str:
    (made,) = assemble(model, rows, found)
    return to_json(translation(made, call)).decode()


def _event(values: dict[str, Any]) -> str:
    return f"data: {json.dumps(values)}\n\n"


Kind = TypeVar("Kind", bound=StrictFields)
Prefixes = Sequence[str | list[int] | None]


class CallBody(StrictFields):
    """The fields that both calls have."""

    model: str | None = pydantic.Field(None, description="which, if there are several")
    options: dict[str, Any] = pydantic.Field(
        {}, description="decoding options by name, source_language and target_language"
    )


_Terms = Annotated[list[tuple[str, str | list[str]]], First()]


class TranslateCall(CallBody):
    """A request to translate."""

    texts: Texts = pydantic.Field(description="of any number of sentences and lines")
    split_sentences: Split | None = pydantic.Field(
        None, description="texts into sentences; by default as the model reads texts"
    )
    divide: bool = pydantic.Field(
        False, description="sentences that are too long for the model, instead of refusing them"
    )
    stream: bool = pydantic.Field(False, description="one text, as server-sent events")
    format: Format = pydantic.Field("text", description="markup that texts are written in")
    placeholders: list[PlaceholderKind] | None = pydantic.Field(
        None, description="kinds that stay as they are; by default the usual ones, in markup"
    )

    terms: _Terms = pydantic.Field(
        [],
        max_length=MOST_TERMS,
        description="pairs of a source phrase and its target phrase, or several of which one is "
        "needed: where the source has the one, the translation has the other",
    )

    def markup(self) -> Markup:
        """The markup and the placeholders of the texts."""
        kept = None if self.placeholders is None else Placeholders(tuple(self.placeholders))
        return Markup(self.format, kept)


class ImagesCall(CallBody):
    """A request to read pictures."""

    images: Texts = pydantic.Field(description="files of pictures in base64, or data URLs of them")


class ScoreCall(CallBody):
    """A request to score targets."""

    sources: Texts
    targets: Texts = pydantic.Field(description="one for each source")


class _Options:
    """The options of a call: decoding options, and the others."""

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


def _check_markup(body: TranslateCall, options: _Options) -> None:
    """Refuse what texts with markup or placeholders cannot have."""
    problems = []
    if body.stream:
        problems.append("stream: texts with markup or placeholders are not streamed")
    if options.prefixes is not None:
        problems.append("options.target_prefix: not for texts with markup or placeholders")
    if problems:
        raise wrong(problems)


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["tfexport"])

    @router.post("/v1/translate", **describe(TranslateCall, "Translate texts."))
    async def translate_texts(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)
        body = await call.in_thread(_read_texts_or_images, call.body, service)
        if isinstance(body, ImagesCall):
            return await _images(service, body, call)
        if body.stream and len(body.texts) != 1:
            raise wrong(f"stream: one text is streamed at a time, not {len(body.texts)}")
        if body.stream and body.terms:
            raise wrong("stream: texts with terms are not streamed")
        options = _Options(body.options, len(body.texts))
        markup = body.markup()
        if markup:
            _check_markup(body, options)
        check_size(service.settings, call, body.texts, prefixes=options.counted)
        choice = _choose(service, body, options)
        choice.model.serve(call)
        text_request = TextRequest(
            body.texts, options.decoding, options.prefixes, body.split_sentences, body.divide,
            stream=body.stream, markup=markup,
            terms=await call.aside(Terms.of, body.terms) if body.terms else None,
        )  # fmt: skip
        if body.stream:
            return await stream(service.metrics, choice, text_request, call)
        found = await translate(service.metrics, choice, text_request, call)
        body_of = await call.in_thread(answer, choice.model.name, found, call)
        return Response(body_of, media_type=JSON)

    @router.post("/v1/score", **describe(ScoreCall, "Score given translations."))
    async def score(request: Request) -> Response:
        call = call_of(request.scope)
        check_media_type(call.headers, JSON)
        body = await call.in_thread(_read, ScoreCall, call.body, service)
        if len(body.sources) != len(body.targets):
            raise wrong(f"there are {len(body.sources)} sources and {len(body.targets)} targets")
        check_size(service.settings, call, body.sources, body.targets)
        options = _Options(body.options, None)
        choice = _choose(service, body, options)
        model = choice.model
        model.serve(call)
        pairs, resolved = await call.in_thread(
            prepare_pairs, model, body.sources, body.targets, options.decoding, choice.language_pair
        )
        found = await service.scoring.score(model, pairs, resolved, call)
        scores = await call.in_thread(lambda: to_json([scored(one) for one in found]))
        return Response(
            b'{"model":%b,"scores":%b}' % (to_json(model.name), scores), media_type=JSON
        )

    @router.get("/v1/models", summary="List the models.")
    async def list_models() -> Response:
        own = [_listed(model) for model in service.models]
        # As OpenAI's clients read it, too.
        data = [openai_model(model) for model in service.models]
        return JSONResponse({"object": "list", "data": data, "models": own})

    return router


async def _images(service: Service, body: ImagesCall, call: Call) -> Response:
    options = _Options(body.options, len(body.images))
    model = _choose(service, body, options, IMAGE).model
    model.serve(call)
    asked = FileRequest(IMAGE, body.images, options.decoding, options.prefixes)
    found = await read_files(service.settings, model, asked, call)
    body_of = await call.in_thread(answer, model.name, found, call)
    return Response(body_of, media_type=JSON)


def _read_texts_or_images(body: bytes, service: Service) -> "TranslateCall | ImagesCall":
    given = check_amount(body)
    if isinstance(given, dict) and "images" in given:
        return _read(ImagesCall, body, service)
    return _read(TranslateCall, body, service)


def _choose(service: Service, body: CallBody, options: _Options, takes: str = TEXT) -> ModelChoice:
    if options.problems:
        raise wrong(options.problems)
    return choose_named(service.models, body.model, options.source, options.target, takes)


def _read(kind: type[Kind], body: bytes, service: Service) -> Kind:
    """Read a body; problems of fields and decoding options are reported together."""
    given = check_amount(body)
    try:
        return kind.model_validate_json(body)
    except pydantic.ValidationError as error:
        problems = list(problems_of(kind, error))
    options = given.get("options") if isinstance(given, dict) else None
    if isinstance(options, dict):
        problems += _problems_of_options(options, next(iter(service.models)))
    raise wrong(problems)


def _problems_of_options(given: Mapping[str, Any], model: ServerModel) -> list[str]:
    options = _Options(given, None)
    options.decoding.pop("target_prefix", None)
    try:
        language_pair = model.languages.language_pair(options.source, options.target)
        model.engine.resolver.resolve(options.decoding, language_pair=language_pair)
    except TfexportError as error:
        return [*options.problems, spelled(error)]
    return options.problems


def _listed(model: ServerModel) -> dict[str, Any]:
    scheduler, languages = model.scheduler, model.languages
    speech = _speech(model)
    heard = [] if speech is None else speech["languages"]
    return {
        "name": model.name,
        "version": model.version,
        "languages": {
            "source": list(languages.sources) or heard or [UNKNOWN],
            "target": list(languages.targets) or heard or [UNKNOWN],
        },
        "split_sentences": model.split,
        "input": model.engine.manifest.media or ("text" if model.engine.gives_text else "ids"),
        "engine": model.engine.model.engine,
        "batching": "continuous" if scheduler.continuous else "dynamic",
        **({"reason": scheduler.reason} if scheduler.reason else {}),
        **({} if speech is None else {"speech": speech}),
    }


def openai_model(model: ServerModel) -> dict[str, Any]:
    """A model as OpenAI's clients read it."""
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "tfexport"}


def _speech(model: ServerModel) -> dict[str, Any] | None:
    """The languages and tasks of a model that transcribes; None of others."""
    speech = model.engine.manifest.speech
    if speech is None:
        return None
    return {
        "languages": sorted(speech.languages) or ["en"],
        "tasks": sorted(speech.tasks) or ["transcribe"],
        "detects": speech.multilingual,
    }
