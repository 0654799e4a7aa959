"""Drawn requests for a server of its own: python -m tests.serve.fuzz_requests BUNDLE --cases 20000.

None may be answered 5xx but 503 and 504, or later than its deadline; ``/health/live`` has to
answer within a quarter of a second throughout, and memory has to stay bounded.
"""

import contextlib
import http.client
import io
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import click

from tests.serve.drawn_requests import Case, draw_case
from tests.serve.overload import resident
from tests.serve.probe import Waits, probing
from tests.serve.servers import Server, serving

LIVE = 0.25  # seconds in which /health/live has to be answered
GRACE = 2.0  # seconds after a deadline, in which the answer has to be there
GROWTH = 192.0  # MB that drawn requests may come to need, of which the longest take the most
TIMEOUT = 20
_LEAVING = 0.02  # part of clients that leave before they are answered


@dataclass
class Found:
    """What became of requests.

    Attributes:
        statuses: of their answers.
        problems: with what was sent.
        slowest: seconds of the last answer to come.
        memory: MB, now and then.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        listed = ", ".join(f"{count} {status}" for status, count in self.statuses.most_common())
        return (
            f"{sum(self.statuses.values())} answers: {listed}; the slowest after "
            f"{self.slowest:.1f} s of {TIMEOUT}; memory from {self.memory[0]:.0f} to "
            f"{max(self.memory):.0f} MB; {len(self.problems)} problems"
        )


class _File(io.BufferedReader):
    """What a connection sends, read by one answer after another."""

    def close(self) -> None:
        """Stay open: the next answer is behind this one."""


class _Answers:
    """Stands in for a socket, of which ``HTTPResponse`` only wants the file."""

    def __init__(self, client: socket.socket) -> None:
        self._file = _File(cast(io.RawIOBase, socket.SocketIO(client, "r")))

    def makefile(self, *args: Any) -> _File:
        return self._file


def run(server: Server, cases: int, threads: int = 4, first: int = 0) -> Found:
    """Send drawn requests from a few threads; each has seeds of its own."""
    found, lock = Found(memory=[resident(server)]), threading.Lock()
    model = str(server.ask("GET", "/v1/models").json["models"][0]["name"])
    waiting = iter(range(first, first + cases))

    def work() -> None:
        while True:
            with lock:
                seeds = [seed for seed, _ in zip(waiting, range(25), strict=False)]
                found.memory.append(resident(server))
            if not seeds:
                return
            for group in _groups(seeds):
                _send(server, model, group, found, lock)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def _groups(seeds: Sequence[int]) -> Iterator[list[int]]:
    """Seeds of requests that are sent one behind another without waiting; mostly one."""
    place = 0
    while place < len(seeds):
        size = random.Random(-seeds[place] - 1).choice([1] * 15 + [2, 3, 5])
        yield list(seeds[place : place + size])
        place += size


def _send(
    server: Server, model: str, seeds: Sequence[int], found: Found, lock: threading.Lock
) -> None:
    draw = random.Random(seeds[0])
    cases = [draw_case(random.Random(f"case {seed}"), model) for seed in seeds]
    sent = b"".join(case.sent for case in cases)
    with socket.create_connection(("127.0.0.1", server.port), timeout=3 * TIMEOUT) as client:
        begun = time.monotonic()
        if draw.random() < _LEAVING:
            client.sendall(sent[: draw.randrange(len(sent))])
            time.sleep(draw.choice([0.0, 0.05]))
            return
        # A refusal may come, and the connection be closed, before all is sent.
        with contextlib.suppress(ConnectionError):
            for part in _packets(draw, sent):
                client.sendall(part)
        answers = _Answers(client)
        for seed, case in zip(seeds, cases, strict=True):
            problem = _answer(answers, case, begun, found, lock)
            if problem is not None:
                with lock:
                    found.problems.append(f"seed {seed} of {list(seeds)}, {case.path}: {problem}")
                return


def _answer(
    answers: _Answers, case: Case, begun: float, found: Found, lock: threading.Lock
) -> str | None:
    """Read an answer; what is wrong with it."""
    response = http.client.HTTPResponse(cast(socket.socket, answers), method=case.method)
    try:
        response.begin()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error!r}"
    seconds = time.monotonic() - begun
    with lock:
        found.statuses[response.status] += 1
        found.slowest = max(found.slowest, seconds)
    if response.status >= 500 and response.status not in (503, 504):
        return f"{response.status}: {body[:200]!r}"
    if b'"status": 500' in body:
        return f"a stream that ends with a fault: {body[-200:]!r}"
    return None


def _packets(draw: random.Random, sent: bytes) -> Iterator[bytes]:
    if draw.random() < 0.8:
        yield sent
        return
    places = sorted(draw.randrange(len(sent) + 1) for _ in range(draw.choice([1, 2, 5])))
    for begin, end in zip([0, *places], [*places, len(sent)], strict=True):
        yield sent[begin:end]
        time.sleep(0.002)


def _beside(server: Server, waits: Waits) -> list[str]:
    """Requests that were being answered while the slowest probe waited."""
    found = []
    for line in server.lines():
        end = datetime.fromisoformat(line["time"]).timestamp()
        begun = end - line.get("seconds", 0.0)
        if begun < waits.worst + waits.longest and end > waits.worst:
            found.append(json.dumps(line)[:300])
    return found


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--cases", default=20_000, show_default=True)
@click.option("--first", default=0, help="Of the seeds.")
def main(bundle: Path, cases: int, first: int) -> None:
    """Send drawn requests to a server of BUNDLE."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), bundle, "--threads", 2, "--timeout", TIMEOUT) as server,
    ):
        with probing(server.port) as waits:
            found = run(server, cases, first=first)
        server.wait_idle(TIMEOUT + 10.0)
        log = server.log.read_text()
        beside = _beside(server, waits)
        ended = server.end()
    click.echo(f"{found}\n{waits}")
    for problem in found.problems[:20]:
        click.echo(problem)
    faults = [line for line in log.splitlines() if '"fault"' in line or "Traceback" in line]
    for line in faults[:5]:
        click.echo(line[:2000])
    if waits.longest > LIVE:
        click.echo("beside the slowest /health/live:\n" + "\n".join(beside[:20]))
    late = found.slowest > TIMEOUT + GRACE or waits.longest > LIVE or waits.failures
    grown = max(found.memory) - found.memory[0] > GROWTH
    sys.exit(1 if found.problems or faults or late or grown or ended else 0)


if __name__ == "__main__":
    main()
