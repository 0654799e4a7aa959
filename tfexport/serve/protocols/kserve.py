"""KServe's open inference protocol, version 2, with its binary extension."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray
from pydantic_core import to_json

from tfexport import __version__
from tfexport.preprocessing import IMAGE
from tfexport.runtime.engine import acts_on_text, requests_of
from tfexport.runtime.text.codec import LanguagePair
from tfexport.runtime.text.sentences import SPLITS
from tfexport.serve.bodies import JSON, StrictFields, check_media_type, read_json
from tfexport.serve.call import Call, call_of
from tfexport.serve.failures import RequestError, wrong
from tfexport.serve.files import FileRequest, read_files
from tfexport.serve.models import TEXT as _TEXTS
from tfexport.serve.models import ServerModel, choose_named, choose_taking
from tfexport.serve.openapi import add_probe, describe
from tfexport.serve.rows import TextRequest, TextTranslation
from tfexport.serve.service import Service
from tfexport.serve.settings import Settings
from tfexport.serve.texts import check_size, cut_headers, outcome, translate

BYTES, INT64 = "BYTES", "INT64"
_MOST_ELEMENTS = 1 << 24
_LENGTH = struct.Struct("<I")


# A tensor of the protocol: of integers, or of objects, which are texts, or bytes of files in binary
# form.
Tensor = NDArray[Any]


def read_tensor(
    name: str, datatype: str, shape: Sequence[int], data: Any, raw: bytes | None
) -> Tensor:
    """Check a tensor of a request.

    Args:
        name: the name of the tensor.
        datatype: the datatype of the model, which the request's is known to equal.
        shape: as given.
        data: the data of JSON, nested or flat; None if there is ``raw``.
        raw: the bytes of the binary extension.

    Raises:
        RequestError: naming what is wrong with it.
    """
    # Each axis is checked, too: any number of rows of length 0 has no elements.
    if not all(0 <= size <= _MOST_ELEMENTS for size in shape):
        raise wrong(f"{name}: {shown(shape)} is not a shape of a batch")
    count = math.prod(shape)
    if count > _MOST_ELEMENTS or (not count and shape[0]):
        raise wrong(f"{name}: {shown(shape)} is not a shape of a batch")
    values: Sequence[Any] | NDArray[np.int64]
    if raw is not None and name == IMAGE:
        values = _parts(name, raw)
    elif raw is not None:
        values = _strings(name, raw) if datatype == BYTES else _integers(name, raw)
    else:
        flat = _flat(name, data)
        values = _as_strings(name, flat) if datatype == BYTES else _as_integers(name, flat)
    if len(values) != count:
        raise wrong(f"{name}: {shown(shape)} has {count} elements, the data {len(values)}")
    return np.array(values, object if datatype == BYTES else np.int64).reshape(shape)


def shown(shape: Sequence[int]) -> str:
    """A shape for a message, cut if it is long."""
    return f"shape [{', '.join(str(size)[:20] for size in shape[:8])}]"


def pack(tensor: Tensor) -> bytes:
    """The binary form of a tensor."""
    if tensor.dtype == object:
        encoded = [text.encode() for text in tensor.flat]
        return b"".join(_LENGTH.pack(len(text)) + text for text in encoded)
    return tensor.astype("<i8").tobytes()


def described(name: str, tensor: Tensor, binary: bytes | None) -> dict[str, Any]:
    """A tensor in the JSON of a response.

    Args:
        name: the name of the tensor.
        tensor: the tensor to describe.
        binary: its binary form, which follows the JSON; None to put the data into it.
    """
    values: dict[str, Any] = {
        "name": name, "shape": list(tensor.shape),
        "datatype": BYTES if tensor.dtype == object else INT64,
    }  # fmt: skip
    if binary is not None:
        return {**values, "parameters": {"binary_data_size": len(binary)}}
    return {**values, "data": tensor.reshape(-1).tolist()}


def split_body(body: bytes, length: bytes) -> tuple[bytes, bytes]:
    """The JSON of a request, and the binary tensors after it.

    Args:
        body: the body of the request.
        length: the length of the JSON, from the header; empty if there is no such header.

    Raises:
        RequestError: the header does not fit.
    """
    if not length:
        return body, b""
    if not length.isdigit() or int(length[:18]) > len(body):
        raise wrong("Inference-Header-Content-Length: is not the length of a part of the body")
    size = int(length[:18])
    return body[:size], body[size:]


def take_raw(raw: bytes, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Cut binary data into tensors.

    Args:
        raw: all binary data of a request.
        sizes: the sizes of the tensors that are binary, in their order.

    Raises:
        RequestError: the sizes are not those of the data.
    """
    if any(size < 0 for size in sizes.values()) or sum(sizes.values()) != len(raw):
        raise wrong(
            f"binary_data_size: the sizes of all tensors are {sum(sizes.values())} bytes together, "
            f"and {len(raw)} follow the JSON"
        )
    found, end = {}, 0
    for name, size in sizes.items():
        found[name], end = raw[end : end + size], end + size
    return found


