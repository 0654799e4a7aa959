"""Importing a user's function by its name, ``package.file:function``."""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tfexport.errors import ConfigError, Message, Problem, nearest_name, shown

_FORM = "expected package.file:function, such as my_model:reference"
_MOST = 300  # characters of a user's own exception
_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = [
    Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")
]
_NOT_USERS = {path.resolve() for path in (*_LIBRARIES, _PACKAGE)}
_INSTALLED = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
# Libraries that messages never name.
_EXPORTERS = {"torch", "functorch", "torchgen", "onnx", "onnx_ir", "onnxruntime", "onnxscript"}


def load_named(name: str, option: str | None = None) -> Callable[..., Any]:
    """Import a module and return what is named in it. The module's code is run.

    The current folder is searched first. It stays on ``sys.path`` afterwards, at the end, for what
    the named code itself imports when it is called.

    Args:
        name: the dotted path of a module, a colon, and the dotted path of an attribute.
        option: the name of the option, for messages.

    Raises:
        ConfigError: the name has another form, the module does not exist or raises, or the
            attribute does not exist or is not callable.
    """
    try:
        return _load(name)
    except ConfigError as error:
        raise ConfigError(Message(Problem(option, error.message))) from error.__cause__


def one_line(error: BaseException) -> str:
    """Format an exception of the user's code as one line: type, message and location.

    The location is the innermost line outside Python, installed libraries and this package.
    """
    text = " ".join(str(error).split())
    text = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    kind = type(error).__name__
    location = _location(error)
    return f"{kind}{f': {text}' if text else ''}{f' ({location})' if location else ''}"


def _load(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{shown(name)} names no function; {_FORM}{_as_module(module_name)}.")
    folder = Path.cwd()
    with _searched_first(folder):
        found: Any = _import(module_name, folder)
    for part in attribute.split("."):
        if not hasattr(found, part):
            nearest = nearest_name(part, [each for each in dir(found) if not each.startswith("_")])
            hint = "" if nearest is None else f"; did you mean {nearest!r}?"
            raise ConfigError(f"{name}: {_owner(found)} has no {part!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}; expected a function.")
    function: Callable[..., Any] = found
    return function


def _as_module(path: str) -> str:
    """A hint for a file that was named as a path."""
    if not path.endswith(".py"):
        return ""
    dotted = ".".join(part for part in Path(path).with_suffix("").parts if part.isidentifier())
    return f" (a module, without .py: {dotted}:function)"


def _import(module_name: str, folder: Path) -> ModuleType:
    top = module_name.partition(".")[0]
    taken, own = sys.modules.get(top), PathFinder.find_spec(top, [str(folder)])
    if taken is not None and own is not None and own.origin is not None:
        origin = getattr(taken.__spec__, "origin", None) or getattr(taken, "__file__", None)
        if origin is None or Path(origin).resolve() != Path(own.origin).resolve():
            raise ConfigError(
                f"{module_name}: {folder} has a module {top!r}, but another of that name is "
                f"loaded already ({origin or 'built in'}). Rename yours."
            )
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"no module {missing!r} in {folder} or among the installed packages."
            ) from None
        raise ConfigError(
            f"{module_name} raised while it was imported: {one_line(error)}"
        ) from error


@contextmanager
def _searched_first(folder: Path) -> Iterator[None]:
    path = str(folder)
    sys.path.insert(0, path)
    importlib.invalidate_caches()  # of files that were written since Python started
    try:
        yield
    finally:
        sys.path.remove(path)
        if path not in sys.path:
            sys.path.append(path)


def _owner(found: Any) -> str:
    return str(getattr(found, "__name__", type(found).__name__))


def _location(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None


@cache
def is_users(filename: str) -> bool:
    """Whether a file is neither Python's, nor an installed library's, nor this package's."""
    path = Path(filename)
    if filename.startswith("<") or not path.is_absolute():  # frozen, or compiled from a string
        return False
    return not any(path.resolve().is_relative_to(folder) for folder in _NOT_USERS)


@cache
def library_of(filename: str) -> str | None:
    """The installed library that a file is of, such as ``numpy``; None of torch and all others."""
    path = Path(filename)
    if filename.startswith("<") or not path.is_absolute():
        return None
    path = path.resolve()
    for folder in _INSTALLED:
        if path.is_relative_to(folder):
            name = path.relative_to(folder).parts[0].removesuffix(".py")
            return None if name in _EXPORTERS else name
    return None
