"""The user's code: a function by its name, ``package.file:function``, and whose a file is.

Messages name lines of the user's files, and the libraries that these call. They name no line of
Python, of torch and onnx, and of this package, wherever these are installed.
"""

import importlib
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

from torch import nn

from tfexport.errors import ConfigError, ExportError, Message, Problem, nearest_name, shown

_FORM = "expected package.file:function, such as my_model:reference"
_MOST = 300  # characters of a user's own exception
# Packages that messages never name, and folders of packages.
_EXPORTERS = (
    "tfexport", "torch", "functorch", "torchgen", "onnx", "onnx_ir", "onnxruntime", "onnxscript",
)  # fmt: skip
_PACKAGES = ("site-packages", "dist-packages")
# Names of code that was typed in, whose lines Python keeps: in IPython and in Python 3.13.
_CELLS = ("<ipython-input-", "<python-input-")
_USER = "the user"
# Folders of packages, and files, that are the user's although they are installed.
_USERS_OWN: ContextVar[frozenset[str]] = ContextVar("_USERS_OWN", default=frozenset())

Line = tuple[str, int, str]  # a file, the number of a line, and the function that it is in


class LinesError(ExportError):
    """An error about lines of code through which it did not pass when it was raised.

    Attributes:
        lines: these, the one that is at fault last.
    """

    def __init__(self, message: str | Message = "", lines: Sequence[Line] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)


def load_named(name: str, option: str | None = None) -> Callable[..., Any]:
    """Import a module and return what is named in it. The module's code is run.

    The current folder is searched first. It stays on ``sys.path`` afterwards, at the end, for what
    the named code itself imports when it is called. The package of the module is the user's from
    then on, wherever it is installed.

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
        _USERS_OWN.set(_USERS_OWN.get() | _homes_of_modules(module_name))
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


def is_users(filename: str) -> bool:
    """Whether a file is neither Python's, nor an installed library's, nor this package's.

    Cells of notebooks are the user's, and so are files in archives, and installed packages inside
    ``users_code``.
    """
    owner = _whose(filename)
    return owner == _USER or (owner is not None and _holds(_USERS_OWN.get(), filename))


def library_of(filename: str) -> str | None:
    """The installed library that a file is of, such as ``numpy``; None of torch and all others."""
    return None if is_users(filename) else _whose(filename)


def is_named(filename: str) -> bool:
    """Whether messages name lines of a file: those of the user, and of libraries that it calls."""
    return _whose(filename) is not None


@cache
def is_exporting(filename: str) -> bool:
    """Whether a file is one of this package, or of torch and onnx."""
    return _holds(_exporters(), filename)


@contextmanager
def users_code(*values: object) -> Iterator[None]:
    """Let the packages of models and functions be the user's inside the block, if installed, too.

    Args:
        values: modules, whose classes count; of a layer of torch, those of its parts. Functions,
            and objects that can be called. Anything else has no package.
    """
    names = {name for value in values for name in _modules_of(value)}
    token = _USERS_OWN.set(_USERS_OWN.get() | _homes_of_modules(*names))
    try:
        yield
    finally:
        _USERS_OWN.reset(token)


def _modules_of(value: object) -> Iterator[str]:
    """The names of the modules that define a model or a function."""
    if isinstance(value, partial):
        yield from _modules_of(value.func)
    elif isinstance(value, nn.Module):
        classes = [each.__module__ for each in type(value).__mro__ if each is not object]
        others = [name for name in classes if name.partition(".")[0] not in _EXPORTERS]
        yield from others
        if not others:  # a container, or what torch wraps a module in
            for part in value.children():
                yield from _modules_of(part)
    elif callable(value):
        if isinstance(value, MethodType):
            yield from _modules_of(value.__self__)
        yield getattr(value, "__module__", None) or type(value).__module__


def _homes_of_modules(*names: str) -> frozenset[str]:
    """The folders of the outermost packages of modules; of a module without one, its file."""
    return frozenset(home for name in names if (home := _home(name)) is not None)


def _home(name: str) -> str | None:
    main = sys.modules["__main__"]
    if name == "__main__" and getattr(main, "__spec__", None) is not None:
        name = main.__spec__.name  # type: ignore[union-attr]  # python -m package.file
    parts = name.split(".")
    for count in range(1, len(parts) + 1):  # those without a file are namespaces of several
        module = sys.modules.get(".".join(parts[:count]))
        file = getattr(module, "__file__", None)
        if file is not None:
            return str(Path(file).parent) if hasattr(module, "__path__") else str(file)
    return None if name == "__main__" else next(iter(_folders_of(parts[0])), None)


def _folders_of(name: str) -> list[str]:
    """The folder of a package, or the file of a module, that need not be imported yet."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # it has none, such as one that was made in memory
        return []
    if spec is None or spec.origin is None:
        return []
    return list(spec.submodule_search_locations or [spec.origin])


def _holds(folders: frozenset[str] | tuple[str, ...], filename: str) -> bool:
    """Whether a file is in one of some folders, or is one of them."""
    return any(filename == folder or filename.startswith(folder + os.sep) for folder in folders)


@cache
def _whose(filename: str) -> str | None:
    """``_USER``, the name of a library, or None of what messages do not name.

    A link to a file counts as the file's owner, and as that of the folder in which the link is.
    """
    if filename.startswith("<"):  # frozen, compiled from a string, or a cell
        return _USER if filename.startswith(_CELLS) else None
    path = Path(filename).absolute()
    exists = path.exists()
    if not Path(filename).is_absolute() and not exists and not _is_archived(path):
        return None
    if not exists:
        _keep_source(filename)
    places = {str(path), str(path.resolve())}
    if any(_holds(_exporters(), place) for place in places):
        return None
    library = _library(path) or _library(path.resolve())
    if library is None and any(_holds(_python(), place) for place in places):
        return None
    return library or _USER


def _library(path: Path) -> str | None:
    """The name of the package of a file, if it is in a folder of packages."""
    places = [place for place, part in enumerate(path.parts[:-1]) if part in _PACKAGES]
    places = places or [
        len(Path(folder).parts) - 1 for folder in _installed() if path.is_relative_to(folder)
    ]
    if not places:
        return None
    first = Path(*path.parts[: places[-1] + 2])
    if first.is_symlink():  # a package under development, or one of another environment
        return _library(path.resolve())
    return first.name.removesuffix(".py")


def _is_archived(path: Path) -> bool:
    return any(folder.is_file() for folder in path.parents)


def _keep_source(filename: str) -> None:
    """Let Python's cache of lines read a file of an archive, which only its module can open."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            linecache.lazycache(filename, vars(module))


@cache
def _exporters() -> tuple[str, ...]:
    folders = [folder for name in _EXPORTERS for folder in _folders_of(name)]
    return _with_links(str(Path(__file__).parents[1]), *folders)


@cache
def _python() -> tuple[str, ...]:
    folders = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib")]
    return _with_links(str(Path(os.__file__).parent), *folders)


@cache
def _installed() -> tuple[str, ...]:
    """Folders of packages that this Python may have under another name."""
    return _with_links(*(sysconfig.get_path(key) for key in ("purelib", "platlib")))


def _with_links(*folders: str) -> tuple[str, ...]:
    """Folders by their names, and by those of what links among these lead to."""
    return tuple({each for folder in folders for each in (folder, str(Path(folder).resolve()))})