def _strings(name: str, raw: bytes) -> list[str]:
    texts = list[str]()
    for part in _parts(name, raw):
        try:
            texts.append(part.decode())
        except UnicodeDecodeError:
            raise wrong(f"{name}: text {len(texts)} is not UTF-8") from None
    return texts


def _parts(name: str, raw: bytes) -> list[bytes]:
    """The elements of BYTES in binary form, each behind its length."""
    parts, place = list[bytes](), 0
    noun = "picture" if name == IMAGE else "text"
    while place < len(raw):
        begin = place + _LENGTH.size
        if begin > len(raw):
            raise wrong(f"{name}: ends within the length of {noun} {len(parts)}")
        end = begin + _LENGTH.unpack_from(raw, place)[0]
        if end > len(raw):
            raise wrong(f"{name}: ends within {noun} {len(parts)}")
        parts.append(raw[begin:end])
        place = end
    return parts


def _integers(name: str, raw: bytes) -> NDArray[np.int64]:
    if len(raw) % 8:
        raise wrong(f"{name}: {len(raw)} bytes are not a multiple of 8, the size of INT64")
    return np.frombuffer(raw, "<i8").astype(np.int64)


def _flat(name: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise wrong(f"{name}: has no data")
    if list not in set(map(type, data)):
        return data
    flat = list[Any]()
    waiting = [iter(data)]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, list):
                waiting.append(iter(value))
                break
            flat.append(value)
        else:
            waiting.pop()
    return flat


def _as_strings(name: str, flat: list[Any]) -> list[str]:
    if not set(map(type, flat)) <= {str}:
        raise wrong(f"{name}: BYTES are texts in JSON, and not all of the data is text")
    return flat


def _as_integers(name: str, flat: list[Any]) -> NDArray[np.int64]:
    if not set(map(type, flat)) <= {int}:
        raise wrong(f"{name}: not all of the data are integers")
    try:
        return np.array(flat, np.int64)
    except OverflowError:
        raise wrong(f"{name}: holds a number that is not INT64") from None


async def generate(
    settings: Settings,
    model: ServerModel,
    rows: Sequence[Sequence[int]],
    given: Mapping[str, Any],
    call: Call,
) -> NDArray[np.int64]:
    """Decode rows of ids.

    Args:
        settings: the settings of the server; an id counts as a character.
        model: the model, which is in use.
        rows: ids as the encoder takes them.
        given: decoding options by name, and ``target_language``.
        call: whose rows they are.

    Returns:
        The best hypotheses, a row each: no start token, the end token included, then padding.
    """
    check_size(settings, call, rows)
    options = {"return_end_token": True, **given}
    language_pair = LanguagePair(target=options.pop("target_language", None), as_ids=True)
    engine = model.engine
    extra = acts_on_text(options, "generate")
    resolved, prefixes = model.resolver.resolve(options, [None] * len(rows), extra, language_pair)
    resolved = model.within_limits(resolved, given)
    requests = requests_of(engine, rows, prefixes, resolved, as_ids=True)
    model.check_lengths(requests)
    submission = model.scheduler.submit(requests, resolved, deadline=call.deadline)
    call.exits.callback(submission.cancel)
    best = [hypotheses[0] for hypotheses in await outcome(submission, call)]
    model.observer.cut(sum(not one.finished for one in best))
    found = [one.tokens for one in best]
    longest = max(map(len, found), default=0)
    pad = engine.manifest.special_ids.pad
    padded = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in found]
    return np.array(padded, np.int64).reshape(len(found), longest)


TEXT, TRANSLATION = "text", "translation"
IDS, MASK, SEQUENCES = "input_ids", "attention_mask", "sequences"
OCTETS = "application/octet-stream"
LENGTH_HEADER = "Inference-Header-Content-Length"
_DATATYPES = {TEXT: BYTES, IMAGE: BYTES, IDS: INT64, MASK: INT64}
_BINARY = "binary_data_output"


class InputTensor(StrictFields):
    """An input of a request."""

    name: str
    shape: list[int] = pydantic.Field(min_length=1, max_length=2)
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = pydantic.Field(default_factory=dict)  # a default is copied


class OutputTensor(StrictFields):
    """An output that is requested."""

    name: str
    parameters: dict[str, Any] = pydantic.Field(default_factory=dict)  # a default is copied


