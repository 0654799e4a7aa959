"""Sounds over HTTP, as OpenAI's clients send them: a table stands in for the model's graphs."""

import io
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.servers import Answer, Server, serving, wait_until
from tests.support.spoken_bundle import RATE, use_table, write_spoken_bundle
from tfexport.runtime import Translator
from tfexport.runtime.speech.subtitles import as_srt, as_text, as_vtt
from tfexport.runtime.speech.transcription import FALLBACK, Transcription
from tfexport.serve.protocols.response_models import ANSWERS

soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
PROGRAM = "tests.serve.spoken_server"
WINDOW = 0.24
PATH = "/v1/audio/transcriptions"


def sound(seconds: float, seed: int = 0, kind: str = "WAV") -> bytes:
    samples = np.random.default_rng(seed).normal(0, 0.1, int(RATE * seconds))
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind)
    return file.getvalue()


def form(*parts: tuple[str, bytes | str], boundary: str = "-=border") -> tuple[bytes, str]:
    """A form with a file name on the field "file", and its content type."""
    body = b""
    for name, content in parts:
        file = '; filename="a.wav"\r\nContent-Type: audio/wav' if name == "file" else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + (content if isinstance(content, bytes) else content.encode())
        body += b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f'multipart/form-data; boundary="{boundary}"'


def send(server: Server, *parts: tuple[str, bytes | str], path: str = PATH) -> Answer:
    body, kind = form(*parts)
    return server.ask("POST", path, body, {"Content-Type": kind})


def refused(answer: Answer, status: int = 400) -> dict[str, Any]:
    assert answer.status == status, answer.body
    assert {*answer.json} == {"error"}
    error: dict[str, Any] = answer.json["error"]
    assert {*error} == {"message", "type", "param", "code"}
    return error


@pytest.fixture(scope="module", name="bundle")
def _bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_spoken_bundle(tmp_path_factory.mktemp("spoken") / "spoken.bundle")


@pytest.fixture(scope="module", name="server")
def _server(bundle: Path, tiny_bundle: Path) -> Iterator[Server]:
    options = ("--max-file-bytes", 400_000, "--max-seconds", 60, "--max-characters", 5000)
    with serving(bundle.parent, bundle, tiny_bundle, *options, program=PROGRAM) as running:
        yield running


@pytest.fixture(scope="module", name="transcribe")
def _transcribe(bundle: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        use_table(patch)
        translator = Translator(bundle, threads=1)

    def made(file: bytes, **options: Any) -> Transcription:
        (found,) = translator.transcribe([file], **{**FALLBACK, "task": "transcribe", **options})
        return found

    return made


def test_answers_are_those_of_the_translator_in_each_form(server: Server, transcribe: Any) -> None:
    file = sound(2.1)
    found = transcribe(file)
    assert len(found.segments) > 3
    answer = send(server, ("file", file))
    assert answer.json == {"text": found.text.strip(), "usage": {"type": "duration", "seconds": 3}}
    for shape, write in (("text", as_text), ("srt", as_srt), ("vtt", as_vtt)):
        answer = send(server, ("file", file), ("model", "spoken"), ("response_format", shape))
        assert answer.body.decode() == write(found), shape
        assert answer.headers["content-type"].startswith("text/")
    whole = send(
        server, ("file", file), ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "segment"), ("model", "whisper-1"), ("stream", "false"),
    ).json  # fmt: skip
    ANSWERS["post", PATH].model_validate(whole, strict=True)
    names = {"en": "english", "de": "german", "fr": "french"}
    assert whole["language"] == names[found.language]
    assert (whole["task"], whole["duration"]) == ("transcribe", pytest.approx(2.1))
    assert whole["segments"] == [
        {"id": number, **json.loads(json.dumps(each.to_dict()))}
        for number, each in enumerate(found.segments)
    ]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"language": "German"}, {"language": "de"}),
        ({"language": "de-AT"}, {"language": "de"}),
        ({"prompt": "w1 w2"}, {"prompt": "w1 w2"}),
        ({"prompt": "w4 " * 30 + "w9", "language": ""}, {"prompt": [*[4] * 13, 9]}),
        ({"temperature": "0.4"}, {"temperature": 0.4, "compression_ratio_threshold": None,
                                  "logprob_threshold": None, "no_speech_threshold": None}),
    ],
    ids=["language", "region", "prompt", "long prompt", "temperature"],
)  # fmt: skip
def test_fields_are_options(
    server: Server, transcribe: Any, fields: Mapping[str, str], options: Mapping[str, Any]
) -> None:
    file = sound(0.7, 3)
    found = transcribe(file, **options)
    assert send(server, ("file", file), *fields.items()).json["text"] == found.text.strip()
    assert found.text != transcribe(file).text


