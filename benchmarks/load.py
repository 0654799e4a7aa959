"""A load for a server: requests at Poisson times, or as many at a time as there are connections.

python -m benchmarks.load JOB, where JOB is a JSON object of Load's fields; prints a JSON object. A
separate process, so that the load does not wait for the server's interpreter.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Load:
    """Requests to a server on this machine.

    Attributes:
        port: of the server.
        path: of the requests.
        bodies: file with a JSON array of bodies, of which each request draws one.
        seconds: during which requests are sent.
        rate: requests a second; 0 sends the next one when one is answered.
        connections: at a time, without a rate.
        seed: of the draws.
    """

    port: int
    path: str
    bodies: str
    seconds: float
    rate: float = 0.0
    connections: int = 64
    seed: int = 0


class _Connections:
    """Connections to the server, which requests take and give back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """A request's status and answer."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(answer.partition("content-length:")[2].partition("\r\n")[0])
        content = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(answer.split(" ", 2)[1]), content


async def run(load: Load) -> dict[str, Any]:
    """Send requests; latencies in seconds, of those with status 200, and the number of each."""
    draw = random.Random(load.seed)
    given = json.loads(Path(load.bodies).read_text(encoding="utf-8"))
    bodies = [json.dumps(body).encode() for body in given]
    connections, statuses = _Connections(load.port), Counter[int]()
    latencies: list[float] = []
    begun = time.perf_counter()

    async def send(due: float) -> None:
        status, _ = await connections.post(load.path, draw.choice(bodies))
        statuses[status] += 1
        if status == 200:
            latencies.append(time.perf_counter() - due)

    async def one_after_another() -> None:
        while time.perf_counter() - begun < load.seconds:
            await send(time.perf_counter())

    if load.rate:
        tasks, due = [], begun
        while due - begun < load.seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(send(due)))
            due += draw.expovariate(load.rate)
        await asyncio.gather(*tasks)
    else:
        await asyncio.gather(*(one_after_another() for _ in range(load.connections)))
    spent = time.perf_counter() - begun
    return {"seconds": spent, "statuses": dict(statuses), "latencies": latencies}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Load(**json.loads(sys.argv[1]))))))
