"""Connections of clients: what is too slow or too much of them before and behind a request."""

import asyncio
import selectors
import urllib.parse
from typing import Any, Protocol, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_SECONDS = 20.0  # in which a request's line and headers have to be there
# A connection stays open between two requests: longer than the minute for which proxies keep
# theirs, so that these close first, and seldom write on one that is being closed here.
IDLE_SECONDS = 75
HEAD_BYTES = 64 << 10
STALL_SECONDS = 30.0  # in which a client has to take something of what it was sent
_REST_OF_FILES = 256  # open files that are not connections

Headers = list[tuple[bytes, bytes]]
# In the scope of a request at which the application has not looked yet: whether all of it is there.
ARRIVING = "tfexport.arriving"
CLOSING = "tfexport.closing"  # there too: says whether the connection is closed, or about to be


class Entrance(Protocol):
    """Who looks at requests before anything is made of them."""

    def refusal(self, path: str, headers: Headers) -> bytes | None:
        """The whole response to a request that is not let in; None if it is."""

    def let_in(self) -> None:
        """Count a request that is there, until the application looks at it and takes it off."""


def most_connections() -> int:
    """Connections that the system lets this process have open, as many as may be."""
    try:
        import resource
    except ImportError:  # on Windows
        return 8192
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    return max(files - _REST_OF_FILES, 64)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with limits that it has not."""

    most = 1 << 20  # connections of the server

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        entrance: Entrance | None = None,
    ) -> None:
        """Make one for each connection; see uvicorn's.

        Args:
            config: of the server.
            server_state: that all connections share.
            app_state: of the application.
            entrance: of the server; without one every request is let in.
        """
        super().__init__(config, server_state, app_state, _loop)
        self._entrance, self._refused = entrance, False
        self._in_head, self._head_bytes = False, 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._forget_head()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and refuse a head that does not end."""
        before = self._in_head
        super().data_received(data)
        running = self.cycle is not None and not self.cycle.response_complete
        if running or (self._idle and not self._in_head) or self.transport.is_closing():
            return  # what comes behind a request has its turn later
        self._await_head()
        if self._in_head and before:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[CLOSING] = self.transport.is_closing

    def on_headers_complete(self) -> None:
        """A request is there, but for its body."""
        self._in_head = False
        self._forget_head()
        running = self.cycle is not None and not self.cycle.response_complete
        entrance = None if running or self.expect_100_continue else self._entrance
        if entrance is None:
            super().on_headers_complete()
            return
        path = urllib.parse.unquote(self.url.partition(b"?")[0].decode("latin-1"))
        answer = entrance.refusal(path, self.headers)
        if answer is None:
            super().on_headers_complete()  # which may find that it is no request
            cast(dict[str, Any], self.scope)[ARRIVING] = False  # its body is not there yet
            return
        self._refused = True
        self.transport.write(answer)
        if not self.parser.should_keep_alive():
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, unless its request was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there, or over if it was refused."""
        if not self._refused:
            scope = cast(dict[str, Any], self.scope)
            if self._entrance is not None and ARRIVING in scope:
                self._entrance.let_in()
                scope[ARRIVING] = True
            super().on_message_complete()
        elif not self.transport.is_closing():
            self._refused = False
            self._keep_alive()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have begun behind this one."""
        super().on_response_complete()
        if self._idle and self._in_head:
            self._await_head()

    def pause_writing(self) -> None:
        """Watch a client that takes less than it is sent."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop watching it."""
        super().resume_writing()
        self._stop_watching()

    def drop(self) -> None:
        """Close at once, whatever the client has not taken."""
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no further request has come."""
        if self._has_unread():
            self._keep_alive()
        else:
            super().timeout_keep_alive_handler()

    @property
    def _idle(self) -> bool:
        """Whether every request that was there is answered."""
        return self.timeout_keep_alive_task is not None

    def _has_unread(self) -> bool:
        """Whether something has come that is not read yet: in a busy loop timers may be first."""
        bound = self.transport.get_extra_info("socket")
        if bound is None or bound.fileno() < 0:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(bound.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_head)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head(self) -> None:
        self._head_timer = None
        if self._has_unread():
            self._await_head()
        elif self._in_head:
            self._refuse(b"408 Request Timeout")
        else:  # it has asked for nothing
            self.transport.close()

    def _refuse(self, status: bytes, header: bytes = b"") -> None:
        head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n"
        self.transport.write(head + header + b"\r\n")
        self.transport.close()

    def _watch(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self._drop_stalled, unsent)

    def _drop_stalled(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.drop()
        else:
            self._watch()

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