class InferCall(StrictFields):
    """A request to infer."""

    inputs: list[InputTensor] = pydantic.Field(min_length=1, max_length=2)
    outputs: list[OutputTensor] = pydantic.Field(default_factory=list, max_length=1)
    id: str | None = None
    parameters: dict[str, Any] = pydantic.Field(
        default_factory=dict,
        description="decoding options by name, source_language, target_language, split_sentences",
    )


def routes(service: Service) -> APIRouter:
    """The paths of the protocol."""
    router = APIRouter(tags=["KServe"])

    @router.get("/v2", summary="What the server is.")
    async def server() -> Response:
        return JSONResponse(
            {"name": "tfexport", "version": __version__, "extensions": ["binary_tensor_data"]}
        )

    async def live() -> Response:
        return JSONResponse({"live": True})

    async def ready() -> Response:
        status = 503 if service.stopping else 200
        return JSONResponse({"ready": not service.stopping}, status)

    add_probe(router, "/v2/health/live", live, "Whether the server runs.")
    add_probe(router, "/v2/health/ready", ready, "Whether it takes work.")
    for path in ("/v2/models/stats", "/v2/models/{name}/stats", "/v2/repository/index",
                 "/v2/models/{name}/versions/{version}/stats"):  # fmt: skip
        router.add_api_route(path, _refuse, methods=["GET", "POST"], include_in_schema=False)
    for base in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        shown = base.count("{") == 1
        _add_model_routes(router, base, service, shown)
    return router


async def _refuse(request: Request) -> Response:
    raise RequestError(404, f"{request.url.path}: not available on this server; /metrics has its "
                  "figures, /v1/models its models")  # fmt: skip


def _add_model_routes(router: APIRouter, base: str, service: Service, shown: bool) -> None:
    @router.get(base, include_in_schema=shown, summary="Inputs and outputs of a model.")
    async def metadata(request: Request) -> Response:
        return JSONResponse(_metadata(_model(service, request)))

    @router.get(f"{base}/ready", include_in_schema=shown, summary="Whether a model takes work.")
    async def model_ready(request: Request) -> Response:
        return JSONResponse({"name": _model(service, request).name, "ready": True})

    @router.post(f"{base}/infer", include_in_schema=shown,
                 **describe(InferCall, "Translate texts, or rows of ids."))  # fmt: skip
    async def infer(request: Request) -> Response:
        model, call = _model(service, request), call_of(request.scope)
        model.serve(call)
        body, inputs = await call.in_thread(_read, call)
        choose_taking(service.models, model.name, IMAGE if IMAGE in inputs else _TEXTS)
        output = SEQUENCES if IDS in inputs else TRANSLATION
        binary = _wants_binary(body, output)
        given = {name: value for name, value in body.parameters.items() if name != _BINARY}
        options = {"return_scores": False, **given}  # the protocol has none
        headers: dict[str, str] = {}
        if output == TRANSLATION:
            ((name, tensor),) = inputs.items()
            if name == IMAGE:
                files = FileRequest(IMAGE, tensor.reshape(-1).tolist(), options)
                translations = await read_files(service.settings, model, files, call)
            else:
                translations = await _translations(service, model, tensor, options, call)
            texts = [one.texts[0] for one in translations]
            tensor = np.array(texts, object).reshape(tensor.shape)
            headers = cut_headers(translations)
        else:
            rows = _rows(service.settings.max_texts, inputs)
            tensor = await generate(service.settings, model, rows, options, call)
        answer = _answer(model, body.id, output, tensor, binary)
        answer.headers.update(headers)
        return answer


def _model(service: Service, request: Request) -> ServerModel:
    model = service.models.get(request.path_params["name"])
    version = request.path_params.get("version", model.version)
    if version != model.version:
        raise RequestError(404, f"{model.name}: no version {version[:40]!r}; it is {model.version}")
    return model


def _metadata(model: ServerModel) -> dict[str, Any]:
    def tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": shape}

    text = model.engine.gives_text
    taken = [tensor(TEXT, BYTES, [-1])] if text else [tensor(IDS, INT64, [-1, -1])]
    if model.takes != _TEXTS:  # sound and arrays have no input in this protocol
        taken = [tensor(IMAGE, BYTES, [-1])] if text and model.takes == IMAGE else []
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": "tfexport",
        "inputs": taken,
        "outputs": (
            [tensor(TRANSLATION, BYTES, [-1])] if text else [tensor(SEQUENCES, INT64, [-1, -1])]
        ),
    }


def _read(call: Call) -> tuple[InferCall, dict[str, Tensor]]:
    length = call.headers.get(LENGTH_HEADER.lower().encode(), b"")
    check_media_type(call.headers, JSON, OCTETS)
    text, raw = split_body(call.body, length)
    body = read_json(InferCall, text)
    return body, _inputs(body, raw)


