"""The process of a server: its socket, its signals, its end."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import uvicorn

from tfexport.errors import ConfigError
from tfexport.serve import journal
from tfexport.serve.app import make_app
from tfexport.serve.connections import IDLE_SECONDS, Connection, most_connections
from tfexport.serve.door import Door
from tfexport.serve.gate import Gate
from tfexport.serve.listener import BACKLOG, Listener
from tfexport.serve.service import Service

SEND_BUFFER = 128 << 10
TAKING_SECONDS = 5.0  # for which a server that ends waits for clients to take their answers
# Threads that decode need the interpreter between two steps, for less than a tenth of a
# millisecond; by default they would wait 5 ms for it whenever the event loop is busy.
_SWITCH_INTERVAL = 0.0002
_TICK = 0.02


def bind(host: str, port: int) -> socket.socket:
    """A socket on which nobody listens yet.

    Raises:
        ConfigError: the address is taken, or is none.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    try:
        if os.name == "posix":  # elsewhere it would share the port with whoever has it
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The system keeps this much of what a client has not taken, and megabytes otherwise.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        found.bind(address)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    return found


def url_of(bound: socket.socket) -> str:
    """Where a browser on this machine finds a server."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, with signals of its own: it ends when all that was accepted is answered.

    Attributes:
        interrupted: whether a user's Ctrl-C ended it.
    """

    def __init__(self, service: Service, begun: Callable[[], object]) -> None:
        journal.take_over("uvicorn", "uvicorn.error", "asyncio")
        Connection.most, app = most_connections(), make_app(service)
        # Browsers of other origins see an answer only with headers that the application gives it.
        door = Door(service, app.paths) if isinstance(app, Gate) else None
        super().__init__(uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none",
            backlog=BACKLOG, server_header=False, proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            http=partial(Connection, entrance=door),  # type: ignore[arg-type]
        ))  # fmt: skip
        self._service, self._begun, self.interrupted = service, begun, False
        self._listeners: list[Listener] = []
        self._ending: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end, whatever brings it: a loop that still listens does not close."""
        try:
            await super().serve(sockets)
        finally:
            await self._stop_listening()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        if sys.platform == "win32":  # its event loop has no readers, and accepts by itself
            await super().startup(sockets)
        else:
            await super().startup([])
            self._listeners = [
                Listener(bound, self._connection, self._room) for bound in sockets or ()
            ]
        self._begun()

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            self.config, self.server_state, self.lifespan.state
        )
        return made

    def _room(self) -> int:
        return Connection.most - len(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs."""
        loop = asyncio.get_running_loop()

        def pass_on(handle: Callable[[int], None]) -> Callable[[int, FrameType | None], object]:
            return lambda number, _: loop.call_soon_threadsafe(handle, number)

        handlers = {signal.SIGTERM: self._end, signal.SIGINT: self._end}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._reload
        before = {number: signal.signal(number, pass_on(handle))
                  for number, handle in handlers.items()}  # fmt: skip
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int) -> None:
        """Take no more work, and end with what there is; at once if asked a second time."""
        self.interrupted |= number == signal.SIGINT
        if self._ending is not None:
            self.should_exit = self.force_exit = True
            return
        self._service.stopping = True
        journal.write("stopping", active=self._service.active)
        self._ending = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        # Requests that arrive meanwhile are refused, so that their callers know. What was accepted
        # is answered by its deadline; who has not taken the answer then keeps nobody waiting.
        end = time.monotonic() + self._service.settings.timeout + TAKING_SECONDS
        while self._service.active and time.monotonic() < end:
            await asyncio.sleep(_TICK)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, in the end those whose clients do not take their answers."""
        asyncio.get_running_loop().call_later(TAKING_SECONDS, self._drop_connections)
        await self._stop_listening()
        await super().shutdown(sockets)

    async def _stop_listening(self) -> None:
        while self._listeners:
            await self._listeners.pop().close()

    def _drop_connections(self) -> None:
        left = [one for one in self.server_state.connections if isinstance(one, Connection)]
        journal.write("dropped", connections=len(left))
        for connection in left:
            connection.drop()

    def _reload(self, number: int) -> None:
        before = self._reloading

        async def reload() -> None:
            if before is not None:
                await asyncio.wait([before])
            await self._service.reload()

        self._reloading = asyncio.ensure_future(reload())


def run(service: Service, bound: socket.socket, begun: Callable[[], object]) -> bool:
    """Serve until a signal ends it; returns whether a user's Ctrl-C did.

    Args:
        service: is closed at the end.
        bound: see ``bind``.
        begun: called when connections are accepted.
    """
    server = Server(service, begun)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        server.run([bound])
    finally:
        service.close()
    return server.interrupted
