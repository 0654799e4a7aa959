"""Decoding options, checked together before any work."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from tfexport.errors import ConfigError, join_problems


@dataclass(frozen=True)
class DecodingOptions:
    """How to decode.

    Attributes:
        max_length: new tokens at most; start and end token do not count. The model's own limit
            bounds it.
        batch_size: rows decoded together.
        truncate: cut inputs that are longer than the model takes, instead of refusing them.
    """

    max_length: int = 256
    batch_size: int = 32
    truncate: bool = False

    def __post_init__(self) -> None:
        problems = []
        for name, least in (("max_length", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                problems.append(f"{name}: {value!r} is not a whole number")
            elif value < least:
                problems.append(f"{name}: {value} is less than {least}")
        if not isinstance(self.truncate, bool):
            problems.append(f"truncate: {self.truncate!r} is not true or false")
        if problems:
            raise ConfigError(join_problems("decoding options", problems))

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> "DecodingOptions":
        """Options from keyword arguments.

        Raises:
            ConfigError: naming every unknown option and every bad value.
        """
        known = [field.name for field in fields(cls)]
        problems = []
        for key in keywords:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                problems.append(f"unknown option {key!r}; {hint}")
        if problems:
            raise ConfigError(join_problems("decoding options", problems))
        return cls(**keywords)
