import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

import tfexport
from tfexport import errors
from tfexport.cli.console import spell
from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    OutputExistsError,
    Problem,
    TfexportError,
    join_problems,
)

FLAG = re.compile(r"(?<![\w-])--[a-z]")
OF_PIP = " --extra-index-url "  # in the line that installs torch


def all_errors() -> list[type[TfexportError]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value)
        and issubclass(value, TfexportError)
        and value is not TfexportError
    ]


def test_every_error_derives_from_a_builtin_and_stands_in_the_tree() -> None:
    assert len(all_errors()) >= 9
    for error in all_errors():
        first = error if TfexportError in error.__bases__ else error.__mro__[1]  # a kind of it
        assert TfexportError in first.__bases__
        builtin = first.__mro__[2]
        assert builtin.__module__ == "builtins"
        assert f"{error.__name__} " in (errors.__doc__ or "")
        assert f"({builtin.__name__})" in (errors.__doc__ or "")


def test_one_problem_stays_on_its_line_and_several_get_one_each() -> None:
    assert str(join_problems("a", ["b"])) == "a: b"
    assert str(join_problems("a", ["b"], "Do c.")) == "a: b. Do c."
    assert str(join_problems("a", ["b", "c"], "Do d.")) == "a: 2 problems:\n  - b\n  - c\nDo d."


def test_every_front_end_spells_options_its_own_way() -> None:
    problems = [Problem("beam_size", "0 is less than 1"), Problem(None, "too much")]
    remedy = Message("Say ", Option("settings", ["unk_id=3"]), " or ", Option("force", True), ".")
    error = ConfigError(join_problems("options", problems, remedy))
    assert str(error) == (
        "options: 2 problems:\n  - beam_size: 0 is less than 1\n  - too much\n"
        "Say settings=['unk_id=3'] or force=True."
    )
    assert error.message.spelled(spell) == (
        "options: 2 problems:\n  - --beam-size: 0 is less than 1\n  - too much\n"
        "Say --set unk_id=3 or --force."
    )
    assert str(OutputExistsError(Message(Option("layout", "annotated")))) == "layout='annotated'"
    assert spell(Option("layout", "annotated")) == "--format annotated"
    assert spell(Option("early_stopping", False)) == "--no-early-stopping"


def test_version_is_a_version() -> None:
    found = Version(tfexport.__version__)  # raises if it is none; of a tag, or before the next one
    assert found >= Version("0.1.0.dev0")
    assert found.local is None


def with_flags(text: str) -> Iterator[str]:
    """Strings of a module that name a flag of the command line; docstrings may."""
    if not FLAG.search(text):
        return
    tree = ast.parse(text)
    described = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in described:
            value = node.value
            if isinstance(value, str) and FLAG.search(value.replace(OF_PIP, " ")):
                yield value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def b():\n  raise E(f'{c}: pass --force')", [": pass --force"]),
        ("def b():\n  '''As --force.'''\n  return 'a--b -- --'", []),
        ("# --force\nx = 1", []),
    ],
)
def test_flags_are_found(text: str, found: list[str]) -> None:
    assert [*with_flags(text)] == found


def test_library_names_options_as_python_does() -> None:
    root = Path(tfexport.__file__).parent
    paths = [path for path in root.rglob("*.py") if root / "cli" not in path.parents]
    assert len(paths) > 100
    found = {str(path): [*with_flags(path.read_text(encoding="utf-8"))] for path in paths}
    assert {path: strings for path, strings in found.items() if strings} == {}
