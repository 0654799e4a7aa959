"""The middleware and streams within this process: faults, clients that leave, silence."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfexport.errors import DeadlineError
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.text.codec import NO_LANGUAGES
from tfexport.runtime.text.sentences import split_text
from tfexport.serve import Service, Settings, middleware, request_log
from tfexport.serve.app import make_app
from tfexport.serve.bodies import FREE, BodyMemory
from tfexport.serve.call import LONG_BODY, Call, call_of
from tfexport.serve.failures import RequestError
from tfexport.serve.middleware import RequestMiddleware
from tfexport.serve.models import ModelChoice
from tfexport.serve.protocols import own
from tfexport.serve.protocols.own import answer, translation
from tfexport.serve.rows import TextRequest, TextRows, TextTranslation, prepare
from tfexport.serve.texts import outcome

Answer = tuple[int, Any]


@pytest.fixture(scope="module", name="service")
def _service(tiny_bundle: Path) -> Any:
    found = Service([tiny_bundle], Settings(threads=1))
    yield found
    found.close()


async def ask(app: Any, path: str, receive: Callable[[], Awaitable[Any]] | None = None) -> Answer:
    """The answer to a request without a body."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def default() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"x")],
             "query_string": b"", "root_path": "", "http_version": "1.1",
             "raw_path": path.encode()}  # fmt: skip
    await app(scope, receive or default, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return (sent[0]["status"], json.loads(body)) if sent else (0, None)


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/x", "error"), ("/v2/translate", "message"), ("/v2/models/x", "error")]
)
def test_a_fault_costs_its_request_alone(
    service: Service, capsys: pytest.CaptureFixture[str], path: str, field: str
) -> None:
    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("secret text")

    status, body = asyncio.run(ask(RequestMiddleware(faulty, service, [], None), path))
    assert (status, body[field]) == (500, "internal server error; see the log of the server")
    fault, line = map(json.loads, capsys.readouterr().err.splitlines())
    assert fault["event"] == "fault"
    assert "ZeroDivisionError" in fault["trace"]
    assert line["request_id"] == fault["request_id"]
    assert not service.active


def test_a_fault_of_a_path_has_the_form_of_its_protocol(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service.models, "get", lambda name: 1 / 0)
    status, body = asyncio.run(ask(make_app(service), "/v2/models/tiny/infer"))
    assert (status, list(body)) == (500, ["error"])
    assert '"event":"fault"' in capsys.readouterr().err


