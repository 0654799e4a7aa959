"""The state of one request, from its arrival to its end."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfexport.serve.access import PathRules, path_rules
from tfexport.serve.failures import late

Result = TypeVar("Result")

SCOPE_KEY = "tfexport.call"  # of the call in the scope of its request
LONG = 2000  # characters; tokenizing more would delay other requests
LONG_BODY = 8 << 10  # bytes; parsing more would delay other requests
# Few threads, so that large requests wait for each other and not the event loop.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tfexport-aside")
_SANE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)


@dataclass(eq=False)
class Call:
    """One request.

    Attributes:
        id: the caller's, or one that was made for it.
        deadline: by ``time.monotonic``.
        arrived: when it arrived, by ``time.monotonic``.
        headers: by their names in lower case, the first of each name.
        rules: what its path needs.
        exits: closed when the request ends, in any way.
        body: the body of the request.
        model: name of the model that serves it.
        texts: the number of its texts.
        characters: the number of characters of all texts.
        problem: why it had no result.
        ended: whether it has ended, in any way.
        memory: closed when the body is dropped, at the end of the request at the latest.
    """

    id: str
    deadline: float
    arrived: float
    headers: Mapping[bytes, bytes]
    rules: PathRules
    exits: ExitStack = field(default_factory=ExitStack)
    body: bytes = b""
    model: str = ""
    texts: int = 0
    characters: int = 0
    problem: str = ""
    ended: bool = False
    memory: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def begin(cls, path: str, headers: Iterable[tuple[bytes, bytes]], timeout: float) -> "Call":
        """Make the call of a request that has just arrived."""
        now, first = time.monotonic(), dict(reversed([*headers]))
        given = first.get(b"x-request-id", b"").decode("latin-1")
        number = given if _SANE_ID.fullmatch(given) else secrets.token_hex(8)
        return cls(number, now + timeout, now, first, path_rules(path))

    def drop_body(self) -> None:
        """Give back the memory of the body, which is not needed any more."""
        self.body = b""
        self.memory.close()

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

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work on the body or texts, in a thread if they are long.

        Raises:
            RequestError: the deadline passed before it was done.
        """
        if self.characters < LONG and len(self.body) < LONG_BODY:
            return work(*arguments)
        return await self.aside(work, *arguments)

    async def aside(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work in a thread, such as work on files.

        Raises:
            RequestError: the deadline passed before it was done.
        """

        def checked() -> Result:
            self.check()
            return work(*arguments)

        job = asyncio.get_running_loop().run_in_executor(_threads, checked)
        job.add_done_callback(seen)
        done, _ = await asyncio.wait([job], timeout=max(self.left, 0.0))
        if not done:
            job.cancel()
            raise late()
        return job.result()


def seen(future: "asyncio.Future[Any]") -> None:
    """Read a future's error, even if its caller has gone: asyncio logs errors that are not read."""
    if not future.cancelled():
        future.exception()


def call_of(scope: Any) -> Call:
    """The call of a scope, or of a request."""
    found = scope[SCOPE_KEY]
    assert isinstance(found, Call)
    return found
