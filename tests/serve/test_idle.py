"""Connections on which no request comes for a while."""

import asyncio
import socket
import sys
import time

import pytest

from tests.serve.in_process import HEAD, RefusesSome, serving, talk
from tfexport.serve import connections


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


@pytest.mark.parametrize("path", [b"/yes", b"/no"])
def test_a_head_that_begins_in_the_packet_of_a_request_has_its_time(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    asked = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path

    async def run() -> bytes:
        async with serving(entrance=RefusesSome(), idle=8) as server:
            return await talk(server.port, asked + HEAD)

    found = asyncio.run(run())
    assert found.count(b"HTTP/1.1") == 2
    assert b"HTTP/1.1 408" in found


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
                answered = first.endswith(b"\r\n\r\n")
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