def test_translations_are_english(server: Server, transcribe: Any) -> None:
    file, path = sound(0.6, 4), "/v1/audio/translations"
    found = transcribe(file, task="translate")
    answer = send(server, ("file", file), ("response_format", "verbose_json"), path=path).json
    assert (answer["task"], answer["language"]) == ("translate", "english")
    assert [each["tokens"] for each in answer["segments"]] == [
        [*it.tokens] for it in found.segments
    ]
    assert "language: is not a known field" in refused(
        send(server, ("file", file), ("language", "de"), path=path)
    )["message"]  # fmt: skip


def test_a_stream_has_the_text_in_order(server: Server, transcribe: Any) -> None:
    file = sound(2.1)
    answer = send(server, ("file", file), ("stream", "true"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(part.removeprefix("data: ")) for part in answer.body.decode().split("\n\n")
              if part]  # fmt: skip
    *deltas, done = events
    assert len(deltas) > 3
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    found = transcribe(file)
    assert done == {"type": "transcript.text.done", "text": found.text.strip()}
    assert "".join(each["delta"] for each in deltas) == "".join(
        each.text for each in found.segments
    )


def test_what_is_wrong_is_named(server: Server) -> None:
    file = ("file", sound(0.3))

    def error(*parts: tuple[str, bytes | str], status: int = 400) -> dict[str, Any]:
        return refused(send(server, *parts), status)

    for content, text in (
        (b"This is no sound.", "holds text, not sound"), (b"", "is empty"),
        (b"\x1aE\xdf\xa3" + bytes(50), "a WebM or Matroska file"),
        (sound(1, kind="FLAC")[:9000], "not a sound that libsndfile reads"),
        (sound(61, kind="FLAC")[:200_000], "at most 60 s are read"),
    ):  # fmt: skip
        found = error(("file", content))
        assert text in found["message"]
        assert (found["param"], found["type"]) == ("file", "invalid_request_error")
    for parts, text in (
        ([("model", "spoken")], "file: is missing"),
        ([file, ("model", "tiny")], "'tiny' takes text, not sound; those of sound: spoken"),
        ([file, ("language", "klingon")], "'klingon' is not a language of the model"),
        ([file, ("temperature", "1.5")], "temperature: should be less than or equal to 1"),
        ([file, ("response_format", "docx")], "response_format: should be 'json', 'text', 'srt'"),
        ([file, ("include[]", "logprobs")], "include: not supported by this server"),
        ([file, ("beam", "4")], "beam: is not a known field"),
        ([file, ("timestamp_granularities[]", "segment")], "need response_format verbose_json"),
        ([file, ("timestamp_granularities[]", "word"), ("response_format", "verbose_json")],
         "names no alignment_heads"),
        ([file, ("stream", "true"), ("response_format", "srt")], "stream: not with"),
        ([file, ("model", "spoken"), ("model", "tiny")], "model: occurs 2 times"),
        ([file, ("prompt", b"\xff")], "prompt: is not text in UTF-8"),
        ([("audio", file[1])], "audio: is not text in UTF-8; a file belongs in the field file"),
        ([file, ("hotwords", "w1")], "hotwords: is not a known field; known: file, model, prompt"),
        ([file, ("keyword", "w1")], "keyword: is not a known field; known: file, model"),
        ([file, ("keywords", "w1")], "keywords: not supported by this server"),
        ([file, ("promt", "w1")], "promt: is not a known field; did you mean 'prompt'?"),
    ):  # fmt: skip
        assert text in error(*parts)["message"], text
    assert error(file, ("language", "klingon"))["param"] == "language"
    assert "no model 'none'" in error(file, ("model", "none"), status=404)["message"]
    for body in ({"texts": ["w4"]}, {"texts": ["w4"], "options": {"beam_size": 2}}):
        answer = server.post("/v1/translate", {"model": "spoken", **body})
        assert answer.status == 422


def test_forms_that_are_too_much_or_broken_are_refused(server: Server) -> None:
    file = sound(0.3)
    assert "more than the 400000" in refused(send(server, ("file", bytes(400_001))), 413)["message"]
    many = [(f"x{number}", "") for number in range(65)]
    assert "more than 64 parts" in refused(send(server, *many), 413)["message"]
    long = ("prompt", "w4 " * 2000)
    assert "characters" in refused(send(server, ("file", file), long), 413)["message"]
    body, kind = form(("file", file))
    assert "bytes" in refused(send(server, ("file", bytes(900_000))), 413)["message"]
    for broken, type_of, status, text in (
        (body[:-20], kind, 400, "ends before its last boundary"),
        (b"no form", kind, 400, "cannot be read"), (b"", kind, 400, "before its last boundary"),
        (body, "multipart/form-data", 400, "without a boundary"),
        (body, "multipart/form-data; boundary=" + "x" * 300, 400, "Boundary length"),
        (body, "application/json", 415, "has to be multipart/form-data"),
        (body.replace(b'name="file"', b"name"), kind, 400, "has no name"),
        (body.replace(b"Content-Type", b"X" * 20_000), kind, 400, "cannot be read"),
    ):  # fmt: skip
        answer = server.ask("POST", PATH, broken, {"Content-Type": type_of})
        assert text in refused(answer, status)["message"]
    assert refused(server.ask("POST", "/v1/audio/speech", body), 404)


def test_models_are_listed_as_its_clients_read_them(server: Server, bundle: Path) -> None:
    found = server.ask("GET", "/v1/models").json
    ANSWERS["get", "/v1/models"].model_validate(found, strict=True)
    assert [each["id"] for each in found["data"]] == ["spoken", "tiny"]
    assert found["object"] == "list"
    spoken, tiny = found["models"]
    assert spoken["speech"] == {
        "languages": ["de", "en", "fr"], "tasks": ["transcribe", "translate"], "detects": True,
    }  # fmt: skip
    assert (spoken["input"], "speech" in tiny) == ("audio", False)
    codes = ["de", "en", "fr"]
    assert spoken["languages"] == {"source": codes, "target": codes}
    one = server.ask("GET", "/v1/models/spoken").json
    assert one == found["data"][0]
    assert one["created"] == int((bundle / "manifest.json").stat().st_mtime)
    refused(server.ask("GET", "/v1/models/none"), 404)
    alias = server.ask("GET", "/v1/models/whisper-1").json
    assert alias == {**one, "id": "whisper-1"}


def test_each_request_goes_to_a_model_of_its_kind_or_is_refused(
    server: Server, tiny_bundle: Path
) -> None:
    (found,) = Translator(tiny_bundle, threads=1).translate(["w4 w5"])
    codes = {"source_language": "de", "target_language": "en"}  # which the model of sound knows
    for options in ({}, codes):
        answer = server.post("/v1/translate", {"texts": ["w4 w5"], "options": options}).json
        assert (answer["model"], answer["translations"][0]["text"]) == ("tiny", found.text)
    body: dict[str, Any] = {"q": "w4 w5", "source": "de", "target": "en"}
    assert server.post("/translate", body).json["translatedText"] == found.text
    body = {"text": ["w4 w5"], "source_lang": "DE", "target_lang": "EN-US"}
    (translation,) = server.post("/v2/translate", body).json["translations"]
    assert translation["text"] == found.text
    assert [each["code"] for each in server.ask("GET", "/languages").json] == ["und"]
    assert [each["language"] for each in server.ask("GET", "/v2/languages").json] == ["UND"]
    rows: dict[str, Any] = {"name": "input_ids", "datatype": "INT64", "shape": [1, 1], "data": [4]}
    texts = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["w4"]}
    not_text = "'spoken' takes sound, not text: POST /v1/audio/transcriptions; those of text: tiny"
    not_pictures = "none here takes pictures; served: spoken (takes sound), tiny (takes text)"
    for path, body, message in (
        ("/v1/translate", {"model": "spoken", "texts": ["w4"]}, not_text),
        ("/v1/translate", {"model": "spoken", "texts": ["w4"], "options": codes}, not_text),
        ("/v1/score", {"model": "spoken", "sources": ["w4"], "targets": ["w4"]}, not_text),
        ("/v1/pieces", {"model": "spoken", "text": "w4", "tokens": [[4]]}, not_text),
        ("/v2/models/spoken/infer", {"inputs": [texts]}, not_text),
        ("/v2/models/spoken/infer", {"inputs": [rows]}, not_text),
        ("/v2/models/tiny/infer", {"inputs": [{**texts, "name": "image"}]},
         "'tiny' takes text, not pictures"),
        ("/v1/translate", {"images": ["aGk="]}, not_pictures),
        ("/v1/translate", {"images": ["aGk="], "options": codes}, not_pictures),
    ):  # fmt: skip
        answer = server.post(path, body)
        assert answer.status in (400, 422), (path, answer.body)
        assert message in answer.json["error"], path
    assert server.ask("GET", "/v2/models/spoken").json["inputs"] == []


