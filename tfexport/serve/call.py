"""One request, from its arrival to its end: what is logged of it, and what ends with it."""

import re
import secrets
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tfexport.serve.failures import late

_SANE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_SCOPE_KEY = "tfexport.call"

Headers = Iterable[tuple[bytes, bytes]]


@dataclass
class Call:
    """One request.

    Attributes:
        id: the caller's, or one that was made for it.
        deadline: by ``time.monotonic``.
        begun: when it arrived, likewise.
        exits: what is undone when the request ends, however it ends.
        body: of the request.
        model: name of the model that serves it.
        texts: how many it holds.
        characters: of all its texts.
        problem: why it got no result.
        ended: however it ended.
    """

    id: str
    deadline: float
    begun: float
    exits: ExitStack = field(default_factory=ExitStack)
    body: bytes = b""
    model: str = ""
    texts: int = 0
    characters: int = 0
    problem: str = ""
    ended: bool = False

    @classmethod
    def begin(cls, headers: Headers, timeout: float) -> "Call":
        """The call of a request that has arrived just now."""
        now = time.monotonic()
        given = header(headers, b"x-request-id").decode("latin-1")
        number = given if _SANE_ID.fullmatch(given) else secrets.token_hex(8)
        return cls(number, now + timeout, now)

    def check(self) -> None:
        """Stop work for a call that nobody waits for any more; from any thread.

        Raises:
            RequestError: its time is over, or it has ended.
        """
        if self.ended or self.left <= 0:
            raise late()

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return self.deadline - time.monotonic()


def header(headers: Headers, name: bytes) -> bytes:
    """The first header of this name, in lower case; empty if there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def put_call(scope: Any, call: Call) -> None:
    """Attach a call to the scope of its request."""
    scope[_SCOPE_KEY] = call


def call_of(scope: Any) -> Call:
    """The call of a scope, or of a request."""
    found = scope[_SCOPE_KEY]
    assert isinstance(found, Call)
    return found
