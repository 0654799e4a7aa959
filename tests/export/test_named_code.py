"""Code of a user's own, imported by name."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfexport.errors import ConfigError
from tfexport.export.named_code import load_named, one_line

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
