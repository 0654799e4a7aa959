"""Connections are accepted as they come, however long a turn of the event loop takes."""

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from tfexport.serve import listener
from tfexport.serve.listener import Listener

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not on Windows")

COUNT = 100


class Greeting(asyncio.Protocol):
    """Says hello, and counts the connections that are open."""

    opened = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).opened += 1
        cast(asyncio.Transport, transport).write(b"hello")


@pytest.fixture(autouse=True)
def _none_opened() -> None:
    Greeting.opened = 0


def run(make: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
    import uvloop

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        uvloop.run(make(bound))


def connect(bound: socket.socket) -> socket.socket:
    return socket.create_connection(bound.getsockname(), timeout=10)


@contextlib.asynccontextmanager
async def listening(bound: socket.socket, room: int = 10_000) -> AsyncIterator[Listener]:
    found = Listener(bound, Greeting, lambda: room - Greeting.opened)
    try:
        yield found
    finally:
        await found.close()


async def turns(holds: Callable[[], bool], most: int = 10_000) -> int:
    """Turns of the event loop until something holds."""
    for count in range(most):
        if holds():
            return count
        await asyncio.sleep(0)
    raise AssertionError(f"not after {most} turns")


def test_all_that_wait_are_accepted_in_one_turn() -> None:
    async def accept(bound: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            async with listening(bound):  # while the loop has no turn
                clients = [stack.enter_context(connect(bound)) for _ in range(COUNT)]
                assert await turns(lambda: Greeting.opened == COUNT) < COUNT / 4
            for client in clients:
                assert client.recv(5) == b"hello"

    run(accept)


def test_where_there_is_no_room_they_are_accepted_by_few() -> None:
    async def accept(bound: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            async with listening(bound, room=COUNT // 2):
                for _ in range(COUNT * 2):
                    stack.enter_context(connect(bound))
                before, most = 0, 0
                while Greeting.opened < COUNT * 2:
                    await asyncio.sleep(0)
                    if before >= COUNT // 2:
                        most = max(most, Greeting.opened - before)
                    before = Greeting.opened
                assert 0 < most <= listener.FEW

    run(accept)


def test_a_closed_listener_leaves_connections_open_and_takes_no_more() -> None:
    async def close(bound: socket.socket) -> None:
        async with listening(bound) as found:
            client = connect(bound)
            await turns(lambda: Greeting.opened == 1)
            await found.close()
            with connect(bound):  # the system's queue takes it
                await asyncio.sleep(0.05)
                assert Greeting.opened == 1
            assert client.recv(5) == b"hello"
            client.close()

    run(close)


def test_clients_that_have_left_are_forgotten() -> None:
    async def leave(bound: socket.socket) -> None:
        async with listening(bound):
            for _ in range(COUNT):
                client = connect(bound)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()  # which resets it
            with connect(bound) as client:
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 5) == b"hello"

    run(leave)


class _NoFiles:
    """A socket whose system has no file left for a connection."""

    def __init__(self, bound: socket.socket) -> None:
        self._bound, self.refusals = bound, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)

    def accept(self) -> tuple[socket.socket, Any]:
        self.refusals += 1
        if self.refusals == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._bound.accept()


def test_without_files_it_waits_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listener, "RETRY_SECONDS", 0.2)

    async def starve(bound: socket.socket) -> None:
        async with listening(_NoFiles(bound)):  # type: ignore[arg-type]
            begun = time.monotonic()
            with connect(bound) as client:
                while Greeting.opened == 0:
                    await asyncio.sleep(0.01)
                assert time.monotonic() - begun > 0.15
                assert client.recv(5) == b"hello"

    run(starve)
    assert '"not accepting"' in capsys.readouterr().err
