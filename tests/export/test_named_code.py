"""Code of a user's own, imported by name."""

import functools
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from tfexport.errors import ConfigError
from tfexport.export.named_code import (
    is_named,
    is_users,
    library_of,
    load_named,
    one_line,
    users_code,
)

pytestmark = pytest.mark.messages

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module into the current folder, and give it a name that no other test has."""
    monkeypatch.chdir(tmp_path)
    path, before = [*sys.path], set(sys.modules)
    names = iter(range(100))

    def write(code: str, name: str | None = None) -> str:
        name = name or f"own_code_{tmp_path.name}_{next(names)}"
        file = tmp_path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        return name

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_named(name, "reference")
    text = str(raised.value)
    assert text.startswith("reference: ")
    assert "\n" not in text
    return text


def test_function_of_a_module_in_the_current_folder(write: Write) -> None:
    name = write("def double(x):\n    return 2 * x\n")
    assert load_named(f"{name}:double")(4) == 8


def test_module_of_a_package_and_attribute_of_an_attribute(write: Write) -> None:
    write(
        "class Model:\n    @staticmethod\n    def run(x):\n        return x + 1\n", "own_pack.model"
    )
    assert load_named("own_pack.model:Model.run")(4) == 5


def test_installed_module_is_found() -> None:
    assert load_named("json:dumps")([1]) == "[1]"


def test_named_code_may_import_its_neighbours_when_it_is_called(write: Write) -> None:
    other = write("VALUE = 7\n")
    name = write(f"def read():\n    from {other} import VALUE\n    return VALUE\n")
    assert load_named(f"{name}:read")() == 7


def test_current_folder_is_first_only_while_importing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]
    name = write("import sys\nFIRST = sys.path[0]\ndef first():\n    return FIRST\n")
    assert load_named(f"{name}:first")() == str(Path.cwd())
    assert sys.path == [*before, str(Path.cwd())]
    load_named(f"{name}:first")
    assert sys.path == [*before, str(Path.cwd())]


@pytest.mark.parametrize("name", ["model", "model:", ":run", "my model:run", "a..b:run", "..a:run"])
def test_names_of_another_form_are_refused(name: str) -> None:
    assert "expected package.file:function, such as my_model:reference" in refusal(name)


def test_path_of_a_file_is_told_as_a_module() -> None:
    assert "(a module, without .py: code.model:function)" in refusal("code/model.py:run")


def test_missing_module_names_the_folder_that_was_searched(write: Write) -> None:
    missing = refusal("no_such_module_at_all:run")
    assert f"no module 'no_such_module_at_all' in {Path.cwd()} or among the installed" in missing
    write("", "own_pack_two.model")
    assert "no module 'own_pack_two.models' in" in refusal("own_pack_two.models:run")


def test_module_that_raises_names_the_exception_and_its_line(write: Write) -> None:
    name = write("import math\n\nmath.sqrt(-1)\n")
    text = refusal(f"{name}:run")
    assert f"{name} raised while it was imported: ValueError: " in text
    assert f"({Path.cwd() / name}.py, line 3)" in text


def test_module_that_misses_another_names_that_one(write: Write) -> None:
    name = write("\nimport no_such_module_at_all\n")
    text = refusal(f"{name}:run")
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in text
    assert "line 2)" in text


def test_syntax_error_names_its_line(write: Write) -> None:
    name = write("x = 1\ny = = 2\n")
    assert f"SyntaxError: invalid syntax ({name}.py, line 2)" in refusal(f"{name}:run")


def test_script_that_exits_when_imported_is_refused(write: Write) -> None:
    name = write("import sys\nsys.exit('usage: train FILE')\n")
    assert "SystemExit: usage: train FILE" in refusal(f"{name}:run")


def test_missing_attribute_gives_the_nearest(write: Write) -> None:
    name = write("class Model:\n    value = 3\ndef reference():\n    pass\n")
    expected = f"{name}:referense: {name} has no 'referense'; did you mean 'reference'?"
    assert expected in refusal(f"{name}:referense")
    assert "Model has no 'run'" in refusal(f"{name}:Model.run")


def test_what_cannot_be_called_is_refused(write: Write) -> None:
    name = write("TABLE = {}\n")
    assert f"{name}:TABLE is a dict; expected a function" in refusal(f"{name}:TABLE")


def test_module_whose_name_is_taken_is_refused_and_not_silently_another(write: Write) -> None:
    write("def dumps(x):\n    return None\n", "json")
    text = refusal("json:dumps")
    assert f"{Path.cwd()} has a module 'json', but another of that name is loaded" in text


def test_exception_of_any_length_is_one_line() -> None:
    assert one_line(ValueError("a\n b" * 200)).count("\n") == 0
    assert len(one_line(ValueError("long " * 200))) < 340
    assert one_line(ValueError()) == "ValueError"


OWNED = [
    (torch.nn.Linear, None),
    (json.loads, None),
    (users_code, None),
    (click.echo, "click"),
    (test_exception_of_any_length_is_one_line, "the user"),
]


@pytest.mark.parametrize(("value", "owner"), OWNED, ids=lambda each: str(each)[:20])
def test_files_have_an_owner_wherever_they_are(value: Any, owner: str | None) -> None:
    file = inspect.getsourcefile(value)
    assert file is not None
    assert is_named(file) == (owner is not None)
    assert is_users(file) == (owner == "the user")
    assert library_of(file) == (owner if owner == "click" else None)


@pytest.mark.parametrize("name", ["<stdin>", "<string>", "<eval_with_key>.3", "of_no_file.py"])
def test_code_without_a_file_is_not_named(name: str) -> None:
    assert not is_named(name)


@pytest.mark.parametrize("name", ["<ipython-input-3-0a1b>", "/tmp/ipykernel_12/345.py"])
def test_cells_are_the_users(name: str) -> None:
    assert is_users(name)


def test_relative_names_are_of_the_current_folder(write: Write, tmp_path: Path) -> None:
    name = write("")
    assert is_users(f"{name}.py")
    (tmp_path / f"{name}.zip").write_bytes(b"")
    assert is_users(f"{name}.zip/model.py")


def installed_code(folder: Path, name: str, text: str) -> Any:
    """A module of a package that is installed in a folder of packages."""
    package = folder / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(text)
    sys.path.insert(0, str(package.parent))
    return importlib.import_module(f"{name}.model")


@pytest.mark.usefixtures("write")
def test_packages_of_the_exported_model_are_the_users_while_it_is_exported(tmp_path: Path) -> None:
    text = "from torch import nn\nclass Model(nn.Module): pass\ndef forward(model): pass\n"
    module = installed_code(tmp_path, "of_a_model", text)
    wrapped = torch.nn.Sequential(module.Model())
    for value in (module.Model(), wrapped, module.forward, functools.partial(module.forward)):
        assert library_of(module.__file__) == "of_a_model"
        with users_code(value, None, "a path"):
            assert is_users(module.__file__)
            assert library_of(module.__file__) is None
            assert library_of(str(click.__file__)) == "click"
            assert not is_named(str(torch.__file__))
    assert not is_users(module.__file__)


@pytest.mark.usefixtures("write")
def test_a_package_that_is_named_is_the_users(tmp_path: Path) -> None:
    installed_code(tmp_path, "of_a_factory", "def make():\n    raise ValueError('why')\n")
    with pytest.raises(ValueError, match="why") as raised:
        load_named("of_a_factory.model:make")()
    assert re.search(r"of_a_factory.model\.py, line 2\)$", one_line(raised.value))


@pytest.mark.usefixtures("write")
def test_a_link_to_a_package_elsewhere_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "model.py").write_text("")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "linked").symlink_to(tmp_path / "clone")
    assert is_users(str(tmp_path / "site-packages" / "linked" / "model.py"))