def test_windows_of_several_callers_share_batches(server: Server, transcribe: Any) -> None:
    files = [sound(1.9, seed) for seed in range(8)]
    before = {name: server.figure(name, model="spoken") for name in BATCHES}
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = send(server, ("file", files[number]), ("language", "de")).json["text"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [transcribe(file, language="de").text.strip() for file in files]
    assert [answers[number] for number in range(8)] == wanted
    rows, steps, seconds, tokens = (
        server.figure(name, model="spoken") - before[name] for name in BATCHES
    )
    assert rows > steps  # some steps had windows of several sounds
    assert seconds == pytest.approx(8 * 1.9)
    assert tokens > 0


BATCHES = ("tfexport_batch_rows_sum", "tfexport_batch_rows_count", "tfexport_sound_seconds_total",
           "tfexport_generated_tokens_total")  # fmt: skip


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of `translations`
def test_openais_client_is_served_unchanged(server: Server, transcribe: Any) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed; see `make optional`")
    file = sound(1.1, 5)
    found = transcribe(file)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == ["spoken", "tiny"]
        assert client.models.retrieve("spoken").object == "model"
        named = ("talk.wav", file, "audio/wav")
        create = client.audio.transcriptions.create
        assert create(file=named, model="whisper-1").text == found.text.strip()
        assert create(file=named, model="spoken", response_format="srt") == as_srt(found)
        whole = create(
            file=named, model="spoken", response_format="verbose_json", temperature=0,
            timestamp_granularities=["segment"],
        )  # fmt: skip
        assert [(each.start, each.end, each.text, each.tokens) for each in whole.segments] == [
            (round(each.start, 3), round(each.end, 3), each.text, [*each.tokens])
            for each in found.segments
        ]
        events = [*create(file=named, model="spoken", stream=True, language="de", prompt="w3")]
        assert events[-1].type == "transcript.text.done"
        wanted = transcribe(file, language="de", prompt="w3").text.strip()
        assert events[-1].text == wanted
        english = client.audio.translations.create(
            file=io.BytesIO(file), model="spoken", response_format="verbose_json"
        )
        assert (english.language, english.text) == (
            "english",
            transcribe(file, task="translate").text.strip(),
        )
        with pytest.raises(openai.BadRequestError, match="holds text, not sound") as raised:
            create(file=("a.wav", b"This is no sound."), model="spoken")
        assert raised.value.param == "file"
        with pytest.raises(openai.NotFoundError, match="no model 'none'"):
            create(file=named, model="none")


def test_sounds_leave_late_and_with_their_callers(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_SECONDS", "0.05")
    (tmp_path / "keys").write_text("sesame\n")
    options = ("--timeout", 1, "--max-queue", 1, "--slots", 1, "--api-key-file", tmp_path / "keys")
    with serving(tmp_path, bundle, *options, program=PROGRAM) as slow:
        body, kind = form(("file", sound(30)), ("model", "spoken"))
        headers = {"Content-Type": kind}
        assert refused(slow.ask("POST", PATH, body, headers), 401)["code"] == "invalid_api_key"
        headers["Authorization"] = "Bearer sesame"
        late = slow.ask("POST", PATH, body, headers)
        assert refused(late, 504)["type"] == "server_error"
        slow.wait_idle()
        connection = slow.connect()
        connection.request("POST", PATH, body, headers)
        wait_until(lambda: slow.figure("tfexport_running_rows") == 1)
        connection.close()
        slow.wait_idle(1.0)  # before its deadline
        assert slow.figure("tfexport_requests_total", code="499") == 1
        waiting = [slow.connect() for _ in range(2)]
        for number, each in enumerate(waiting, 1):
            each.request("POST", PATH, body, headers)
            wait_until(lambda: slow.figure("tfexport_active_requests") > number)  # noqa: B023
        full = slow.ask("POST", PATH, body, headers)
        assert refused(full, 503)["type"] == "server_error"
        assert int(full.headers["retry-after"]) >= 1
        for each in waiting:
            each.close()
        slow.wait_idle()
        assert slow.end() == 0
