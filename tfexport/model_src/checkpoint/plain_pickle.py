"""Files of ``pickle.dump`` and ``torch.save``, of any protocol, parsed to data.

As in ``pickled``, nothing is called, imported or allocated: an object of any class becomes a
``Call`` with its state, and nothing is known of its class but the name.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfexport.file_access import open_file
from tfexport.model_src.checkpoint.archive import (
    LEGACY_MAGIC,
    MAX_PICKLE_BYTES,
    ZIP_HEAD,
    read_contents,
)
from tfexport.model_src.checkpoint.pickled import Call, Global, Machine, PickleError

# A vocabulary of torchtext 0.6 takes seven for each word, and others three.
MAX_INSTRUCTIONS = 2_000_000


def read_pickle(path: Path) -> Any:
    """The value of a pickle, or of a file of ``torch.save``, without its tensors.

    Raises:
        PickleError: neither of them, damaged, or too large.
        OSError: the file cannot be read.
    """
    machine = PlainMachine(MAX_INSTRUCTIONS)
    with open_file(path) as file:
        content = file.read(MAX_PICKLE_BYTES + 1)
    if content.startswith(ZIP_HEAD):
        return read_contents(path, machine).value
    if len(content) > MAX_PICKLE_BYTES:
        raise PickleError(f"more than {MAX_PICKLE_BYTES} bytes of pickle")
    value = machine.read(io.BytesIO(content))
    if type(value) is int and value == LEGACY_MAGIC:  # torch.save's format before 1.6
        return read_contents(path, machine).value
    return value


class PlainMachine(Machine):
    """An interpreter that also knows the instructions of protocols 0, 1, 3, 4 and 5."""

    def _follow(self, name: str, argument: Any) -> None:
        if name in _TEXTS:
            self._stack.append(argument)
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, argument)
        else:
            super()._follow(name, argument)

    def _memoize(self, _: Any) -> None:
        self._put(len(self._memo))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("the name of something that it would import is no text")
        self._stack.append(Global(f"{module}.{name}"))

    def _dict(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._set(items)

    def _list(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(items)

    def _drop_members(self, _: Any) -> None:
        self._since_mark()  # of a set, which holds no vocabulary: its order is not defined

    def _frozenset(self, _: Any) -> None:
        self._since_mark()
        self._stack.append(Call("builtins.frozenset", ()))

    def _new_with_keywords(self, _: Any) -> None:
        self._stack.pop()
        self._call(None)

    def _call(self, _: Any) -> None:
        function = self._stack[-2]
        if isinstance(function, Global) and function.path == "collections.defaultdict":
            del self._stack[-2:]
            self._stack.append({})  # its items follow; its factory is not needed
        else:
            super()._call(None)


_TEXTS = (
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "SHORT_BINBYTES", "BINBYTES",
    "BINBYTES8", "BYTEARRAY8", "INT", "LONG", "FLOAT",
)  # fmt: skip
_INSTRUCTIONS: dict[str, Callable[[PlainMachine, Any], None]] = {
    "FRAME": lambda machine, _: None,
    "MEMOIZE": PlainMachine._memoize,
    "PUT": Machine._put,
    "GET": Machine._get,
    "STACK_GLOBAL": PlainMachine._stack_global,
    "DICT": PlainMachine._dict,
    "LIST": PlainMachine._list,
    "ADDITEMS": PlainMachine._drop_members,
    "FROZENSET": PlainMachine._frozenset,
    "NEWOBJ_EX": PlainMachine._new_with_keywords,
    # The base class's table holds functions, not names of methods.
    "REDUCE": PlainMachine._call,
    "NEWOBJ": PlainMachine._call,
}
