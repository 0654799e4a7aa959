"""The package's source, and the rules that it keeps: parameters, imports, flags, docstrings."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

MOST_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module
Scope = tuple[str, Documented]


class Source:
    """A module of the package.

    Args:
        path: in the repository.
        text: of the file.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text)

    @property
    def module(self) -> str:
        """Its name in imports."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def scopes(self) -> Iterator[Scope]:
        """The module, its classes and its functions, each with its name within the module."""
        yield "", self.tree
        yield from _inner(self.tree, "")

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Methods and nested functions too."""
        for name, node in self.scopes():
            if isinstance(node, Function):
                yield name, node

    def outside(self, folder: str) -> bool:
        """Whether it lies elsewhere."""
        return not self.path.startswith(f"{folder}/")


def _inner(node: ast.AST, prefix: str) -> Iterator[Scope]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield prefix + child.name, child
            yield from _inner(child, f"{prefix}{child.name}.")
        else:
            yield from _inner(child, prefix)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All below a scope, without the scopes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _docstring(node: Documented) -> ast.Expr | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first if isinstance(first.value.value, str) else None
    return None


def _imports_of_tfexport(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return bool(node.level) or (node.module or "").partition(".")[0] == "tfexport"
    return isinstance(node, ast.Import) and any(
        alias.name.partition(".")[0] == "tfexport" for alias in node.names
    )


# Each rule gives the names of the scopes of a module that break it; "" is the module.


def long_signatures(source: Source) -> Iterator[str]:
    """Neither self and cls nor ``*`` and ``**`` are counted."""
    for name, node in source.functions():
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        counted = [argument for argument in arguments if argument.arg not in ("self", "cls")]
        if len(counted) > MOST_PARAMETERS:
            yield name


def hidden_imports(source: Source) -> Iterator[str]:
    """Of the package inside a function. The command line's bodies load libraries when needed."""
    for name, node in source.functions():
        lazy = node.name == "__getattr__" or not source.outside("tfexport/cli")
        if not lazy and any(map(_imports_of_tfexport, _own_nodes(node))):
            yield name


def imports_for_types_only(source: Source) -> Iterator[str]:
    """In the runtime, they hide a circle; not in a package that imports its names lazily."""
    if source.outside("tfexport/runtime") or _is_lazy_package(source):
        return
    guarded = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    if any(_imports_of_tfexport(inner) for node in guarded for inner in ast.walk(node)):
        yield ""


def _is_lazy_package(source: Source) -> bool:
    functions = (node.name for node in source.tree.body if isinstance(node, Function))
    return source.path.endswith("/__init__.py") and "__getattr__" in functions


def flags(source: Source) -> Iterator[str]:
    """Of the command line, in strings of the library."""
    if not source.outside("tfexport/cli"):
        return
    for name, node in source.scopes():
        docstring = _docstring(node)
        strings = (
            inner.value
            for inner in _own_nodes(node)
            if isinstance(inner, ast.Constant)
            and isinstance(inner.value, str)
            and (docstring is None or inner is not docstring.value)
        )
        if any(re.search(r"(?<![\w-])--[a-z]", string) for string in strings):
            yield name


def modules_without_docstring(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield ""


Rule = Callable[[Source], Iterator[str]]


def read_sources(root: Path, folder: str = "tfexport") -> list[Source]:
    """All modules of the package, or of another folder.

    Args:
        root: of the repository.
        folder: in it.
    """
    paths = sorted((root / folder).rglob("*.py"))
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]


def broken(rule: Rule, sources: list[Source]) -> set[str]:
    """Where a rule is broken: ``path`` for a module, ``path:name`` for something in it."""
    return {
        f"{source.path}:{name}".removesuffix(":") for source in sources for name in rule(source)
    }


def import_circles(sources: list[Source]) -> list[set[str]]:
    """Modules that import each other, wherever in them the imports stand.

    Returns:
        One set for each group of modules of which each reaches every other.
    """
    imported = _import_graph(sources)
    reached = {name: _reachable(name, imported) for name in imported}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in imported
    }
    return sorted((set(group) for group in groups if group), key=min)


def _import_graph(sources: list[Source]) -> dict[str, set[str]]:
    names = {source.module: source for source in sources}
    graph: dict[str, set[str]] = {}
    for name, source in names.items():
        found = set()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner & names.keys()
                if inner - names.keys():  # something that the module itself holds
                    found.add(node.module)
        graph[name] = found & names.keys()
    return graph


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached
