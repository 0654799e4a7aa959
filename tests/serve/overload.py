"""A server under several times the load that it can take: python -m tests.serve.overload BUNDLE.

A load over a few connections, of which memory has to be flat, then one over as many as the server
takes, of which each may take so much. Every answer has to be right, or 503 with Retry-After, and
service as before within a second after the last answer of the load. The load comes from this
process, the server has one of its own.
"""

import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import click

from tests.serve.probe import probing
from tests.serve.servers import Server, serving
from tests.support.paths import REPOSITORY
from tfexport.runtime import Translator
from tfexport.serve import Settings

CONNECTIONS = 64  # at a time, to measure what the server can do
WAIT = 90.0  # seconds for an answer, after which it counts as lost
FILES = 256  # open files of this process that are not connections
FEW = 2_000  # connections of the load by which memory is flat: all of them are used in seconds
FLAT = 8.0  # MB by which the second half of that load may need more than the first
LEFT = 5.0  # seconds in which requests under way at the end of a load have to be answered
A_CONNECTION = 0.04  # MB that a connection may take


@dataclass(frozen=True)
class Case:
    """A request, as bytes, and the translation that answers it."""

    request: bytes
    expected: str


@dataclass
class Outcome:
    """What became of requests.

    Attributes:
        counts: of "right", "refused", "wrong", "no Retry-After", other statuses and lost ones.
        unsent: requests for which this process had no connection left.
        seconds: from the first request to the last answer.
        sending: from the first request to the last.
        memory: the server's resident MB, each second.
        connections: that were open then.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unsent: int = 0
    seconds: float = 0.0
    sending: float = 0.0
    memory: list[float] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return sum(self.counts.values())

    @property
    def bad(self) -> dict[str, int]:
        return {kind: count for kind, count in self.counts.items()
                if kind not in ("right", "refused")}  # fmt: skip

    def growth(self) -> float:
        """MB that the second half needed more than the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half])


