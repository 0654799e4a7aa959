"""The gate that every request passes on its way in and out: key, body, end, log."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from tfexport.serve import journal
from tfexport.serve.call import Call, header, put_call
from tfexport.serve.connections import ARRIVING, CLOSING
from tfexport.serve.dialects import Dialect, dialect_of, is_work, needs_key
from tfexport.serve.failures import RequestError, busy
from tfexport.serve.service import Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT_GONE = 499  # in the log and the figures: nobody reads the answer
_CLOSE = {"Connection": "close"}  # where a body is not read to its end
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # browsers believe the type that is said


class Gate:
    """The outermost layer of the application.

    Attributes:
        paths: of the application.
    """

    def __init__(self, app: App, service: Service, paths: Collection[str]) -> None:
        """Stand before an application.

        Args:
            app: that answers requests.
            service: that it serves.
            paths: of the application, by which requests are counted that it does not see.
        """
        self._app, self._service, self.paths = app, service, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope.pop(ARRIVING, False):
            self._service.arriving -= 1
        call = Call.begin(scope["headers"], self._service.settings.timeout)
        put_call(scope, call)
        answer = _Answer(send, call.id, scope.pop(CLOSING, lambda: False))
        self._service.metrics.active.inc()
        try:
            with call.exits:
                await self._answer(scope, call, receive, answer)
        finally:
            self._service.metrics.active.dec()
            self._record(scope, call, answer.status)

    async def _answer(self, scope: Scope, call: Call, receive: Receive, answer: "_Answer") -> None:
        dialect = dialect_of(scope["path"])
        try:
            self._check(scope, dialect)
            call.exits.enter_context(self._service.accepted())
            call.body = await self._body(scope, call, receive)
            call.exits.enter_context(self._service.answering())
            await self._run(scope, receive, answer)
        except _GoneError:
            answer.status = CLIENT_GONE
        except RequestError as failure:
            call.problem = failure.logged
            await answer.fail(dialect, failure)
        except Exception as error:
            if answer.gone:  # perhaps in a group of errors, of an answer in parts
                answer.status = CLIENT_GONE
                return
            # A fault of this program: it costs this request alone.
            call.problem = "a fault of the server"
            journal.write_fault("fault", error, request_id=call.id)
            await answer.fail(
                dialect, RequestError(500, "a fault of the server, which its log has")
            )

    def _check(self, scope: Scope, dialect: Dialect) -> None:
        """Refuse what can be refused before the body is read."""
        path, headers = scope["path"], scope["headers"]
        if self._service.stopping and is_work(path):
            failure = busy("the server stops", 1.0)
            failure.headers |= _CLOSE
            raise failure
        if self._service.crowded and is_work(path):
            raise busy("too many requests wait already", self._service.seconds_to_clear())
        by_header = needs_key(path) and dialect.scheme is not None
        if by_header and not self._service.keys.allow(dialect.key(headers)):
            failure = dialect.refusal()
            failure.headers |= _CLOSE
            raise failure
        coding = header(headers, b"content-encoding").strip().lower()
        if coding not in (b"", b"identity"):
            text = f"Content-Encoding {coding[:40]!r}: bodies are taken as they are, not compressed"
            raise RequestError(415, text, dict(_CLOSE))

    async def _body(self, scope: Scope, call: Call, receive: Receive) -> bytes:
        """Read the body, which may be no longer than the settings say."""
        most = self._service.settings.max_body
        too_large = RequestError(413, f"the body has more than {most} bytes", dict(_CLOSE))
        length = header(scope["headers"], b"content-length")
        if length.isdigit() and int(length[:18]) > most:
            raise too_large
        body, hold = bytearray(), call.exits.enter_context(self._service.bodies.held())
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(call.left, 0.001))
            except asyncio.TimeoutError:
                text = "the time of the request was over before its body was there"
                raise RequestError(408, text, dict(_CLOSE)) from None
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            if len(body) > most:
                raise too_large
            if not hold(len(body)):
                failure = busy("too many long bodies are there already", 1.0)
                failure.headers |= _CLOSE
                raise failure
            if not message.get("more_body", False):
                return bytes(body)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        """Run the application, until it has answered or nobody waits for the answer any more."""
        gone = asyncio.ensure_future(_disconnected(receive))
        work = asyncio.ensure_future(self._app(scope, _nothing, answer.send))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not answer.complete:
                raise _GoneError
            await work
        finally:
            for task in (work, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    def _record(self, scope: Scope, call: Call, status: int) -> None:
        path = scope["path"]
        known = path if path in self.paths else "unmatched"
        route: str = getattr(scope.get("route"), "path", None) or known
        seconds = time.monotonic() - call.begun
        self._service.metrics.answered(route, status, call.model, seconds)
        if not is_work(path) and status < 400:
            return  # probes, every few seconds
        journal.write(
            "request", request_id=call.id, method=scope["method"], route=route, status=status,
            seconds=round(seconds, 4), model=call.model or None, texts=call.texts,
            characters=call.characters, problem=call.problem or None,
        )  # fmt: skip


class _GoneError(Exception):
    """The client has left."""


class _Answer:
    """The response of one request on its way out."""

    def __init__(self, send: Send, request_id: str, closing: Callable[[], bool]) -> None:
        self._send, self._id, self._closing = send, request_id.encode("latin-1"), closing
        self.status, self.complete, self.gone = 0, False, False

    async def send(self, message: Message) -> None:
        """Pass a part on, with the id of the request."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = (b"x-request-id", self._id), _NO_SNIFFING
            message["headers"] = [*message.get("headers", []), *added]
        elif not message.get("more_body", False):
            self.complete = True
        try:
            await self._send(message)
        except RuntimeError:  # uvloop's, of a connection that was closed in this turn of the loop
            self.gone = self._closing()
            if self.gone:
                raise _GoneError from None
            raise

    async def fail(self, dialect: Dialect, failure: RequestError) -> None:
        """Answer with a failure; a response that has begun stays as it is."""
        if self.status:
            return
        status, headers, body = dialect.response(failure)
        headers["content-length"] = str(len(body))
        encoded = [(key.lower().encode(), value.encode("latin-1", "replace"))
                   for key, value in headers.items()]  # fmt: skip
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": encoded})
            await self.send({"type": "http.response.body", "body": body})
        except _GoneError:
            self.status = CLIENT_GONE


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Message:
    """The body was read already, and whether the client has gone is seen to."""
    await asyncio.Event().wait()
    raise AssertionError
