"""Access to the server: what a path needs, API keys, host names and origins of web pages."""

import codecs
import hashlib
import hmac
import ipaddress
import re
import urllib.parse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tfexport.errors import ConfigError, join_problems
from tfexport.serve.failures import (
    DEEPL,
    KSERVE,
    LIBRETRANSLATE,
    OPENAI,
    OWN,
    ErrorFormat,
    RequestError,
)

# Paths and prefixes of paths, with a slash at the end, as ``path_rules`` needs them.
_LIBRETRANSLATE_PATHS = ("/translate/", "/languages/", "/detect/", "/suggest/",
                         "/frontend/settings/", "/translate_file/")  # fmt: skip
_KSERVE_PATHS = ("/v2/health/", "/v2/models/", "/v2/repository/")
_OPENAI_PATHS = ("/v1/audio/", "/v1/models/")  # but not the list, which is our own as well
# Probes, and the files that a browser loads before a user can enter a key.
_OPEN_PATHS = ("/page/", "/health/", "/metrics/", "/docs/", "/openapi.json/", "/v2/health/",
               "/frontend/settings/")  # fmt: skip
_PROBES = ("/health/", "/metrics/", "/v2/health/")
_MODEL_READY = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/ready")


@dataclass(frozen=True)
class PathRules:
    """The rights that a request needs, and how it is answered, by its path.

    Attributes:
        error_format: the form of errors and keys, of the protocol that the path belongs to.
        needs_key: whether it needs a key, if the server has keys.
        is_work: whether it is refused while the server stops: all but probes and metrics.
    """

    error_format: ErrorFormat
    needs_key: bool
    is_work: bool


def path_rules(path: str) -> PathRules:
    """The rules of a path."""
    folder = f"{path}/"
    if folder.startswith(_LIBRETRANSLATE_PATHS):
        error_format = LIBRETRANSLATE
    elif path.startswith(_OPENAI_PATHS):
        error_format = OPENAI
    elif path in ("/v2", "/v2/") or folder.startswith(_KSERVE_PATHS):
        error_format = KSERVE
    else:
        error_format = DEEPL if path.startswith(("/v2/", "/v3/")) else OWN
    is_open = path == "/" or folder.startswith(_OPEN_PATHS) or _MODEL_READY.fullmatch(path)
    return PathRules(error_format, not is_open, not folder.startswith(_PROBES))


class Keys:
    """The API keys of a server; without keys every request is served."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: Path | None) -> "Keys":
        """Read a file of one key a line.

        Blank lines, and those that start with ``#``, are no keys.

        Raises:
            ConfigError: it holds no key, or something that cannot be sent as a key.
            OSError: it cannot be read.
        """
        if path is None:
            return cls()
        lines = [
            line.strip() for line in path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
        ]
        numbered = [
            (number, line)
            for number, line in enumerate(lines, 1)
            if line and not line.startswith(b"#")
        ]
        problems = [
            f"line {number} is not a key: a key is UTF-8, without spaces and control characters"
            for number, line in numbered
            if not _is_key(line)
        ]
        if problems:
            raise ConfigError(join_problems(str(path), problems))
        if not numbered:
            raise ConfigError(f"{path}: holds no key; expected one key per line")
        return cls(line for _, line in numbered)

    @property
    def needed(self) -> bool:
        """Whether callers have to send a key."""
        return bool(self._digests)

    def allow(self, given: bytes | None) -> bool:
        """Whether a caller with this key is served; all keys are compared, in constant time."""
        if not self._digests:
            return True
        digest = _digest(given or b"")
        same = [hmac.compare_digest(digest, known) for known in self._digests]
        return given is not None and any(same)


def _is_key(line: bytes) -> bool:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return False
    return text.isprintable() and " " not in text


def _digest(key: bytes) -> bytes:
    # All have one length, so that the time of a comparison does not depend on the length of a key.
    return hashlib.sha256(key).digest()


# A server that listens only to this machine accepts only this machine's names: otherwise a page
# whose name was pointed here (DNS rebinding) could read its answers. A browser sends a page's form,
# or a body without a type, to other origins without a preflight: such requests are refused.


ANY = "*"
_SAFE = ("GET", "HEAD", "OPTIONS")  # they change nothing
_TYPES = ("application/json",)  # browsers send a preflight before this type


def is_local(address: str) -> bool:
    """Whether an address is reachable only from this machine; a path of a socket is not one."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_host(
    headers: Iterable[tuple[bytes, bytes]], version: str, allowed: Collection[str] | None
) -> None:
    """Refuse a request that names no host, several hosts, or a host that is not this server.

    Args:
        headers: all headers of the request.
        version: the version of HTTP, "1.1" or lower.
        allowed: names besides addresses and ``localhost``; None for any.

    Raises:
        RequestError: it has to be refused.
    """
    given = [value for key, value in headers if key == b"host"]
    if len(given) > 1 or (version == "1.1" and not (given and given[0].strip())):
        raise RequestError(400, "a request has one Host header", {"Connection": "close"})
    if allowed is None or ANY in allowed or not given or not given[0]:
        return
    name = _name(given[0].decode("latin-1"))
    if name in allowed or name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    raise RequestError(
        421, f"Host {name[:100]!r} is not a name of this server, which is for this machine alone; "
        "who runs it can let it have that name (allowed-host)"
    )  # fmt: skip


def check_origin(method: str, headers: Mapping[bytes, bytes], allowed: Sequence[str]) -> None:
    """Refuse a request that a page of another origin has sent without a preflight.

    Args:
        method: the method of the request.
        headers: the headers of the request.
        allowed: origins whose pages may call the server.

    Raises:
        RequestError: it has to be refused.
    """
    origin = headers.get(b"origin", b"").decode("latin-1")
    if method in _SAFE or not origin or origin in allowed or ANY in allowed:
        return
    site = headers.get(b"sec-fetch-site", b"")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if site:
        own = site in (b"same-origin", b"none")
    else:  # an older browser, or a page without TLS
        host = headers.get(b"host", b"").decode("latin-1")
        own = kind in _TYPES or urllib.parse.urlsplit(origin).netloc == host
    if not own:
        raise RequestError(
            403,
            f"a page of {origin[:100]} has sent this; who runs the server can let it (cors-origin)",
        )


def _name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0][1:].lower()
    return host.partition(":")[0].lower()


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
