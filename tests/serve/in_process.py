"""A server of ``Connection`` within this process, and clients that talk to it by hand."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from tfexport.serve.connections import Connection, Entrance, Headers
from tfexport.serve.server import bind

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
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


REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"


class RefusesSome:
    """An entrance that refuses the path /no."""

    entered = 0

    def refusal(self, path: str, headers: Headers) -> bytes | None:
        return REFUSED if path == "/no" else None

    def let_in(self) -> None:
        self.entered += 1