class _Client(asyncio.Protocol):
    """A connection, for a request at a time."""

    def __init__(self) -> None:
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if end and length and len(body) >= int(length[1]) and not self._answer.done():
            self._answer.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError("closed without an answer"))
            self._answer.exception()
        self.transport = None

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer."""
        if self.transport is None:
            raise ConnectionResetError("closed before a request")
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self.transport.write(request)
        head, body = await asyncio.wait_for(self._answer, WAIT)
        return head, body


class Load:
    """Requests to one server."""

    def __init__(self, server: Server, cases: Sequence[Case]) -> None:
        self._server, self._cases, self._next, self._under_way = server, cases, 0, 0
        self._idle = deque[_Client]()

    async def ask(self, outcome: Outcome) -> str:
        """Send the next request; what became of it, which is counted."""
        case = self._cases[self._next % len(self._cases)]
        self._next += 1
        try:
            head, body = await self._answer(case.request)
        except (OSError, asyncio.TimeoutError) as error:
            kind = f"lost: {type(error).__name__}"
        else:
            kind = _kind(case, head, body)
        outcome.counts[kind] += 1
        return kind

    async def _answer(self, request: bytes) -> tuple[bytes, bytes]:
        while self._idle and self._idle[-1].transport is None:
            self._idle.pop()
        if self._idle:
            client = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(_Client, "127.0.0.1", self._server.port)
        self._under_way += 1
        try:
            found = await client.ask(request)
        except BaseException:
            client.close()
            raise
        finally:
            self._under_way -= 1
        self._idle.append(client)
        return found

    async def close(self) -> None:
        """Close the connections, or they would warn that they were left open."""
        for client in self._idle:
            client.close()
        while any(client.transport is not None for client in self._idle):
            await asyncio.sleep(0.01)

    async def capacity(self, seconds: float) -> float:
        """Requests a second, with as many at a time as there are connections."""
        outcome, begun = Outcome(), time.monotonic()

        async def one_after_another() -> None:
            while time.monotonic() - begun < seconds:
                await self.ask(outcome)

        await asyncio.gather(*(one_after_another() for _ in range(CONNECTIONS)))
        assert not outcome.bad, outcome.counts
        return outcome.counts["right"] / (time.monotonic() - begun)

    async def put(self, rate: float, seconds: float, most: int) -> Outcome:
        """Send so many requests a second, whatever becomes of those before.

        Args:
            rate: of requests, a second.
            seconds: for which they are sent.
            most: that may be under way, which are as many connections.
        """
        outcome, begun = Outcome(), time.monotonic()
        asked = set[asyncio.Task[str]]()
        sent, measured = 0, 0
        while (now := time.monotonic() - begun) < seconds:
            for _ in range(min(int(now * rate) - sent, 200)):
                if len(asked) >= most:
                    outcome.unsent += 1
                    sent += 1
                    continue
                task = asyncio.ensure_future(self.ask(outcome))
                asked.add(task)
                task.add_done_callback(asked.discard)
                sent += 1
            if now >= measured:
                outcome.memory.append(resident(self._server))
                outcome.connections.append(len(self._idle) + self._under_way)
                measured += 1
            await asyncio.sleep(0.001)
        outcome.sending = time.monotonic() - begun
        while asked:
            await asyncio.wait(asked)
        outcome.seconds = time.monotonic() - begun
        return outcome

    async def recovery(self, seconds: float = LEFT + 3) -> list[tuple[float, str, float]]:
        """What becomes of one request after another: when it was sent, what it got, and when."""
        begun, found = time.monotonic(), []
        while (now := time.monotonic() - begun) < seconds:
            kind = await self.ask(Outcome())
            found.append((now, kind, time.monotonic() - begun))
            await asyncio.sleep(0.02)
        return found


def _slowest(after: Sequence[tuple[float, str, float]], since: float) -> float:
    """Seconds of the slowest answer to requests that were sent later than a time."""
    return max((end - sent for sent, _, end in after if sent > since), default=0.0)


def _kind(case: Case, head: bytes, body: bytes) -> str:
    status = head[9:12].decode()
    if status == "503":
        return "refused" if b"\r\nretry-after: " in head.lower() else "no Retry-After"
    if status != "200":
        return status
    return "right" if json.loads(body)["translations"][0]["text"] == case.expected else "wrong"


def resident(server: Server) -> float:
    """MB of the server's memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def make_cases(bundle: Path, texts: Sequence[str]) -> list[Case]:
    """Requests of one text each, with what ``Translator`` makes of it."""
    found = Translator(bundle).translate(list(texts))
    cases = []
    for text, result in zip(texts, found, strict=True):
        body = json.dumps({"texts": [text]}).encode()
        head = (
            "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        cases.append(Case(head.encode() + body, result.text or ""))
    return cases


def demo_texts() -> list[str]:
    """The demo's test sentences that are one sentence to the server, too."""
    lines = (REPOSITORY / "examples/de-en/test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.partition("\t")[0] for line in lines]
    return [text for text in texts if len(re.findall(r"[.!?…:]", text)) < 2]


async def run(
    server: Server, cases: Sequence[Case], times: float, seconds: float, most: int
) -> bool:
    """Put the load on a server, and say what came of it; whether all is as it should be."""
    load = Load(server, cases)
    await load.capacity(2.0)  # warm
    capacity = await load.capacity(5.0)
    click.echo(f"capacity: {capacity:.0f} requests a second")
    before = resident(server)
    with probing(server.port) as waits:
        few = await load.put(times * capacity, seconds, min(FEW, most))
        working = asyncio.ensure_future(load.put(times * capacity, seconds, most))
        await asyncio.sleep(seconds)
        after = await load.recovery()
        many = await working
    click.echo(str(waits))
    for outcome in (few, many):
        _describe(outcome, capacity)
    taken = max(many.memory) - before
    click.echo(
        f"memory: {before:.0f} MB before, {max(few.memory):.0f} at most for "
        f"{max(few.connections)} connections, in the second half {few.growth():.0f} more than in "
        f"the first; {max(many.memory):.0f} at most for {max(many.connections)}, "
        f"{1000 * taken / max(many.connections):.0f} KB for each; {resident(server):.0f} after"
    )
    # Requests that were under way when the load ended are still to be answered.
    left = many.seconds - many.sending
    served = [sent for sent, kind, _ in after if kind == "right"]
    refused = [sent for sent, kind, _ in after if kind != "right"]
    click.echo(
        f"after the load: its last answer after {left:.2f} s; {len(served)} right, {len(refused)} "
        f"refused, the last of them sent after {max(refused, default=0.0):.2f} s; slowest answer "
        f"to one sent a second later {_slowest(after, left + 1):.3f} s"
    )
    flat = few.growth() < FLAT and taken < A_CONNECTION * max(many.connections)
    recovered = left < LEFT and max(refused, default=0.0) < left + 1
    return not few.bad and not many.bad and flat and recovered


def _describe(outcome: Outcome, capacity: float) -> None:
    """Print how many requests were sent, and what became of them."""
    rate = outcome.sent / outcome.sending
    click.echo(
        f"{max(outcome.connections)} connections, {outcome.sent} requests in "
        f"{outcome.sending:.1f} s, {rate:.0f} a second: {rate / capacity:.1f} times the capacity; "
        + ", ".join(f"{count} {kind}" for kind, count in outcome.counts.most_common())
        + f"; {outcome.unsent} not sent, for want of connections"
    )


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--times", default=10.0, show_default=True, help="Of the capacity.")
@click.option("--seconds", default=60.0, show_default=True, help="Of each of two loads.")
def main(bundle: Path, times: float, seconds: float) -> None:
    """Overload a server of BUNDLE, a model from German to English."""
    import resource  # not on Windows, where tests import this module

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cases = make_cases(bundle, demo_texts())
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), bundle, "--threads", 2) as (server),
    ):
        # The server takes as many and more, or `/health/live` would wait for one to be closed.
        most = min(most - 2 * FILES, Settings().max_connections - FILES)
        good = asyncio.run(run(server, cases, times, seconds, most))
        log = server.log.read_text()
        good = good and "Traceback" not in log and '"fault"' not in log and server.end() == 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
