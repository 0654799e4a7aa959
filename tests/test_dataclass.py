"""Frozen values behave as those of the standard library's ``dataclass``."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tfexport.dataclass import dataclass


def define(decorate: Callable[..., Any]) -> dict[str, Any]:
    """The same classes by one decorator."""

    @decorate(frozen=True)
    class Empty:
        """None."""

    @decorate(frozen=True)
    class One:
        """One."""

        a: Any

    @decorate(frozen=True)
    class Base:
        """Defaults, and fields that are not compared or shown."""

        kind: ClassVar[str] = "base"
        a: int
        b: list[Any] = dataclasses.field(default_factory=list, compare=False)
        c: str = dataclasses.field(default="c", repr=False)
        d: int = dataclasses.field(default=1, hash=False)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError(self.a)

    @decorate(frozen=True)
    class Derived(Base):
        """Inherits them."""

        e: tuple[int, ...] = ()

    @decorate(frozen=True, kw_only=True)
    class Own:
        """Has its own methods."""

        a: int = 0
        b: int = 0

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and other.a == self.a

    return {each.__name__: each for each in (Empty, One, Base, Derived, Own)}


OURS, THEIRS = define(dataclass), define(dataclasses.dataclass)
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("Empty", {}), ("One", {"a": 1}), ("One", {"a": (1,)}), ("Base", {"a": 1}),
    ("Base", {"a": 1, "b": [3]}), ("Base", {"a": 2, "c": "x"}), ("Base", {"a": 1, "d": 7}),
    ("Derived", {"a": 1}), ("Derived", {"a": 1, "e": (4,)}), ("Own", {"a": 1}),
    ("Own", {"a": 1, "b": 2}),
]  # fmt: skip


def test_values_compare_hash_and_show_as_those_of_the_standard_library() -> None:
    ours, theirs = ([made[name](**given) for name, given in VALUES] for made in (OURS, THEIRS))
    assert [repr(value) for value in ours] == [repr(value) for value in theirs]
    for i, one in enumerate(ours):
        assert [one == other for other in ours] == [theirs[i] == other for other in theirs]
        assert dataclasses.asdict(one) == dataclasses.asdict(theirs[i])
        assert copy.deepcopy(one) == one
        assert dataclasses.replace(one) == one
    assert ours[1] != theirs[1], "of another class"
    assert [hash(a) == hash(b) for a in ours for b in ours] == [
        hash(a) == hash(b) for a in theirs for b in theirs
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ours[1].a = 2
    with pytest.raises(ValueError, match="-1"):
        OURS["Derived"](a=-1)
    with pytest.raises(TypeError):
        hash(OURS["One"](a=[]))


def test_values_that_are_not_frozen_are_refused() -> None:
    with pytest.raises(TypeError, match="use dataclasses"):
        dataclass(frozen=False)
