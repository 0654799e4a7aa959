"""How long /health/live waits for its answer while other requests are made.

A process of its own asks, so that what the test itself does takes no part in the figures:
python -m tests.serve.probe PORT, until its standard input ends.
"""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

EVERY = 0.02  # seconds between two requests
WAIT = 120.0  # seconds, after which an answer counts as lost


@dataclass
class Waits:
    """What was measured, once the block has ended.

    Attributes:
        seconds: that answers took, in order of their size.
        failures: requests that were not answered by 200.
        worst: the time at which the slowest was asked.
    """

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    worst: float = 0.0

    @property
    def longest(self) -> float:
        return self.seconds[-1]

    def __str__(self) -> str:
        count = len(self.seconds)
        shown = [self.seconds[int(part * (count - 1))] for part in (0.5, 0.99, 1.0)]
        listed = ", ".join(f"{one * 1000:.0f}" for one in shown)
        return (
            f"/health/live, asked {count} times: median, 99th percentile and longest {listed} ms; "
            f"{len(self.failures)} failed"
        )


@contextlib.contextmanager
def probing(port: int) -> Iterator[Waits]:
    """Ask a server for as long as the block lasts."""
    found = Waits()
    command = [sys.executable, "-m", "tests.serve.probe", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield found
        finally:
            said, _ = process.communicate()
    values = json.loads(said)
    found.seconds, found.failures = sorted(values["seconds"]), values["failures"]
    found.worst = values["asked"][values["seconds"].index(found.longest)]


def main() -> None:
    """Ask, and print what came of it."""
    port, ended = int(sys.argv[1]), threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    seconds, asked, failures = list[float](), list[float](), list[str]()
    while not ended.wait(EVERY) or not seconds:
        begun = time.monotonic()
        asked.append(time.time())
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
            connection.request("GET", "/health/live")
            status = connection.getresponse().status
            connection.close()
            if status != 200:
                failures.append(str(status))
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
        seconds.append(time.monotonic() - begun)
    print(json.dumps({"seconds": seconds, "asked": asked, "failures": failures}))


if __name__ == "__main__":
    main()
