"""Failures of requests: a status and every problem that was found, in the form of each protocol."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfexport.errors import (
    ClosedSchedulerError,
    ConfigError,
    DeadlineError,
    InputError,
    Option,
    QueueFullError,
    TfexportError,
    TokenizerError,
)

MOST_PROBLEMS = 20  # problems of a request that are listed; the others are counted
_names = set[str]()  # of fields and options, which may be in the log
_NAME = re.compile(r"\w+(?:\.\w+)?")
WRONG = 0  # replaced by the status of each protocol
_ITEM = "\n  - "  # before each of several problems in a message; see ``join_problems``
LONGEST_WAIT = 60  # the longest ``Retry-After``, in seconds


class RequestError(Exception):
    """A request that is refused or failed.

    Attributes:
        status: the status of the response; ``WRONG`` for a wrong request.
        problems: sentences, at least one.
        headers: the headers of the response.
    """

    def __init__(
        self, status: int, problems: str | Sequence[str], headers: dict[str, str] | None = None
    ) -> None:
        self.status, self.headers = status, headers or {}
        found = [problems] if isinstance(problems, str) else list(problems)
        more = len(found) - MOST_PROBLEMS
        self.problems = found[:MOST_PROBLEMS] + ([f"and {more} more problems"] if more > 0 else [])
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """All problems as one text."""
        if len(self.problems) == 1:
            return self.problems[0]
        return f"{len(self.problems)} problems: {'; '.join(self.problems)}"

    @property
    def logged(self) -> str:
        """The problem for the log, without text of the request.

        Of invalid fields and options only the names are logged, and only names that exist.
        """
        if self.status != WRONG:
            return self.message
        begun = [found[0] for one in self.problems if (found := _NAME.match(one))]
        known = [name for name in begun if name.rpartition(".")[2] in _names]
        return f"an invalid request: {', '.join(dict.fromkeys(known))}".removesuffix(": ")


def loggable(names: Iterable[str]) -> None:
    """Allow these names of fields and options in the log."""
    _names.update(names)


def wrong(problems: str | Sequence[str]) -> RequestError:
    """The failure of an invalid request."""
    return RequestError(WRONG, problems)


def busy(problem: str, seconds: float) -> RequestError:
    """The failure of a request that may be repeated after some seconds."""
    wait = min(max(math.ceil(seconds), 1), LONGEST_WAIT)
    return RequestError(503, problem, {"Retry-After": str(wait)})


def late() -> RequestError:
    """The failure of a request whose deadline has passed."""
    return RequestError(504, "the request timed out before it was answered")


def as_failure(error: TfexportError) -> RequestError | None:
    """The failure for an error of the library; None for a fault of the server."""
    if isinstance(error, QueueFullError):
        return busy(spelled(error), error.retry_after)
    if isinstance(error, ClosedSchedulerError):
        return busy(spelled(error), 1.0)
    if isinstance(error, DeadlineError):
        return late()
    # Unreadable tokenizers are found when a bundle is opened. Here the bundle has none.
    if isinstance(error, ConfigError | InputError | TokenizerError):
        return wrong(_listed(spelled(error)))
    return None


def _listed(text: str) -> list[str]:
    head, *problems = text.split(_ITEM)
    return problems or [head]


def spelled(error: TfexportError) -> str:
    """The message of an error, with options as they are in JSON."""
    return error.message.spelled(_spell)


def _spell(option: Option) -> str:
    """``truncate=True`` as it is in JSON."""
    if option.value is None:
        return option.name
    return f"{json.dumps(option.name)}: {json.dumps(option.value, default=str)}"


@dataclass(frozen=True)
class ErrorFormat:
    """Status codes, bodies and keys of one protocol.

    Attributes:
        name: the name of the protocol.
        wrong: status of an invalid request.
        no_key: status of a request without a key, or with a wrong one.
        scheme: the scheme of its ``Authorization``; None if the key is in the request's body.
        body: makes the body of a failure, as JSON values.
    """

    name: str
    wrong: int
    no_key: int
    scheme: bytes | None
    body: Callable[[RequestError], Mapping[str, Any]]

    def key(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The key in the headers."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if self.scheme is None or scheme.lower() != self.scheme.lower():
            return None
        return key.strip()

    def status(self, failure: RequestError) -> int:
        """The status of a failure in this protocol."""
        return self.wrong if failure.status == WRONG else failure.status

    def refusal(self) -> RequestError:
        """The failure of a request without a key, or with a wrong one."""
        where = "api_key" if self.scheme is None else f"Authorization: {self.scheme.decode()} KEY"
        text = f"a valid key is needed, as {where}"
        wants = {"WWW-Authenticate": "Bearer"} if self.no_key == 401 else {}
        return RequestError(self.no_key, text, wants)

    def response(self, failure: RequestError) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a failure's response."""
        headers = {"content-type": "application/json", **failure.headers}
        return self.status(failure), headers, json.dumps(self.body(failure)).encode()


def _own_body(failure: RequestError) -> Mapping[str, Any]:
    return {"error": failure.message, "problems": failure.problems}


def _error_body(failure: RequestError) -> Mapping[str, Any]:
    return {"error": failure.message}


def _message_body(failure: RequestError) -> Mapping[str, Any]:
    return {"message": failure.message}


def _openai_body(failure: RequestError) -> Mapping[str, Any]:
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    named = [found[0] for one in failure.problems if (found := _NAME.match(one))]
    param = named[0] if len(failure.problems) == 1 and named and named[0] in _names else None
    code = "invalid_api_key" if failure.status == 401 else None
    return {"error": {"message": failure.message, "type": kind, "param": param, "code": code}}


OWN = ErrorFormat("own", 422, 401, b"Bearer", _own_body)
LIBRETRANSLATE = ErrorFormat("LibreTranslate", 400, 403, None, _error_body)
DEEPL = ErrorFormat("DeepL", 400, 403, b"DeepL-Auth-Key", _message_body)
KSERVE = ErrorFormat("KServe", 400, 401, b"Bearer", _error_body)
OPENAI = ErrorFormat("OpenAI", 400, 401, b"Bearer", _openai_body)
