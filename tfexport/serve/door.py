"""The door of a server that has enough to do: refusals that cost next to nothing.

Under many times the load that a server can take, most of its event loop's time goes to requests
that it does not take. They are refused by their heads, before anything is made of them.
"""

import asyncio
from collections.abc import Collection

from tfexport.serve import journal
from tfexport.serve.call import Call
from tfexport.serve.connections import Headers
from tfexport.serve.dialects import dialect_of, is_work
from tfexport.serve.failures import busy
from tfexport.serve.service import Service

_SECONDS = 1.0  # of refusals that stand in one line of the log


class Door:
    """Lets requests in, or has their refusals ready."""

    def __init__(self, service: Service, paths: Collection[str]) -> None:
        """Stand before a service.

        Args:
            service: that may be crowded.
            paths: by which requests are counted.
        """
        self._service, self._paths, self._refused = service, paths, 0

    def refusal(self, path: str, headers: Headers) -> bytes | None:
        """See ``Entrance``."""
        service = self._service
        if not is_work(path) or not service.crowded:
            return None
        dialect = dialect_of(path)
        failure = busy("too many requests wait already", service.seconds_to_clear())
        status, given, body = dialect.response(failure)
        given |= {
            "content-length": str(len(body)), "x-content-type-options": "nosniff",
            "x-request-id": Call.begin(headers, 0.0).id,
        }  # fmt: skip
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in given.items())
        self._count(path, status)
        head = f"HTTP/1.1 {status} Service Unavailable\r\n{lines}\r\n"
        return head.encode("latin-1") + body

    def let_in(self) -> None:
        """Count a request until the gate sees it."""
        self._service.arriving += 1

    def _count(self, path: str, status: int) -> None:
        route = path if path in self._paths else "unmatched"
        self._service.metrics.answered(route, status, "", 0.0)
        if not self._refused:
            asyncio.get_running_loop().call_later(_SECONDS, self._log)
        self._refused += 1

    def _log(self) -> None:
        journal.write("refused", requests=self._refused, problem="too many requests wait already")
        self._refused = 0
