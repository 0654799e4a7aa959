"""Keys that callers have to give."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from tfexport.errors import ConfigError


class Keys:
    """The keys of a server; without any, everybody is served."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: Path | None) -> "Keys":
        """Read a file of one key a line.

        Raises:
            ConfigError: it holds no key.
            OSError: it cannot be read.
        """
        if path is None:
            return cls()
        keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
        if not keys:
            raise ConfigError(f"{path}: holds no key; it should have one a line")
        return cls(keys)

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


def _digest(key: bytes) -> bytes:
    # Of one length, so that not even the length of a key shows in the time of a comparison.
    return hashlib.sha256(key).digest()
