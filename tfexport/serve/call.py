"""The state of one request, from its arrival to its end."""

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
        arrived: when it arrived, by ``time.monotonic``.
        exits: closed when the request ends, in any way.
        body: the body of the request.
        model: name of the model that serves it.
        texts: the number of its texts.
        characters: the number of characters of all texts.
        problem: why it had no result.
        ended: whether it has ended, in any way.
    """

    id: str
    deadline: float
    arrived: float
    exits: ExitStack = field(default_factory=ExitStack)
    body: bytes = b""
    model: str = ""
    texts: int = 0
    characters: int = 0
    problem: str = ""
    ended: bool = False

    @classmethod
    def begin(cls, headers: Headers, timeout: float) -> "Call":
        """Make the call of a request that has just arrived."""
        now = time.monotonic()
        given = header(headers, b"x-request-id").decode("latin-1")
        number = given if _SANE_ID.fullmatch(given) else secrets.token_hex(8)
        return cls(number, now + timeout, now)

    def check(self) -> None:
        """Stop work for a call that has ended or is too late; callable from any thread.

        Raises:
            RequestError: its deadline has passed, or it has ended.
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
