"""Settings of a server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfexport.errors import ConfigError, Problem, join_problems, shown
from tfexport.runtime.model.engine_name import EngineName

_MOST_BYTES_OF_A_CHARACTER = 12  # in JSON, as two escaped halves of a surrogate pair
_BYTES_BESIDE_TEXTS = 64 << 10
_BYTES_OF_LONG_BODIES = 64 << 20
PAIR = re.compile(r"([a-z]{2,3})-([a-z]{2,3})", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        threads: of a model; 0 for all cores that the process may use.
        max_queue: requests of a model that may wait.
        slots: rows of a model that are decoded at a time.
        timeout: seconds from a request's arrival to its answer.
        max_texts: texts of a request.
        max_characters: of all texts of a request.
        max_tokens: of a sentence's translation.
        key_file: with one key a line; None to serve everybody.
        languages: name of a model to its pair of languages, such as "de-en".
        cors_origins: whose pages may call the server from a browser.
        allowed_hosts: names of a server that listens to its own machine alone, besides "localhost".
        engine: what computes the models; see ``Translator``.
    """

    threads: int = 0
    max_queue: int = 256
    slots: int = 32
    timeout: float = 60.0
    max_texts: int = 256
    max_characters: int = 100_000
    max_tokens: int = 1024
    key_file: Path | None = None
    languages: Mapping[str, str] = field(default_factory=dict)
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: naming every one that is wrong.
        """
        problems = [
            Problem(name, f"{value} is not a number from 1 on")
            for name in ("max_queue", "slots", "max_texts", "max_characters", "max_tokens")
            if (value := getattr(self, name)) < 1
        ]
        if not 0 < self.timeout <= 86400:
            problems.append(Problem("timeout", f"{self.timeout} is not in 0 to 86400 seconds"))
        problems += [
            Problem("languages", f"{shown(pair)} of {name} is not a pair such as de-en")
            for name, pair in self.languages.items()
            if not PAIR.fullmatch(pair)
        ]
        if problems:
            raise ConfigError(join_problems("serve", problems))

    @property
    def max_body(self) -> int:
        """Bytes of a request's body."""
        return _BYTES_BESIDE_TEXTS + _MOST_BYTES_OF_A_CHARACTER * self.max_characters

    @property
    def max_bodies(self) -> int:
        """Bytes of the long bodies of all requests together; see ``BodyMemory``."""
        return max(_BYTES_OF_LONG_BODIES, 4 * self.max_body)
