"""The middleware of every request: key, body, deadline, load shedding, log."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import ExitStack, suppress
from typing import Any

import anyio
from starlette.exceptions import HTTPException

from tfexport.errors import TfexportError
from tfexport.serve import request_log
from tfexport.serve.access import check_host, check_origin
from tfexport.serve.bodies import FREE
from tfexport.serve.call import SCOPE_KEY, Call, seen
from tfexport.serve.failures import RequestError, as_failure, busy, late
from tfexport.serve.service import Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT_GONE = 499  # in the log and the metrics: the client has gone
CROWDED = "too many requests are waiting"
_FAULT = "internal server error; see the log of the server"
_SECONDS = 1.0  # refusals of this time share one line of the log
_GRACE = 1.0  # seconds after a deadline in which the work may report it itself
_LAST_PARTS = 10.0  # seconds after a deadline in which a started answer may end
# What is read and dropped of a body after its request was refused, and how long a client may pause.
_REST_BYTES, _REST_SECONDS, _PAUSE = 64 << 20, 10.0, 2.0
_CLOSE = {"Connection": "close"}  # if a body is not read to its end
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # browsers may not guess another type


class RequestMiddleware:
    """The middleware around the application.

    Attributes:
        paths: the paths of the application.
    """

    def __init__(
        self, app: App, service: Service, paths: Collection[str], hosts: Collection[str] | None
    ) -> None:
        """Wrap an application.

        Args:
            app: the application that answers requests.
            service: the service that it serves.
            paths: the paths of the application, under which refused requests are counted.
            hosts: host names that are accepted; see ``check_host``.
        """
        self._app, self._service, self._hosts = app, service, hosts
        self.paths, self._refused = frozenset(paths), 0
        self._timeout, self._max_body = service.settings.timeout, service.max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call.begin(scope["path"], scope["headers"], self._timeout)
        body, answer = _Body(receive), _Answer(send, call)
        if call.rules.is_work and self._service.overloaded:
            await self._shed(scope, answer)
            if b"transfer-encoding" in call.headers or _length(call) > FREE:
                await body.drop()
            return
        scope[SCOPE_KEY] = call
        method = scope["method"]
        if method == "HEAD":  # its answers have no body: granian removes it
            scope["method"] = "GET"
        active = self._service.metrics.active
        active.inc()
        answer.completed.callback(active.dec)
        try:
            with call.exits:
                await self._answer(scope, call, body, answer)
        finally:
            call.ended = True
            answer.completed.close()
            self._record(scope, call, method, answer.status)
        await body.drop()

    async def _shed(self, scope: Scope, answer: "_Answer") -> None:
        """Refuse a request if the server is full, with as little work as possible."""
        await answer.fail(self._overloaded())
        self._service.metrics.answered(self._route(scope), 503, "", 0.0)
        if not self._refused:
            asyncio.get_running_loop().call_later(_SECONDS, self._log_refused)
        self._refused += 1

    def _log_refused(self) -> None:
        request_log.write("refused", level="warning", requests=self._refused, problem=CROWDED)
        self._refused = 0

    async def _answer(self, scope: Scope, call: Call, body: "_Body", answer: "_Answer") -> None:
        service = self._service
        try:
            self._check(scope, call)
            service.active.add(call)
            call.exits.callback(service.active.discard, call)
            call.body = await self._read(call, body)
            if call.rules.is_work and service.overloaded:
                raise self._overloaded()  # since it was checked
            service.read.add(call)
            call.exits.callback(service.read.discard, call)
            await self._run(scope, call, body, answer)
        except _GoneError:
            # This includes a body that is not valid HTTP: its sender still gets an answer.
            await answer.fail(RequestError(400, "the body cannot be read", dict(_CLOSE)))
            answer.status = CLIENT_GONE
        except RequestError as failure:
            await self._refuse(call, answer, failure)
        except Exception as error:
            found = _failure_of(error, scope)
            if found is None:
                # A fault of this program: only this request fails.
                request_log.write_fault("fault", error, request_id=call.id)
                found = RequestError(500, _FAULT)
            await self._refuse(call, answer, found)

    async def _refuse(self, call: Call, answer: "_Answer", failure: RequestError) -> None:
        call.problem = failure.logged
        await answer.fail(failure)

    def _overloaded(self) -> RequestError:
        return busy(CROWDED, self._service.seconds_to_clear())

    def _check(self, scope: Scope, call: Call) -> None:
        """Refuse what can be refused before the body is read."""
        service, rules = self._service, call.rules
        if service.stopping and rules.is_work:
            raise _closing(busy("the server stops", 1.0))
        check_host(scope["headers"], scope["http_version"], self._hosts)
        check_origin(scope["method"], call.headers, service.settings.cors_origins)
        by_header = rules.needs_key and rules.error_format.scheme is not None
        if by_header and not service.keys.allow(rules.error_format.key(call.headers)):
            raise _closing(rules.error_format.refusal())
        coding = call.headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
        if coding not in ("", "identity"):
            text = f"Content-Encoding {coding[:40]!r}: compressed bodies are not supported"
            raise RequestError(415, text, dict(_CLOSE))

    async def _read(self, call: Call, body: "_Body") -> bytes:
        """Read the body, up to the length of the settings."""
        size = _length(call)
        call.exits.callback(call.memory.close)
        found, hold = bytearray(), None
        while size <= self._max_body:
            with anyio.move_on_after(max(call.left, 0.001)) as scope_of_time:
                message = await body.receive()
            if scope_of_time.cancelled_caught:
                text = "the request timed out before its body was complete"
                raise RequestError(408, text, dict(_CLOSE))
            if message["type"] == "http.disconnect":
                raise _GoneError
            found += message.get("body", b"")
            size = len(found)
            if size > self._max_body:
                break
            if size > FREE and hold is None:
                hold = call.memory.enter_context(self._service.bodies.held())
            if hold is not None and not hold(size):
                raise _closing(busy("too many long bodies are being received", 1.0))
            if body.ended:
                return bytes(found)
        raise RequestError(413, f"the body has more than {self._max_body} bytes", dict(_CLOSE))

    async def _run(self, scope: Scope, call: Call, body: "_Body", answer: "_Answer") -> None:
        """Run the application until it has answered, the client has gone or it is too late."""
        gone = asyncio.ensure_future(body.disconnected())
        work = asyncio.ensure_future(self._app(scope, _nothing, answer.send))
        try:
            for more in (_GRACE, _LAST_PARTS):
                await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED,
                                   timeout=max(call.left + more, 0.0))  # fmt: skip
                if not answer.status or work.done() or gone.done():
                    break
            if not work.done() and not answer.complete:
                raise _GoneError if gone.done() or answer.status else late()
            await work
        finally:
            for task in (work, gone):
                task.add_done_callback(seen)
                task.cancel()
            if not work.done():
                await asyncio.wait([work])

    def _route(self, scope: Scope) -> str:
        path = scope["path"]
        known = path if path in self.paths else "unmatched"
        return getattr(scope.get("route"), "path", None) or known

    def _record(self, scope: Scope, call: Call, method: str, status: int) -> None:
        route, seconds = self._route(scope), time.monotonic() - call.arrived
        self._service.metrics.answered(route, status, call.model, seconds)
        if not call.rules.is_work and status < 400:
            return  # probes, every few seconds
        level = {} if status < 400 else {"level": "error" if status == 500 else "warning"}
        request_log.write(
            "request", **level, request_id=call.id, method=method, route=route,
            status=status, seconds=round(seconds, 4), model=call.model or None, texts=call.texts,
            characters=call.characters, problem=call.problem or None,
        )  # fmt: skip


def _length(call: Call) -> int:
    """The length of the body as the head has it; 0 if it has none."""
    length = call.headers.get(b"content-length", b"")
    return int(length[:18]) if length.isdigit() else 0


def _failure_of(error: Exception, scope: Scope) -> RequestError | None:
    """The failure for an error of the library, or of a path; None for a fault of the server."""
    if isinstance(error, TfexportError):
        return as_failure(error)
    if isinstance(error, HTTPException):
        text = f"{scope['method']} {scope['path'][:100]}: {error.detail}; /docs lists what is there"
        return RequestError(error.status_code, text, dict(error.headers or {}))
    return None


class _GoneError(Exception):
    """The client has left."""


def _closing(failure: RequestError) -> RequestError:
    """A failure after which the connection is closed."""
    failure.headers |= _CLOSE
    return failure


class _Body:
    """Receives the body of one request.

    Attributes:
        ended: whether all of it was received, or the client has gone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive, self.ended = receive, False

    async def receive(self) -> Message:
        """The next part."""
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def disconnected(self) -> None:
        """Wait until the client has gone, after the last part."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def drop(self) -> None:
        """Read and drop the rest, after the answer.

        A connection that is closed while its client sends is reset, and the client may never see
        the answer.
        """
        left = _REST_BYTES
        with suppress(TimeoutError), anyio.fail_after(_REST_SECONDS):
            while not self.ended and left > 0:
                with anyio.fail_after(_PAUSE):
                    left -= len((await self.receive()).get("body", b""))


class _Answer:
    """Sends the response of one request.

    Attributes:
        status: of the response; 0 before it starts.
        complete: whether its last part was sent.
        completed: closed before that part is sent, so that no client sees its own request counted.
    """

    def __init__(self, send: Send, call: Call) -> None:
        self._send, self._id = send, call.id.encode("latin-1")
        self._error_format = call.rules.error_format
        self.status, self.complete, self.completed = 0, False, ExitStack()

    async def send(self, message: Message) -> None:
        """Send a part, with the id of the request in the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = (b"x-request-id", self._id), (b"server", b"tfexport"), _NO_SNIFFING
            message["headers"] = [*message.get("headers", []), *added]
        elif not message.get("more_body", False):
            self.complete = True
            self.completed.close()
        await self._send(message)

    async def fail(self, failure: RequestError) -> None:
        """Answer with a failure; a response that has started stays as it is."""
        if self.status:
            return
        status, headers, body = self._error_format.response(failure)
        headers["content-length"] = str(len(body))
        encoded = [(key.lower().encode(), value.encode("latin-1", "replace"))
                   for key, value in headers.items()]  # fmt: skip
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})


async def _nothing() -> Message:
    """Wait for ever: the body was read, and the middleware watches the connection."""
    await asyncio.Event().wait()
    raise AssertionError
