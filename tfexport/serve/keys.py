"""Keys that callers have to give."""

import codecs
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from tfexport.errors import ConfigError, join_problems


class Keys:
    """The keys of a server; without any, everybody is served."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: Path | None) -> "Keys":
        """Read a file of one key a line.

        Blank lines, and those that begin with ``#``, are no keys.

        Raises:
            ConfigError: it holds no key, or what callers cannot send as one.
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
            f"line {number} is no key: a key is UTF-8, without spaces and control characters"
            for number, line in numbered
            if not _is_key(line)
        ]
        if problems:
            raise ConfigError(join_problems(str(path), problems))
        if not numbered:
            raise ConfigError(f"{path}: holds no key; it should have one a line")
        return cls(line for _, line in numbered)

    @property
    def needed(self) -> bool:
        """Whether callers have to give one."""
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
    # Of one length, so that not even the length of a key shows in the time of a comparison.
    return hashlib.sha256(key).digest()
