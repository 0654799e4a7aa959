"""Servers in processes of their own, and requests to them by Python's own client."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_START = 120.0


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request on a connection of its own; a mapping is sent as JSON."""
        given = dict(headers or {})
        if isinstance(body, Mapping):
            body, given = json.dumps(body), {**JSON, **given}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Answer:
        return self.ask("POST", path, body, headers)

    def figure(self, name: str, **labels: str) -> float:
        """The sum of a figure's series with these labels."""
        text = self.ask("GET", "/metrics").body.decode()
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for series, value in found if all(one in series for one in wanted))

    def wait_idle(self, seconds: float = 60.0) -> None:
        """Wait until nothing waits or runs; fails if something does for longer."""
        names = ("tfexport_queue_rows", "tfexport_running_rows")
        end = time.monotonic() + seconds
        while (
            any(self.figure(name) for name in names) or self.figure("tfexport_active_requests") > 1
        ):  # this request itself
            assert time.monotonic() < end, "rows are still there"
            time.sleep(0.02)

    def wait_for_line(self, number: str) -> dict[str, Any]:
        """The line of a request's log by its id; it is written after the answer."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for line in self.lines():
                if line.get("request_id") == number:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no line of {number}")

    def lines(self) -> list[dict[str, Any]]:
        """The lines of its log that are JSON."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """End it by SIGTERM; its exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(folder: Path, *args: object, program: str = "tfexport") -> Iterator[Server]:
    """A server of bundles and options, which ends with the block.

    Args:
        folder: for its log.
        *args: of ``tfexport serve``.
        program: a module that is run as ``tfexport`` is.
    """
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", program, "serve", "--port", "0", "--threads", "1"]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, *map(str, args)], stderr=file)
    try:
        yield Server(process, _port(process, log), log)
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        found = re.search(r"Serving .* at http://[^:]+:(\d+)", log.read_text())
        if found:
            return int(found[1])
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def request_of(body: bytes) -> bytes:
    """A request to translate, as bytes."""
    head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds; fails if it takes longer."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
