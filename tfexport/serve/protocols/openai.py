"""The protocol of OpenAI: transcription and translation of sound."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tfexport.errors import TfexportError, join_some
from tfexport.preprocessing import AUDIO
from tfexport.runtime.scheduler import SoundRequest, Submission
from tfexport.runtime.speech.subtitles import as_srt, as_text, as_vtt
from tfexport.runtime.speech.transcription import (
    FALLBACK,
    Segment,
    Transcription,
    TranscriptionOptions,
)
from tfexport.serve.bodies import JSON, Fields, check_media_type, problems_of, unsupported
from tfexport.serve.call import Call, call_of, seen
from tfexport.serve.failures import OPENAI, RequestError, as_failure, wrong
from tfexport.serve.files import FileRequest, read_files
from tfexport.serve.models import ServerModel, ServerModels, choose_taking
from tfexport.serve.multipart import MULTIPART, form_values, read_multipart
from tfexport.serve.openapi import describe
from tfexport.serve.protocols.own import (
    EVENT_HEADERS,
    EVENTS,
    HEARTBEAT,
    PING,
    openai_model,
    to_json,
)
from tfexport.serve.service import Service
from tfexport.serve.speech import prompt_ids, submit_sound, transcription

ALIAS = "whisper-1"  # OpenAI's own name, which many clients send
_TEXT = "text/plain; charset=utf-8"
_LISTS = (
    "timestamp_granularities", "include", "known_speaker_names", "known_speaker_references",
    "keywords", "languages",
)  # fmt: skip

_Nothing = Annotated[Any, unsupported()]
_OrNone = pydantic.BeforeValidator(lambda value: value or None)
_Text = Annotated[str | None, _OrNone]
_Shape = Literal["json", "text", "srt", "verbose_json", "vtt"]


class SoundCall(Fields):
    """The fields that both calls have."""

    file: bytes = pydantic.Field(description="WAV, FLAC, Ogg, MP3, or what else libsndfile reads")
    model: _Text = pydantic.Field(None, description="which, if several take sound")
    prompt: _Text = pydantic.Field(
        None, description="text before each window; its last tokens, if it is too long"
    )
    response_format: _Shape = "json"
    temperature: Annotated[float | None, _OrNone] = pydantic.Field(
        None, ge=0, le=1, description="0: the most probable tokens, and further temperatures "
        "where a window misses a threshold",
    )  # fmt: skip


class TranslationCall(SoundCall):
    """A request to translate into English."""


class TranscriptionCall(SoundCall):
    """A request to transcribe."""

    language: _Text = pydantic.Field(None, description="by default the model's, or detected")
    timestamp_granularities: list[Literal["segment", "word"]] | None = pydantic.Field(
        None, description="segment, the default, or word, or both; with verbose_json"
    )
    stream: bool = pydantic.Field(False, description="server-sent events, with json")
    include: _Nothing = None
    chunking_strategy: Annotated[Any, unsupported("auto")] = None
    known_speaker_names: _Nothing = None
    known_speaker_references: _Nothing = None
    keywords: _Nothing = None
    languages: _Nothing = None


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["OpenAI"])

    @router.post(
        "/v1/audio/transcriptions", **describe(TranscriptionCall, "Transcribe sound.", MULTIPART)
    )
    async def transcribe(request: Request) -> Response:
        call = call_of(request.scope)
        body = await call.in_thread(_read, TranscriptionCall, call, service)
        return await _answer(service, body, "transcribe", call)

    @router.post(
        "/v1/audio/translations",
        **describe(TranslationCall, "Transcribe sound in English.", MULTIPART),
    )
    async def translate(request: Request) -> Response:
        call = call_of(request.scope)
        body = await call.in_thread(_read, TranslationCall, call, service)
        return await _answer(service, body, "translate", call)

    @router.get("/v1/models/{name}", summary="A model, as OpenAI's clients read it.")
    async def model(name: str) -> Response:
        found = _aliased(service.models, name) or service.models.get(name)
        return JSONResponse({**openai_model(found), "id": name})

    return router


def _read(kind: type[Any], call: Call, service: Service) -> Any:
    """Read the form of a call.

    Raises:
        RequestError: naming everything that is wrong with it.
    """
    check_media_type(call.headers, MULTIPART)
    found = read_multipart(call.headers[b"content-type"], call.body)
    values = form_values(found, ("file",), _LISTS)
    try:
        body = kind.model_validate(values)
    except pydantic.ValidationError as error:
        raise wrong(list(problems_of(kind, error))) from None
    settings = service.settings
    problems = []
    if len(body.file) > settings.max_file_bytes:
        text = f"{len(body.file)} bytes are more than the {settings.max_file_bytes} of a request"
        problems.append(f"file: {text}")
    if body.prompt is not None and len(body.prompt) > settings.max_characters:
        text = f"{len(body.prompt)} characters are more than {settings.max_characters}"
        problems.append(f"prompt: {text}")
    if problems:
        raise RequestError(413, problems)
    return body


async def _answer(
    service: Service, body: TranscriptionCall | TranslationCall, task: str, call: Call
) -> Response:
    model = _choose(service.models, body.model)
    model.serve(call)
    call.texts = 1
    if model.engine.manifest.speech is None:
        return await _answer_without_times(service, model, body, task, call)
    _check(body)
    streamed = isinstance(body, TranscriptionCall) and body.stream
    options = await call.in_thread(_options, model, body, task)
    file, body.file = body.file, b""  # which is not kept while it is decoded
    if streamed:
        return await _stream(model, file, options, call)
    sound, submission = await submit_sound(model, file, options, call)
    del file
    found = await transcription(sound, submission, call)
    return await call.in_thread(_response, found, body, task)


def _choose(models: ServerModels, name: str | None) -> ServerModel:
    """A model of sound, by its name.

    Raises:
        RequestError: there is none.
    """
    aliased = _aliased(models, name)
    if aliased is not None:
        return aliased
    alias = name == ALIAS and ALIAS not in models.names
    model = choose_taking(models, None if alias else name, AUDIO)
    if model is not None:
        return model
    able = models.taking(AUDIO)
    raise wrong(f"model: choose one of {join_some([one.name for one in able])}")


def _aliased(models: ServerModels, name: str | None) -> ServerModel | None:
    """The model that OpenAI's own name stands for: the first of sound, if none has that name."""
    if name != ALIAS or ALIAS in models.names:
        return None
    return next(iter(models.taking(AUDIO)), None)


