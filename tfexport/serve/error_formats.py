"""The error format of each protocol, and where it carries a key."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfexport.serve.call import Headers, header
from tfexport.serve.failures import WRONG, RequestError


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

    def key(self, headers: Headers) -> bytes | None:
        """The key in the headers."""
        scheme, _, key = header(headers, b"authorization").partition(b" ")
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


OWN = ErrorFormat("own", 422, 401, b"Bearer", _own_body)
LIBRETRANSLATE = ErrorFormat("LibreTranslate", 400, 403, None, _error_body)
DEEPL = ErrorFormat("DeepL", 400, 403, b"DeepL-Auth-Key", _message_body)
KSERVE = ErrorFormat("KServe", 400, 401, b"Bearer", _error_body)

# Paths and prefixes of paths, with a slash at the end, as ``_under`` needs them.
_LIBRETRANSLATE_PATHS = ("/translate/", "/languages/", "/detect/", "/suggest/",
                         "/frontend/settings/", "/translate_file/")  # fmt: skip
_KSERVE_PATHS = ("/v2/health/", "/v2/models/", "/v2/repository/")
# Probes, and the files that a browser loads before a user can enter a key.
_OPEN_PATHS = ("/page/", "/health/", "/metrics/", "/docs/", "/openapi.json/", "/v2/health/",
               "/frontend/settings/")  # fmt: skip
_PROBES = ("/health/", "/metrics/", "/v2/health/")
_MODEL_READY = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/ready")


def error_format_of(path: str) -> ErrorFormat:
    """The protocol that a path belongs to."""
    if _under(path, _LIBRETRANSLATE_PATHS):
        return LIBRETRANSLATE
    if path in ("/v2", "/v2/") or _under(path, _KSERVE_PATHS):
        return KSERVE
    return DEEPL if path.startswith("/v2/") else OWN


def needs_key(path: str) -> bool:
    """Whether a path needs a key, if the server has keys."""
    return path != "/" and not _under(path, _OPEN_PATHS) and not _MODEL_READY.fullmatch(path)


def is_work(path: str) -> bool:
    """Whether a path is refused while the server stops: all but probes and metrics."""
    return not _under(path, _PROBES)


def _under(path: str, folders: tuple[str, ...]) -> bool:
    return f"{path}/".startswith(folders)
