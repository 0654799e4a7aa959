"""The process of a server: its socket, its signals, its end.

Connections and HTTP are granian's, which reads and writes in a thread of Rust (hyper): it bounds
heads, trailers and what a connection sends ahead, keeps slow clients from everybody else, and asks
the event loop only for requests that are there. What it has no setting for is set here on the
socket that it is given: a port that is nobody else's, and how long a client may take nothing.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from tfexport.errors import ConfigError
from tfexport.serve import request_log
from tfexport.serve.access import is_local
from tfexport.serve.app import make_app
from tfexport.serve.service import Service

# In which the line and headers of a request have to be there, from the beginning of its connection
# or the end of the request before: longer than the minute for which proxies keep connections, so
# that these close first, and seldom write on one that is being closed here.
HEAD_SECONDS = 75
HEAD_BYTES = 64 << 10
STALL_SECONDS = 30  # in which a client has to take something of what it was sent
SEND_BUFFER = 128 << 10
TAKING_SECONDS = 10.0  # for which a server that ends waits for clients to take their answers
# Threads that read and write connections. With one, a full server's `/health/live` takes twice as
# long; with four, they take the interpreter's time from the event loop.
RUNTIME_THREADS = 2
BACKLOG = 65_535  # connections that wait to be accepted; the system's own limit is below
# Threads that decode need the interpreter between two steps, for less than a tenth of a
# millisecond; by default they would wait 5 ms for it whenever the event loop is busy.
_SWITCH_INTERVAL = 0.0002
_REST_OF_FILES = 256  # open files that are not connections
_TICK = 0.02
_FIRST_INHERITED = 3  # number of the first file that systemd hands over


def bind(host: str, port: int) -> socket.socket:
    """A socket on which nobody accepts connections yet, and which no other server has.

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
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_SECONDS * 1000)
        found.bind(address)
        found.listen(BACKLOG)  # now, as two may be bound to a port where none listens
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    return found


def bind_path(path: Path) -> socket.socket:
    """A socket of this machine at a path, which no other server has; see ``bind``.

    Raises:
        ConfigError: the path is taken, or cannot be.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError(f"cannot listen on {path}: this system has no such sockets")
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _remove_left(path)
        found.bind(str(path))
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {path}: {error}") from None
    return found


def _remove_left(path: Path) -> None:
    """Remove the socket that a server has left, but not that of one which runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def inherited() -> socket.socket | None:
    """The socket on which systemd listens for the server, if it has started it so.

    Connections wait in it while the server is restarted, and none is refused.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if os.environ.get("LISTEN_FDS") != "1":
        raise ConfigError(f"{os.environ.get('LISTEN_FDS')} sockets are handed over, not 1")
    found = socket.socket(fileno=_FIRST_INHERITED)
    found.setblocking(False)
    return found


def url_of(bound: socket.socket) -> str:
    """Where a browser on this machine finds a server; of a socket at a path, that path."""
    if not isinstance(bound.getsockname(), tuple):
        return f"unix:{bound.getsockname()}"
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def most_connections(wanted: int) -> int:
    """Connections that this process may have open: so many, if the system lets it."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:  # on Windows
        return min(wanted, 8192)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    return min(wanted, max(files - _REST_OF_FILES, 64))


class _Granian(Granian):
    """granian's server within this process, on a socket that is bound already."""

    def __init__(self, bound: socket.socket, app: object, connections: int) -> None:
        self._bound = bound
        super().__init__(
            app, interface=Interfaces.ASGINL, http=HTTPModes.http1, websockets=False,
            backlog=BACKLOG, backpressure=most_connections(connections), log_enabled=False,
            runtime_threads=RUNTIME_THREADS,
            http1_settings=HTTP1Settings(
                header_read_timeout=HEAD_SECONDS * 1000, max_buffer_size=HEAD_BYTES
            ),
        )  # fmt: skip

    def _init_shared_socket(self) -> None:
        unix = self._bound.family == getattr(socket, "AF_UNIX", None)
        number = self._bound.detach()  # which closes it
        state = (number, BACKLOG) if sys.platform == "win32" else (number, unix, BACKLOG)
        self._ssp, self._shd, self._sfd = None, SocketHolder(*state), number  # type: ignore


class Server:
    """A server, which ends when all that was accepted is answered.

    Attributes:
        interrupted: whether a user's Ctrl-C ended it.
    """

    def __init__(self, service: Service, bound: socket.socket, begun: Callable[[], object]) -> None:
        """Prepare one; see ``run``."""
        self._service, self._bound, self._begun = service, bound, begun
        self.interrupted = False
        self._ending: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until a signal ends it."""
        app = make_app(self._service, local=is_local(self._bound.getsockname()[0]))
        granian = _Granian(self._bound, app, self._service.settings.max_connections)
        self._ended = asyncio.Event()
        with self._signals():
            serving = asyncio.ensure_future(granian.serve())
            ended = asyncio.ensure_future(self._ended.wait())
            await asyncio.sleep(0)
            self._begun()
            await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if serving.done():
                await serving  # which says why
                return
            granian.stop()  # type: ignore[no-untyped-call]
            if self._ending is not None and self._ending.done():
                await asyncio.wait([serving], timeout=TAKING_SECONDS)
            if not serving.done():
                request_log.write(
                    "dropped", level="warning", problem="clients have not taken their answers"
                )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
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
            self._ended.set()
            return
        self._service.stopping = True
        request_log.write("stopping", active=self._service.active)
        self._ending = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        # Requests that arrive meanwhile are refused, so that their callers know. What was accepted
        # is answered by its deadline; who has not taken the answer then keeps nobody waiting.
        end = time.monotonic() + self._service.settings.timeout
        while self._service.active and time.monotonic() < end:
            await asyncio.sleep(_TICK)
        self._ended.set()

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
        bound: see ``bind``; it is closed at the end.
        begun: called when connections are accepted.
    """
    request_log.take_over("_granian", "granian", "asyncio")
    logging.getLogger("_granian").setLevel(logging.ERROR)  # it warns that embedding it is young
    server = Server(service, bound, begun)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with request_log.in_a_thread():
            asyncio.run(server.serve())
    finally:
        service.close()
    return server.interrupted