def _inputs(body: InferCall, raw: bytes) -> dict[str, Tensor]:
    """The inputs of a request by name, checked: texts, or ids and perhaps their mask."""
    _check_names(body)
    sizes, problems = dict[str, int](), []
    for given in body.inputs:
        size = given.parameters.get("binary_data_size")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or given.data is not None:
                problems.append(f"{given.name}: binary_data_size is a number, instead of data")
            else:
                sizes[given.name] = size
        more = sorted(set(given.parameters) - {"binary_data_size"})
        problems += [f"{given.name}: {name[:40]!r} is not a parameter here" for name in more]
    if problems:
        raise wrong(problems)
    cut = take_raw(raw, sizes)
    return {
        given.name: read_tensor(
            given.name, given.datatype, given.shape, given.data, cut.get(given.name)
        )
        for given in body.inputs
    }


def _check_names(body: InferCall) -> None:
    names = [given.name for given in body.inputs]
    if sorted(names) not in ([TEXT], [IMAGE], [IDS], [MASK, IDS]):
        raise wrong(
            f"inputs: {', '.join(names)[:100]!r}; they are {TEXT}, or {IDS} with or "
            f"without {MASK}, or {IMAGE}"
        )
    problems = []
    for given in body.inputs:
        if given.datatype != _DATATYPES[given.name]:
            problems.append(
                f"{given.name}: datatype {given.datatype[:20]!r} is not {_DATATYPES[given.name]}"
            )
        lists = given.name in (TEXT, IMAGE)
        if lists and len(given.shape) == 2 and given.shape[1] != 1:
            problems.append(f"{given.name}: {shown(given.shape)} is neither [N] nor [N, 1]")
        if not lists and len(given.shape) != 2:
            problems.append(f"{given.name}: {shown(given.shape)} is not [N, length]")
    if problems:
        raise wrong(problems)


def _wants_binary(body: InferCall, output: str) -> bool:
    """Whether the output is wanted in binary form."""
    wanted = body.parameters.get(_BINARY, False)
    for asked in body.outputs:
        more = sorted(set(asked.parameters) - {"binary_data"})
        if asked.name != output or more:
            what = f"{asked.name[:40]!r}" if not more else f"{asked.name[:40]}: {more[0][:40]!r}"
            raise wrong(f"outputs: {what} is not there; the output is {output}")
        wanted = asked.parameters.get("binary_data", wanted)
    if not isinstance(wanted, bool):
        raise wrong(f"{_BINARY}: is neither true nor false")
    return wanted


def _rows(most: int, inputs: Mapping[str, Tensor]) -> list[list[int]]:
    """Rows of ids, without the masked ids at their ends."""
    given, mask = inputs[IDS], inputs.get(MASK)
    if given.shape[0] > most:
        raise RequestError(413, f"{given.shape[0]} rows are more than the {most} of a request")
    if mask is None:
        return [row.tolist() for row in given]
    if mask.shape != given.shape:
        raise wrong(f"{MASK}: shape {list(mask.shape)} is not that of {IDS}, {list(given.shape)}")
    lengths = mask.sum(1)
    right = mask == (np.arange(given.shape[1]) < lengths[:, None])
    if not right.all():
        raise wrong(f"{MASK}: rows are ones, and then zeros where {IDS} are padding")
    return [row[:length].tolist() for row, length in zip(given, lengths, strict=True)]


async def _translations(
    service: Service, model: ServerModel, text: Tensor, options: dict[str, Any], call: Call
) -> list[TextTranslation]:
    texts = list(map(str, text.flat))
    check_size(service.settings, call, texts)
    if "terms" in options or "glossary" in options:
        raise wrong("parameters: terms are not part of this protocol; POST /v1/translate has them")
    split = options.pop("split_sentences", None)
    if split not in (None, *SPLITS):
        raise wrong(f"parameters: split_sentences is not one of {', '.join(SPLITS)}")
    source, target = options.pop("source_language", None), options.pop("target_language", None)
    if any(code is not None and not isinstance(code, str) for code in (source, target)):
        raise wrong("parameters: source_language and target_language are codes")
    choice = choose_named(service.models, model.name, source, target)
    return await translate(service.metrics, choice, TextRequest(texts, options, split=split), call)


def _answer(
    model: ServerModel, number: str | None, name: str, tensor: Tensor, binary: bool
) -> Response:
    raw = pack(tensor) if binary else None
    values = {
        "model_name": model.name,
        "model_version": model.version,
        **({} if number is None else {"id": number}),
        "outputs": [described(name, tensor, raw)],
    }
    text = to_json(values)
    if raw is None:
        return Response(text, media_type=JSON)
    headers = {LENGTH_HEADER: str(len(text))}
    return Response(text + raw, media_type=OCTETS, headers=headers)
