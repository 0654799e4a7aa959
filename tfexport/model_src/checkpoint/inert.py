"""Plain values of the objects in a parsed pickle: what a toolkit keeps its options in.

An ``argparse.Namespace`` becomes a dictionary of its attributes, omegaconf's nodes become what they
hold, an Enum's member of a toolkit its value. Anything else becomes the name of its class in angle
brackets, which no option takes.
"""

from typing import Any

from tfexport.errors import shown
from tfexport.model_src.checkpoint.pickled import Call, Global, PickleError, StorageClaim

_SCALARS = (str, int, float, bool, type(None))
_NAMESPACE = "argparse.Namespace"
_TOOLKITS = ("fairseq.", "onmt.")
_MOST_VALUES, _DEEPEST = 20_000, 16


def is_namespace(value: Any) -> bool:
    """Whether a value of a parsed pickle is an ``argparse.Namespace``."""
    return isinstance(value, Call) and value.path == _NAMESPACE


def plain_value(value: Any) -> Any:
    """A value of a parsed pickle as dictionaries with text as keys, lists and scalars.

    Raises:
        PickleError: there are more values than options have, or deeper ones.
    """
    return _Reader().read(value, 0)


class _Reader:
    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def read(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > _DEEPEST:
            raise PickleError("its options hold more values than a toolkit's do")
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict):
            pairs = [(key, item) for key, item in value.items() if isinstance(key, str)]
            return {key: self.read(item, depth + 1) for key, item in pairs}
        if isinstance(value, list | tuple):
            return [self.read(item, depth + 1) for item in value]
        if isinstance(value, Call):
            return self._read_object(value, depth)
        return _name(value)

    def _read_object(self, value: Call, depth: int) -> Any:
        state = value.state if isinstance(value.state, dict) else {}
        if value.path == _NAMESPACE:
            return self.read(state, depth + 1)
        for content in ("_content", "_val"):  # of omegaconf's containers and leaves
            if content in state and value.path.startswith("omegaconf."):
                return self.read(state[content], depth + 1)
        alone = value.args[0] if isinstance(value.args, tuple) and len(value.args) == 1 else None
        enum = value.path.startswith(_TOOLKITS) and value.state is None
        if enum and isinstance(alone, str | int | float):
            return alone
        return _name(value)


def _name(value: Any) -> str:
    path = value.path if isinstance(value, Call | Global) else type(value).__name__
    path = value.kind if isinstance(value, StorageClaim) else path
    return f"<{shown(path)}>"