def test_what_a_call_holds_is_let_go_when_its_client_leaves(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call_of(scope).exits.callback(left.append, "exit")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            left.append("cancelled")
            raise

    messages = iter([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return next(messages)

    assert (
        asyncio.run(ask(RequestMiddleware(app, service, ["/v1/x"], None), "/v1/x", receive))[0]
        == 400
    )
    assert left == ["cancelled", "exit"]
    line = json.loads(capsys.readouterr().err)
    assert (line["status"], line["route"]) == (499, "/v1/x")


def test_long_bodies_have_a_common_bound(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "bodies", BodyMemory(100_000))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = len(call_of(scope).body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})

    middleware = RequestMiddleware(app, service, ["/v1/x"], None)

    def sending(size: int, ends: asyncio.Event) -> Callable[[], Awaitable[Any]]:
        """A body whose last byte comes when it may."""
        parts = [b"x" * (size - 1), b"y"]

        async def receive() -> Any:
            if not parts:
                await asyncio.Event().wait()
            if len(parts) == 1:
                await ends.wait()
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        return receive

    async def run() -> list[Answer]:
        now, later = asyncio.Event(), asyncio.Event()
        now.set()
        slow = asyncio.ensure_future(ask(middleware, "/v1/x", sending(FREE + 90_000, later)))
        await asyncio.sleep(0.05)
        found = [
            await ask(middleware, "/v1/x", sending(size, now)) for size in (FREE, FREE + 20_000)
        ]
        later.set()
        found.append(await slow)
        return [*found, await ask(middleware, "/v1/x", sending(FREE + 20_000, now))]

    short, refused, slow, after = asyncio.run(run())
    assert (short, slow) == ((200, FREE), (200, FREE + 90_000))
    assert refused[0] == 503
    assert "long bodies" in refused[1]["error"]
    assert after == (200, FREE + 20_000)
    capsys.readouterr()


@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_that_comes_too_late_is_seen(streamed: bool) -> None:
    """Asyncio logs exceptions of futures that nobody looks at, when they are thrown away."""
    logged: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        future: Future[Any] = Future()
        submission: Any = SimpleNamespace(future=future)
        if streamed:
            rows: Any = TextRows(SimpleNamespace(), [], [split_text("\n", "de", "lines")])  # type: ignore[arg-type]
            model: Any = SimpleNamespace(engine=SimpleNamespace(texts=None))
            call = Call.begin("/", [], 60.0)
            events: Any = own._events(model, rows, submission, asyncio.Queue(), call)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.01)
            future.set_exception(DeadlineError("late"))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            await events.aclose()
            del events, waiting
        else:
            with pytest.raises(RequestError, match="time"):
                await outcome(submission, Call.begin("/", [], 0.0))
            future.set_exception(DeadlineError("late"))
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    gc.collect()
    assert logged == []


def test_outcomes_of_a_step_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each caller gets its own outcome; those that end later wake the loop again."""

    async def run() -> tuple[list[Any], list[int]]:
        loop, calls = asyncio.get_running_loop(), list[int]()
        wake = loop.call_soon_threadsafe

        def counted(*given: Any) -> Any:
            calls.append(1)
            return wake(*given)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        futures = [Future[Any]() for _ in range(9)]
        waiting = []
        for future in futures:
            submission: Any = SimpleNamespace(future=future)
            waiting.append(asyncio.ensure_future(outcome(submission, Call.begin("/", [], 60.0))))
        await asyncio.sleep(0)
        waiting[4].cancel()
        await asyncio.wait([waiting[4]])

        def step() -> None:
            for place, future in enumerate(futures[:7]):
                future.set_result([place])
            futures[7].set_exception(DeadlineError("late"))

        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        counts = [len(calls)]
        await asyncio.wait(waiting[:8])
        futures[8].cancel()
        counts.append(len(calls))
        return await asyncio.gather(*waiting, return_exceptions=True), counts

    found, counts = asyncio.run(run())
    assert counts == [1, 2]
    cancelled = found.pop(4), found.pop()
    assert [type(one) for one in cancelled] == [asyncio.CancelledError] * 2
    assert found[:6] == [[0], [1], [2], [3], [5], [6]]
    assert isinstance(found[6], DeadlineError)


def test_work_for_a_call_that_has_ended_is_left() -> None:
    """Before it begins in a thread, between the texts of an answer, and between hypotheses."""
    call, begun = Call.begin("/", [], 60.0), list[str]()
    call.body, call.ended = b"x" * LONG_BODY, True
    with pytest.raises(RequestError, match="time"):
        asyncio.run(call.in_thread(begun.append, "work"))
    assert begun == []
    with pytest.raises(RequestError, match="time"):
        answer("tiny", [TextTranslation([], [], [])], call)
    with pytest.raises(RequestError, match="time"):
        translation(TextTranslation(["a"], [Hypothesis([4], 0.0)], []), call)


def test_silent_streams_are_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "HEARTBEAT", 0.01)

    async def run() -> list[str]:
        future: Future[Any] = Future()
        submission: Any = SimpleNamespace(future=future)
        rows: Any = TextRows(SimpleNamespace(), [], [split_text("\n", "de", "lines")])  # type: ignore[arg-type]
        observer = SimpleNamespace(cut=lambda rows: None)
        model: Any = SimpleNamespace(engine=SimpleNamespace(texts=None), observer=observer)
        events: AsyncIterator[str] = own._events(
            model, rows, submission, asyncio.Queue(), Call.begin("/", [], 60.0)
        )
        found = [await anext(events), await anext(events)]
        future.set_result([])
        return found + [event async for event in events]

    *pings, text, done = asyncio.run(run())
    assert set(pings) == {": ping\n\n"}
    assert text == 'data: {"text": "\\n"}\n\n'
    assert json.loads(done.removeprefix("data: "))["done"] is True


def test_logged_values_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    request_log.write("request", problem="a\nb\x1b[31m")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert json.loads(line)["problem"] == "a\nb\x1b[31m"
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/translate", "error"), ("/v2/translate", "message")]
)
def test_a_full_server_refuses_before_it_reads(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
    field: str,
) -> None:
    monkeypatch.setattr(middleware, "_SECONDS", 0.05)
    settings = service.settings
    monkeypatch.setattr(service, "read", set(range(settings.max_queue + settings.slots)))

    async def never() -> Any:
        raise AssertionError("a body is asked for")

    async def run() -> list[Answer]:
        app = make_app(service)
        found = [await ask(app, path, never) for _ in range(7)]
        await asyncio.sleep(0.1)
        return [*found, await ask(app, "/health/live")]

    *refused, probe = asyncio.run(run())
    assert {status for status, _ in refused} == {503}
    assert "too many requests" in refused[0][1][field]
    assert probe[0] == 405  # it is asked for by GET
    *_, line = map(json.loads, capsys.readouterr().err.splitlines()[:1])
    assert (line["event"], line["requests"]) == ("refused", 7)
    counted = f'tfexport_requests_total{{code="503",model="",route="{path}"}} 7.0'
    assert counted in service.metrics.text().decode()


def test_a_full_server_answers_before_it_reads_a_long_body(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "read", set(range(1000)))
    parts = [b"x" * FREE] * 3

    async def receive() -> Any:
        part = parts.pop()
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    sent: list[int] = []

    async def send(message: Any) -> None:
        sent.append(len(parts))

    middleware = RequestMiddleware(make_app(service), service, [], None)
    headers = [(b"content-length", b"%d" % (3 * FREE))]
    scope = {"type": "http", "method": "POST", "path": "/v1/translate", "headers": headers}
    asyncio.run(middleware(scope, receive, send))
    assert (sent, parts) == ([3, 3], [])
    capsys.readouterr()


@pytest.mark.parametrize(
    ("bound", "value", "least"),
    [("_REST_BYTES", 90, 9), ("_REST_SECONDS", 0.2, 1), ("_PAUSE", 0.01, 1)],
)
def test_the_rest_of_a_refused_body_is_read_up_to_a_bound(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bound: str,
    value: float,
    least: int,
) -> None:
    """However long it is, however slowly it comes."""
    monkeypatch.setattr(middleware, bound, value)
    received: list[bytes] = []

    async def receive() -> Any:
        await asyncio.sleep(60 if bound == "_PAUSE" and received else 0.001)
        received.append(b"x" * 10)
        return {"type": "http.request", "body": received[-1], "more_body": True}

    monkeypatch.setattr(service, "max_body", 5)
    app = RequestMiddleware(make_app(service), service, [], None)
    status, body = asyncio.run(asyncio.wait_for(ask(app, "/v1/translate", receive), 30))
    assert (status, "more than 5 bytes" in body["error"]) == (413, True)
    assert len(received) >= least
    assert bound != "_REST_BYTES" or len(received) == 10  # the first one was too long already
    capsys.readouterr()


def test_the_application_is_ended_by_its_deadline(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it waits for."""
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    late = Service([tiny_bundle], Settings(threads=1, timeout=0.05))
    try:
        status, body = asyncio.run(ask(RequestMiddleware(app, late, ["/v1/x"], None), "/v1/x"))
    finally:
        late.close()
    assert (status, ended) == (504, ["cancelled"])
    assert "time" in body["error"]
    capsys.readouterr()


@pytest.mark.parametrize("divide", [True, False])
def test_a_text_is_tokenized_once(
    service: Service, divide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = service.models
    texts: list[str] = []
    encode = model.engine.texts.encode

    def counted(text: str, *given: Any) -> list[int]:
        texts.append(text)
        return encode(text, *given)

    monkeypatch.setattr(model.engine.texts, "encode", counted)
    choice = ModelChoice(model, "", "", NO_LANGUAGES)
    rows = prepare(choice, TextRequest(["w4 w5", "", "w6"], divide=divide))
    assert [row.ids if row else [] for row in rows.requests] == [encode("w4 w5"), encode("w6")]
    assert texts == ["w4 w5", "w6"]
