"""Options of a toolkit's checkpoint, read one by one; all problems are collected."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from tfexport.errors import ConfigError, join_problems, join_some, shown
from tfexport.model_src.checkpoint.unsupported import MODULE

_T = TypeVar("_T")
_WORDS = {"true": True, "false": False, "True": True, "False": False}


class Options:
    """The options of a toolkit, as its training code named them.

    Args:
        toolkit: its name, for messages.
        values: the options.
    """

    def __init__(self, toolkit: str, values: Any) -> None:
        self._toolkit = toolkit
        self.values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
        self.problems: list[str] = []

    def inside(self, name: str) -> "Options":
        """A group of options; without options where there is none. Its problems are these too."""
        found = Options(self._toolkit, self.values.get(name))
        found.problems = self.problems
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """Read a switch; None means the default."""
        value = self.values.get(name)
        value = _WORDS.get(value, value) if isinstance(value, str) else value
        if value is None or isinstance(value, bool) or value in (0, 1):
            return default if value is None else bool(value)
        self.problems.append(f"{name}: {shown(value)} is not true or false")
        return default

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Read an integer option."""
        value = self.values.get(name, default)
        value = default if value is None else value
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self.problems.append(f"{name}: {shown(value)} is not an integer")
        return default

    def number(self, name: str, default: float) -> float:
        """Read a number option."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        self.problems.append(f"{name}: {shown(value)} is not a number")
        return default

    def choice(self, name: str, known: Mapping[str, _T], default: str) -> _T:
        """The value that ``known`` has for a word; other words are not supported."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, str) and value in known:
            return known[value]
        self.problems.append(
            f"{name}: {shown(value)} is not supported; supported are {', '.join(known)}"
        )
        return known[default]

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Refuse options that are switched on: names, each with what it is."""
        for name, reason in reasons.items():
            value = self.values.get(name)
            off = value in (None, False, 0, 0.0, "", "0", "False", "false", "none", "None")
            if not (off or (isinstance(value, list | Mapping) and not value)):
                self.problems.append(f"{name}: {shown(value)}: {reason} is not supported")

    def require_none_wrong(self) -> None:
        """Refuse what is wrong.

        Raises:
            ConfigError: there are problems; all are listed.
        """
        if self.problems:
            subject = f"the options of this {self._toolkit} model"
            raise ConfigError(join_problems(subject, self.problems, f"Otherwise {MODULE}."))


def refused_keys(
    names: Iterable[str], reasons: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Tensors of unsupported features: their names as read, and a sentence on each kind.

    Args:
        names: the names of all tensors.
        reasons: patterns of names, each with what such tensors belong to.
    """
    read: dict[str, tuple[str, ...]] = {}
    problems = []
    for pattern, reason in reasons.items():
        found = [name for name in names if re.search(pattern, name)]
        read |= dict.fromkeys(found, ())
        if found:
            problems.append(f"{reason} is not supported: {join_some(found, 3)}")
    return read, problems


def without(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Tensors without some of them."""
    dropped = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}


def several(values: Mapping[str, Any]) -> dict[str, Any]:
    """Config values that are known, without those that are None."""
    return {key: value for key, value in values.items() if value is not None}
