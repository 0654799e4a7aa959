"""The server process: its socket, signals and shutdown.

Granian serves connections and HTTP in a thread of Rust (hyper). It limits headers, trailers and
pipelined data, isolates slow clients, and calls the event loop only for complete requests. What it
has no setting for is set here on its socket: exclusive use of the port, and the time that a client
may read nothing.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from tfexport.errors import ConfigError
from tfexport.gc_pause import collect_seldom
from tfexport.runtime.parallel import SWITCH_INTERVAL
from tfexport.serve import request_log
from tfexport.serve.access import is_local
from tfexport.serve.app import make_app
from tfexport.serve.service import Service

# The time limit for a request's line and headers, from the start of the connection or the end of
# the previous request. It is longer than the minute for which proxies keep connections, so that
# proxies close first and seldom write to a connection that is being closed.
HEAD_SECONDS = 75
HEAD_BYTES = 64 << 10
STALL_SECONDS = 30  # seconds within which a client must read something
SEND_BUFFER = 128 << 10
TAKING_SECONDS = 10.0  # seconds that a stopping server waits for clients to read their responses
# Threads that read and write connections. With one, `/health/live` of a full server takes twice as
# long; with four, they take time from the event loop.
RUNTIME_THREADS = 2
BACKLOG = 65_535  # connections that wait to be accepted; the system may have a lower limit
_REST_OF_FILES = 256  # open files that are not connections
_TICK = 0.02
_FIRST_INHERITED = 3  # number of the first file descriptor from systemd


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket that no other server uses, without accepting connections.

    Raises:
        ConfigError: the address is in use or invalid.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    try:
        if os.name == "posix":  # on Windows it would share the port with another program
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The system buffers this much that a client has not read; by default megabytes.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_SECONDS * 1000)
        found.bind(address)
        found.listen(BACKLOG)  # at once: until one listens, two sockets can be bound to a port
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    return found


def bind_path(path: Path) -> socket.socket:
    """Bind a Unix socket at a path; see ``bind``.

    Raises:
        ConfigError: the path is in use, or cannot be used.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError(f"cannot listen on {path}: this system has no Unix sockets")
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
    """Remove the socket file of a server that has ended, but not of a running one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def inherited() -> socket.socket | None:
    """The socket that systemd has opened for the server; None without one.

    Connections wait in it while the server restarts.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if os.environ.get("LISTEN_FDS") != "1":
        raise ConfigError(f"{os.environ.get('LISTEN_FDS')} sockets were passed, expected 1")
    found = socket.socket(fileno=_FIRST_INHERITED)
    found.setblocking(False)
    return found


def url_of(bound: socket.socket) -> str:
    """The URL of a server for a browser on this machine, or the path of a Unix socket."""
    if not isinstance(bound.getsockname(), tuple):
        return f"unix:{bound.getsockname()}"
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def most_connections(wanted: int) -> int:
    """Raise the system's limit of open files if needed; return the connections that fit."""
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
    """Granian's server in this process, on a socket that is already bound."""

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
        number = self._bound.detach()  # closes the socket object
        state = (number, BACKLOG) if sys.platform == "win32" else (number, unix, BACKLOG)
        self._ssp, self._shd, self._sfd = None, SocketHolder(*state), number  # type: ignore


class Server:
    """A server that stops after all accepted requests are answered.

    Attributes:
        interrupted: whether a user's Ctrl-C ended it.
    """

    def __init__(
        self, service: Service, bound: socket.socket, on_start: Callable[[], object]
    ) -> None:
        """Prepare the server; see ``run``."""
        self._service, self._bound, self._on_start = service, bound, on_start
        self.interrupted = False
        self._ending: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until a signal ends it."""
        app = make_app(self._service, local=is_local(self._bound.getsockname()[0]))
        granian = _Granian(self._bound, app, self._service.settings.max_connections)
        self._ended = asyncio.Event()
        handlers = {signal.SIGTERM: self._end, signal.SIGINT: self._end}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._reload
        with handling_signals(handlers):
            serving = asyncio.ensure_future(granian.serve())
            ended = asyncio.ensure_future(self._ended.wait())
            await asyncio.sleep(0)
            self._on_start()
            await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if serving.done():
                await serving  # raises the error
                return
            granian.stop()  # type: ignore[no-untyped-call]
            if self._ending is not None and self._ending.done():
                await asyncio.wait([serving], timeout=TAKING_SECONDS)
            if not serving.done():
                request_log.write(
                    "dropped", level="warning", problem="clients have not read their responses"
                )

    def _end(self, number: int) -> None:
        """Take no more work and finish the running requests; the second time, stop at once."""
        self.interrupted |= number == signal.SIGINT
        if self._ending is not None:
            self._ended.set()
            return
        self._service.stopping = True
        request_log.write("stopping", active=len(self._service.active))
        self._ending = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        # Requests that arrive meanwhile are refused with a message. Accepted requests are answered
        # by their deadlines; after that the server does not wait for clients to read.
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


@contextlib.contextmanager
def handling_signals(handlers: Mapping[signal.Signals, Callable[[int], None]]) -> Iterator[None]:
    """Call handlers in the running event loop, each with its signal's number."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handle in handlers.items():
        if sys.platform == "win32":
            passed_on = functools.partial(loop.call_soon_threadsafe, handle)
            signal.signal(number, lambda number, _, call=passed_on: call(number))
        else:  # it wakes a loop that waits; ``signal.signal`` alone does not
            loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            if sys.platform != "win32":
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def run(service: Service, bound: socket.socket, on_start: Callable[[], object]) -> bool:
    """Serve until a signal ends it; returns whether a user's Ctrl-C did.

    Args:
        service: the service, which is closed at the end.
        bound: the socket, which is closed at the end; see ``bind``.
        on_start: called when connections are accepted.
    """
    request_log.take_over("_granian", "granian", "asyncio")
    logging.getLogger("_granian").setLevel(logging.ERROR)  # it warns that embedding is experimental
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of forms of callers
    server = Server(service, bound, on_start)
    sys.setswitchinterval(SWITCH_INTERVAL)
    collect_seldom()
    try:
        with request_log.in_a_thread():
            asyncio.run(server.serve())
    finally:
        service.close()
    return server.interrupted
