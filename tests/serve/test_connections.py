"""Connections within this process: heads that do not end, clients that take nothing, too many."""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tfexport.serve import connections
from tfexport.serve.connections import Connection, Entrance, Headers
from tfexport.serve.server import bind

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
LONG = 8 << 20  # more than the system keeps of what a client does not take
Send = Callable[[Any], Awaitable[Any]]


class Server:
    """Answers requests with a text of some length.

    Attributes:
        ended: how many answers have ended, taken or not.
    """

    def __init__(self, length: int) -> None:
        self._length, self.ended, self.port = length, 0, 0
        self.state = ServerState()

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = {"type": "http.response.body", "body": b"x" * self._length, "more_body": True}
        await send(body)
        await send({"type": "http.response.body", "body": b""})
        self.ended += 1


@contextlib.asynccontextmanager
async def serving(
    length: int = 5, entrance: Entrance | None = None, idle: int = 5
) -> AsyncIterator[Server]:
    server = Server(length)
    config = uvicorn.Config(
        server, log_config=None, lifespan="off", ws="none", timeout_keep_alive=idle
    )
    loop = asyncio.get_running_loop()
    made = bind("127.0.0.1", 0)
    running = await loop.create_server(
        lambda: Connection(config, server.state, {}, entrance=entrance), sock=made
    )
    server.port = running.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        for connection in list(server.state.connections):
            connection.drop()  # type: ignore[union-attr]
        running.close()
        await running.wait_closed()


