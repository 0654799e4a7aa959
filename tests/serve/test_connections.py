"""Connections within this process: heads that do not end, clients that take nothing, too many."""

import asyncio
import logging
import socket
import time

import pytest

from tests.serve.in_process import HEAD, REFUSED, RefusesSome, serving, talk
from tfexport.serve import connections
from tfexport.serve.connections import Connection

LONG = 8 << 20  # more than the system keeps of what a client does not take


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
