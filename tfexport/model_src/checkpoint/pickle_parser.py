"""A pickle parsed to data, with nothing called, imported or allocated.

Every instruction that ``torch.save`` writes is interpreted on a stack of plain values. A function
call of the pickle becomes a ``Call`` in the result, a tensor's storage a ``DeclaredStorage``. So a
file can be checked before torch loads it.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAX_INSTRUCTIONS = 400_000
_SCALARS = (str, int, float, bool, bytes, type(None))
_LONGEST_KEY = 16  # items of a tuple that is a key
_DICTIONARIES = ("collections.OrderedDict", "collections.Counter")


class PickleError(ValueError):
    """A pickle that torch.save did not write, or that is too large to be checked."""


class LongPickleError(PickleError):
    """A pickle of more instructions than the limit."""


@dataclass(frozen=True)
class Global:
    """Something that the pickle would import, by its dotted path."""

    path: str


@dataclass(eq=False)
class Call:
    """Something that the pickle would call, or an object that it would make.

    Attributes:
        path: dotted path of the callable; empty if it is not a global.
        args: positional arguments.
        state: state that would be set on the object afterwards.
    """

    path: str
    args: Any
    state: Any = None


@dataclass(frozen=True)
class DeclaredStorage:
    """A tensor's bytes, stored outside the pickle.

    Attributes:
        kind: the storage class, e.g. "torch.FloatStorage".
        key: the name of the record.
        size: number of values; of bytes for an untyped storage.
    """

    kind: str
    key: str
    size: int


@dataclass
class Machine:
    """An interpreter of pickles in sequence, with one limit of instructions for all."""

    limit: int = MAX_INSTRUCTIONS
    left: int = field(init=False)
    _stack: list[Any] = field(default_factory=list)
    _marks: list[list[Any]] = field(default_factory=list)
    _memo: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = self.limit

    def read(self, file: BinaryIO) -> Any:
        """The value of the pickle at the file's position, which ends up after it.

        Raises:
            PickleError: the bytes are no pickle of torch.save, or too long a one.
        """
        self._stack, self._marks, self._memo = [], [], {}
        try:
            for opcode, argument, _ in pickletools.genops(file):
                self.left -= 1
                if self.left < 0:
                    raise LongPickleError(f"more than {self.limit} instructions in its pickle")
                if opcode.name == "STOP":
                    return self._stack.pop()
                if opcode.name in _CONSTANTS:
                    self._stack.append(_CONSTANTS[opcode.name](argument))
                else:
                    self._follow(opcode.name, argument)
        except PickleError:
            raise
        except (ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
            raise PickleError(f"damaged pickle: {error}") from None
        raise PickleError("damaged pickle: it has no end")

    def _follow(self, name: str, argument: Any) -> None:
        if name not in _INSTRUCTIONS:
            raise PickleError(
                f"its pickle has an instruction {name}, which torch.save never writes"
            )
        _INSTRUCTIONS[name](self, argument)

    def _since_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    def _mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _tuple(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(tuple(items))

    def _short_tuple(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(items)

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(target, dict):
            target.update((require_flat(key), value) for key, value in pairs)

    def _call(self, _: Any) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        path = function.path if isinstance(function, Global) else ""
        if path in _DICTIONARIES:
            (pairs,) = args or ((),)
            self.left -= len(pairs)  # a dictionary could be copied by every other instruction
            made = pairs.items() if isinstance(pairs, dict) else pairs
            self._stack.append({require_flat(key): value for key, value in made})
        else:
            self._stack.append(Call(path, args))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Call):
            self._stack[-1].state = state

    def _storage(self, _: Any) -> None:
        declared = self._stack.pop()
        if isinstance(declared, tuple) and declared[:1] == ("module",) and len(declared) > 1:
            self._stack.append(declared[1])  # the class of a module, as the legacy format stores it
            return
        if not (
            isinstance(declared, tuple) and len(declared) in (5, 6) and declared[0] == "storage"
        ):
            raise PickleError("a tensor's storage has an unknown format")
        _, kind, key, _, size, *view = declared
        if not (isinstance(kind, Global) and isinstance(size, int) and size >= 0):
            raise PickleError("a tensor's storage has an unknown format")
        if any(item is not None for item in view):
            raise PickleError(
                "its storages are views of one another, as torch before 0.4 wrote them"
            )
        self._stack.append(DeclaredStorage(kind.path, str(require_flat(key)), size))


def require_flat(key: Any) -> Any:
    """A dictionary's key, or a set's member, that is quickly hashed.

    The hash of nested tuples can take for ever, or more stack than there is; that of long tuples
    and numbers is computed again every time.
    """
    if isinstance(key, tuple) and not all(isinstance(item, _SCALARS) for item in key):
        raise PickleError("it contains nested tuples as keys")
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > _LONGEST_KEY or any(
        isinstance(part, int) and part.bit_length() > 64 for part in parts
    ):
        raise PickleError("it contains long tuples or numbers as keys")
    return key


def _global(argument: str) -> Global:
    module, _, name = argument.partition(" ")
    return Global(f"{module}.{name}".replace("__builtin__.", "builtins."))


def _value(argument: Any) -> Any:
    return argument


_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: set(),
    "GLOBAL": _global,
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE"), _value
    ),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), _value),
}
_INSTRUCTIONS: dict[str, Callable[[Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "MARK": Machine._mark,
    "BINPUT": Machine._put,
    "LONG_BINPUT": Machine._put,
    "BINGET": Machine._get,
    "LONG_BINGET": Machine._get,
    "TUPLE": Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
    "APPEND": lambda machine, _: machine._extend([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine._extend(machine._since_mark()),
    "SETITEM": lambda machine, _: machine._set([machine._stack.pop(), machine._stack.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine._set(machine._since_mark()),
    "REDUCE": Machine._call,
    "NEWOBJ": Machine._call,
    "BUILD": Machine._build,
    "BINPERSID": Machine._storage,
}