def _check(body: TranscriptionCall | TranslationCall) -> None:
    """Refuse what contradicts the form of the answer.

    Raises:
        RequestError: naming it.
    """
    if not isinstance(body, TranscriptionCall):
        return
    problems, shape = [], body.response_format
    if body.timestamp_granularities and shape != "verbose_json":
        problems.append("timestamp_granularities: need response_format verbose_json")
    if body.stream and shape not in ("json", "text"):
        problems.append(f"stream: not with response_format {shape}, but with json")
    if problems:
        raise wrong(problems)


def _options(
    model: ServerModel, body: TranscriptionCall | TranslationCall, task: str
) -> TranscriptionOptions:
    """How to transcribe: doubtful windows are decoded again unless a temperature is given."""
    given: Mapping[str, Any] = {"temperature": body.temperature} if body.temperature else FALLBACK
    language = body.language if isinstance(body, TranscriptionCall) else None
    prompt = None if body.prompt is None else prompt_ids(model.engine, body.prompt)
    words = "word" in _granularities(body)
    return TranscriptionOptions(
        language=language, task=task, prompt=prompt, word_times=words, **given
    )


def _granularities(body: TranscriptionCall | TranslationCall) -> Sequence[str]:
    """The times that the answer has: of segments, of words or of both."""
    given = body.timestamp_granularities if isinstance(body, TranscriptionCall) else None
    return given or ("segment",)


def _response(
    found: Transcription, body: TranscriptionCall | TranslationCall, task: str
) -> Response:
    shape = body.response_format
    if shape == "text":
        return Response(as_text(found), media_type=_TEXT)
    if shape == "srt":
        return Response(as_srt(found), media_type=_TEXT)
    if shape == "vtt":
        return Response(as_vtt(found), media_type="text/vtt; charset=utf-8")
    values = _values(found) if shape == "json" else _verbose(found, task, _granularities(body))
    return Response(to_json(values), media_type=JSON)