async def talk(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send parts, and read until the server closes."""
    return await asyncio.to_thread(_talk, port, parts, pause)


def _talk(port: int, parts: Sequence[bytes], pause: float) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 16):
                received += part
    return received


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([], b""),
        ([b"\r\n"] * 20, b""),
        ([HEAD], b"HTTP/1.1 408"),
        ([HEAD, *[b"a: b\r\n"] * 20], b"HTTP/1.1 408"),
    ],
)
def test_heads_that_do_not_end_are_given_up(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes], answer: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)

    async def run() -> bytes:
        async with serving() as server:
            return await talk(server.port, *parts, pause=0.05)

    found = asyncio.run(run())
    assert found[:12] in (answer, b"")  # the system may throw an answer away
    assert found or not answer or len(parts) > 1


def test_a_second_head_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)

    async def run() -> bytes:
        async with serving() as server:
            return await talk(server.port, HEAD + b"\r\n", HEAD, pause=0.1)

    found = asyncio.run(run())
    assert found.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in found


@pytest.mark.parametrize("endless", [b"a: b\r\n", b"x"])
def test_endless_heads_are_refused(endless: bytes) -> None:
    async def run() -> bytes:
        async with serving() as server:
            part = endless * (20_000 // len(endless))
            return await talk(server.port, HEAD + b"a: ", *[part] * 6, pause=0.02)

    # Closed long before its time is over; the system may throw the answer away.
    assert asyncio.run(run())[:12] in (b"HTTP/1.1 431", b"")


def test_a_long_body_is_no_head() -> None:
    body = b"x" * 200_000
    first = HEAD + b"Content-Length: 200000\r\n\r\n"

    async def run() -> bytes:
        async with serving() as server:
            last = HEAD + b"Connection: close\r\n\r\n"
            return await talk(server.port, first, body[:150_000], body[150_000:], last, pause=0.05)

    assert asyncio.run(run()).count(b"HTTP/1.1 200") == 2


REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"


class RefusesSome:
    """An entrance that refuses the path /no."""

    entered = 0

    def refusal(self, path: str, headers: Headers) -> bytes | None:
        return REFUSED if path == "/no" else None

    def let_in(self) -> None:
        self.entered += 1


def test_what_is_no_request_was_not_let_in() -> None:
    entrance = RefusesSome()

    async def run() -> bytes:
        async with serving(entrance=entrance) as server:
            return await talk(server.port, b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n")

    assert asyncio.run(run()).startswith(b"HTTP/1.1 400")
    assert entrance.entered == 0


def test_a_connection_goes_on_behind_a_refusal() -> None:
    no = b"POST /no?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    parts = [no + b"123456789", no, b"12345", b"6789", HEAD + b"\r\n", no + b"123456789"]

    async def run(*parts: bytes) -> tuple[bytes, int]:
        async with serving(entrance=RefusesSome()) as server:
            last = HEAD + b"Connection: close\r\n\r\n"
            return await talk(server.port, *parts, last, pause=0.03), server.ended

    found, ended = asyncio.run(run(*parts))
    assert found.count(REFUSED) == 3
    assert found.count(b"HTTP/1.1 200") == ended == 2
    # What is sent at once is answered in its order, refused or not.
    found, ended = asyncio.run(run(HEAD + b"\r\n" + no + b"123456789"))
    assert found.count(b"HTTP/1.1") == 3


def test_a_refused_connection_that_is_to_close_closes() -> None:
    async def run() -> bytes:
        async with serving(entrance=RefusesSome()) as server:
            head = b"GET /no HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            return await talk(server.port, head)

    assert asyncio.run(run()) == REFUSED


@pytest.mark.parametrize("path", [b"/yes", b"/no"])
def test_idle_connections_stay_open_longer_than_a_head_may_take(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    asked = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path

    async def run() -> tuple[bytes, float]:
        async with serving(entrance=RefusesSome(), idle=1) as server:
            begun = time.monotonic()
            return await talk(server.port, asked, asked, pause=0.4), time.monotonic() - begun

    found, seconds = asyncio.run(run())
    assert found.count(b"HTTP/1.1") == 2
    assert seconds > 1.3  # and is closed a second after the second request


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not on Windows")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (HEAD + b"\r\n", HEAD + b"\r\n"),  # idle between two requests
        (b"", HEAD + b"\r\n"),  # a new connection
        (HEAD, b"\r\n"),  # within a head
    ],
)
def test_time_is_not_over_while_something_that_has_come_is_unread(
    monkeypatch: pytest.MonkeyPatch, first: bytes, second: bytes
) -> None:
    import uvloop

    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)

    async def run() -> bytes:
        async with serving(idle=1) as server:
            near, far = socket.socketpair()
            client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            with near, far, client:
                client.sendall(first)
                await asyncio.sleep(0.2)
                answered = bool(first.endswith(b"\r\n\r\n"))
                assert server.ended == answered

                def work() -> None:  # as other connections do, past the end of the time
                    near.recv(1)
                    client.sendall(second)
                    time.sleep(1.5)

                asyncio.get_running_loop().add_reader(near, work)
                far.send(b"x")
                found = await asyncio.to_thread(client.recv, 1 << 16)
                if answered:
                    found = await asyncio.to_thread(client.recv, 1 << 16)
                asyncio.get_running_loop().remove_reader(near)
                assert server.ended == answered + 1
                return found

    assert uvloop.run(run()).startswith(b"HTTP/1.1 200")


def ask(port: int) -> socket.socket:
    """A client that has asked, and takes nothing by itself."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(HEAD + b"Connection: close\r\n\r\n")
    return client


def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.3)

    async def run() -> None:
        async with serving(LONG) as server:
            with ask(server.port):
                end = time.monotonic() + 20
                while not server.ended or server.state.connections:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.05)

    asyncio.run(run())


def test_a_client_that_takes_its_answer_slowly_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 1.0)

    def read(client: socket.socket) -> int:
        found = 0
        while part := client.recv(1 << 18):
            found += len(part)
            time.sleep(0.1)
        return found

    async def run() -> int:
        async with serving(LONG) as server:
            with ask(server.port) as client:
                return await asyncio.to_thread(read, client)

    begun = time.monotonic()
    assert asyncio.run(run()) > LONG
    assert time.monotonic() - begun > 1.5


def test_too_many_connections_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most", 2)

    async def run() -> tuple[bytes, bytes]:
        async with serving() as server:
            held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            refused = await talk(server.port)
            held[0][1].close()
            await asyncio.sleep(0.1)
            taken = await talk(server.port, HEAD + b"Connection: close\r\n\r\n")
            held[1][1].close()
            return refused, taken

    refused, taken = asyncio.run(run())
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1\r\n" in refused
    assert taken.startswith(b"HTTP/1.1 200")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
