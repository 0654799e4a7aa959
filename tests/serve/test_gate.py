"""The gate and streams within this process: faults, clients that leave, silence."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfexport.errors import DeadlineError
from tfexport.serve import Service, Settings, journal
from tfexport.serve.app import make_app
from tfexport.serve.body_memory import FREE, BodyMemory
from tfexport.serve.call import Call, call_of
from tfexport.serve.connections import CLOSING
from tfexport.serve.failures import RequestError
from tfexport.serve.gate import Gate
from tfexport.serve.protocols import own_stream
from tfexport.serve.sentences import split_text
from tfexport.serve.texts import Rows
from tfexport.serve.translating import outcome

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

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"",
             "root_path": "", "http_version": "1.1", "raw_path": path.encode()}  # fmt: skip
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

    status, body = asyncio.run(ask(Gate(faulty, service, []), path))
    assert (status, body[field]) == (500, "a fault of the server, which its log has")
    fault, line = map(json.loads, capsys.readouterr().err.splitlines())
    assert fault["event"] == "fault"
    assert "ZeroDivisionError" in fault["trace"]
    assert line["request_id"] == fault["request_id"]
    assert service.active == 0


@pytest.mark.parametrize("closing", [True, False])
def test_a_connection_that_closes_under_an_answer_is_no_fault(
    service: Service, capsys: pytest.CaptureFixture[str], closing: bool
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except Exception as error:  # as task groups do
            raise RuntimeError("errors of a group") from error

    messages = [{"type": "http.request", "body": b""}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise RuntimeError("the handler is closed")

    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [],
             CLOSING: lambda: closing}  # fmt: skip
    asyncio.run(Gate(app, service, ["/v1/x"])(scope, receive, send))
    said = capsys.readouterr().err
    assert ('"fault"' in said) != closing
    assert ('"status": 499' in said) == closing
    assert service.active == 0


def test_a_refusal_that_nobody_is_there_to_read_is_no_fault(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "stopping", True)

    async def receive() -> Any:
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise RuntimeError("the handler is closed")

    scope = {"type": "http", "method": "POST", "path": "/v1/translate", "headers": [],
             CLOSING: lambda: True}  # fmt: skip
    asyncio.run(Gate(make_app(service), service, ["/v1/translate"])(scope, receive, send))
    said = capsys.readouterr().err
    assert '"status": 499' in said
    assert '"fault"' not in said


def test_a_fault_of_a_path_has_the_form_of_its_protocol(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service.models, "get", lambda name: 1 / 0)
    status, body = asyncio.run(ask(make_app(service), "/v2/models/tiny/infer"))
    assert (status, list(body)) == (500, ["error"])
    assert '"event": "fault"' in capsys.readouterr().err


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

    assert asyncio.run(ask(Gate(app, service, ["/v1/x"]), "/v1/x", receive)) == (0, None)
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

    gate = Gate(app, service, ["/v1/x"])

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
        slow = asyncio.ensure_future(ask(gate, "/v1/x", sending(FREE + 90_000, later)))
        await asyncio.sleep(0.05)
        found = [await ask(gate, "/v1/x", sending(size, now)) for size in (FREE, FREE + 20_000)]
        later.set()
        found.append(await slow)
        return [*found, await ask(gate, "/v1/x", sending(FREE + 20_000, now))]

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
            rows: Any = Rows(SimpleNamespace(), [], [split_text("\n", "de", "lines")])  # type: ignore[arg-type]
            model: Any = SimpleNamespace(engine=SimpleNamespace(texts=None))
            call = Call.begin([], 60.0)
            events: Any = own_stream._events(model, rows, submission, asyncio.Queue(), call)
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
                await outcome(submission, Call.begin([], 0.0))
            future.set_exception(DeadlineError("late"))
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    gc.collect()
    assert logged == []


def test_silent_streams_are_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_stream, "HEARTBEAT", 0.01)

    async def run() -> list[str]:
        future: Future[Any] = Future()
        submission: Any = SimpleNamespace(future=future)
        rows: Any = Rows(SimpleNamespace(), [], [split_text("\n", "de", "lines")])  # type: ignore[arg-type]
        model: Any = SimpleNamespace(engine=SimpleNamespace(texts=None))
        events: AsyncIterator[str] = own_stream._events(
            model, rows, submission, asyncio.Queue(), Call.begin([], 60.0)
        )
        found = [await anext(events), await anext(events)]
        future.set_result([])
        return found + [event async for event in events]

    *pings, text, done = asyncio.run(run())
    assert set(pings) == {": ping\n\n"}
    assert text == 'data: {"text": "\\n"}\n\n'
    assert json.loads(done.removeprefix("data: "))["done"] is True


def test_logged_values_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    journal.write("request", problem="a\nb\x1b[31m")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert json.loads(line)["problem"] == "a\nb\x1b[31m"
    assert "\x1b" not in line