def _values(found: Transcription) -> dict[str, Any]:
    usage = {"type": "duration", "seconds": math.ceil(found.duration)}
    return {"text": found.text.strip(), "usage": usage}


def _verbose(found: Transcription, task: str, times: Sequence[str]) -> dict[str, Any]:
    language = "english" if task == "translate" else found.language_name
    values = {"task": task, "language": language, "duration": found.duration, **_values(found)}
    if "segment" in times:
        values["segments"] = [_segment(number, it) for number, it in enumerate(found.segments)]
    if "word" in times:
        values["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": word.end}
            for word in found.words
        ]
    return values


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    values = segment.to_dict()
    values.pop("words", None)  # which are listed beside the segments
    if not math.isfinite(segment.avg_logprob):  # of a window without tokens
        values["avg_logprob"] = None
    return {"id": number, **values}


async def _answer_without_times(
    service: Service,
    model: ServerModel,
    body: TranscriptionCall | TranslationCall,
    task: str,
    call: Call,
) -> Response:
    """The answer of a model that is not decoded as Whisper is: a text without times."""
    problems = []
    if task == "translate":
        problems.append(f"model: {model.name!r} transcribes, and does not translate")
    if body.response_format not in ("json", "text"):
        problems.append(f"response_format: {model.name!r} gives text without times: json or text")
    for name in ("prompt", "language", "timestamp_granularities", "stream"):
        if getattr(body, name, None):
            problems.append(f"{name}: not for {model.name!r}, which is not decoded as Whisper is")
    if problems:
        raise wrong(problems)
    options = {"sampling": True, "temperature": body.temperature} if body.temperature else {}
    file, body.file = body.file, b""
    asked = FileRequest(AUDIO, [file], options, field="file")
    (found,) = await read_files(service.settings, model, asked, call)
    text = found.texts[0].strip()
    if body.response_format == "text":
        return Response(f"{text}\n", media_type=_TEXT)
    return Response(to_json({"text": text}), media_type=JSON)


async def _stream(
    model: ServerModel, file: bytes, options: TranscriptionOptions, call: Call
) -> Response:
    """Start to transcribe; errors of the request are raised before the first event."""
    loop, windows = asyncio.get_running_loop(), asyncio.Queue[Sequence[Segment]]()

    def on_segments(segments: Sequence[Segment]) -> None:
        loop.call_soon_threadsafe(windows.put_nowait, segments)

    sound, submission = await submit_sound(model, file, options, call, on_segments)
    events = _events(sound, submission, windows, call)
    return StreamingResponse(events, media_type=EVENTS, headers=EVENT_HEADERS)


async def _events(
    sound: SoundRequest,
    submission: Submission,
    windows: "asyncio.Queue[Sequence[Segment]]",
    call: Call,
) -> AsyncIterator[str]:
    found = asyncio.ensure_future(transcription(sound, submission, call))
    found.add_done_callback(seen)
    waiting: asyncio.Task[Sequence[Segment]] | None = None
    first = True
    try:
        while not (found.done() and windows.empty()):
            waiting = asyncio.ensure_future(windows.get())
            await asyncio.wait(
                {waiting, found}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
            )
            if not waiting.done():
                waiting.cancel()
                if not found.done():
                    yield PING
                continue
            delta = "".join(segment.text for segment in waiting.result())
            delta = delta.lstrip() if first else delta
            if delta:
                first = False
                yield _event({"type": "transcript.text.delta", "delta": delta})
        text = found.result().text.strip()
        yield _event({"type": "transcript.text.done", "text": text})
    except (RequestError, TfexportError) as error:
        failure = error if isinstance(error, RequestError) else as_failure(error)
        if failure is None:
            raise
        call.problem = failure.logged
        yield _event(dict(OPENAI.body(failure)))
    finally:
        found.cancel()
        if waiting is not None:
            waiting.cancel()


def _event(values: dict[str, Any]) -> str:
    return f"data: {json.dumps(values)}\n\n"
