"""Messages about missing libraries: they name packages that pip finds, never tfexport itself."""

import re
import shlex
from importlib import metadata

import pytest

from tests.support.documents import PAGES
from tests.support.paths import REPOSITORY
from tfexport.errors import missing_dependency

SOURCES = sorted((REPOSITORY / "tfexport").rglob("*.py"))
# As the code names them, and the tokenizer libraries, each of which is an extra of its own name.
EXTRAS = {"tokenizers", "sentencepiece"} | {
    extra
    for source in SOURCES
    for extra in re.findall(r'(?:\bneeds\(|\bextra=)"(\w+)"', source.read_text(encoding="utf-8"))
} - {"forbid"}  # what pydantic is told


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_hint_installs_the_libraries_of_an_extra(extra: str) -> None:
    message = str(missing_dependency("this needs something", extra))
    sentence, command = message.split(". Install it with: ")
    assert sentence == "this needs something"
    program, verb, *requirements = shlex.split(command)
    assert (program, verb) == ("pip", "install")
    names = {re.split(r"[<>=~!\[]", requirement)[0] for requirement in requirements}
    assert names
    assert "tfexport" not in names
    listed = metadata.metadata("tfexport").get_all("Provides-Extra") or []
    assert extra in listed


def test_hint_keeps_what_else_a_requirement_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        "click>=8",
        'a>=1; extra == "serve"',
        "b>=2; sys_platform != 'win32' and extra == \"serve\"",
        "c; (python_version < '3.11' or os_name == 'nt') and extra == 'serve'",
        'd; extra == "server"',
        "e; python_version < '3.11'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: listed)
    _, _, command = str(missing_dependency("x", "serve")).partition(". Install it with: ")
    assert shlex.split(command)[2:] == [
        "a>=1",
        'b>=2; sys_platform != "win32"',
        'c; (python_version < "3.11" or os_name == "nt")',
    ]


def test_hint_where_tfexport_is_on_the_path_but_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def requires(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    message = str(missing_dependency("this needs torch", "export"))
    assert message.endswith(
        "pip install '.[export]' --extra-index-url https://download.pytorch.org/whl/cpu "
        "in the folder of tfexport's pyproject.toml"
    )
    message = str(missing_dependency("this needs a server", "serve"))
    assert message.endswith("pip install '.[serve]' in the folder of tfexport's pyproject.toml")


def test_torch_is_installed_without_cuda() -> None:
    _, _, command = str(missing_dependency("x", "export")).partition(". Install it with: ")
    *requirements, option, index = shlex.split(command)
    assert any(each.startswith("torch>=") for each in requirements)
    assert (option, index) == ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
    page = (REPOSITORY / "docs" / "quick-start.md").read_text(encoding="utf-8")
    assert f"--extra-index-url {index}" in page
    assert "--extra-index-url" not in str(missing_dependency("x", "serve"))


def test_nobody_is_told_to_install_tfexport_from_an_index() -> None:
    for path in [*SOURCES, *PAGES]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install '?tfexport|tfexport\[\w", text), path
