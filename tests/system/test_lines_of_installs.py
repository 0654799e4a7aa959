"""Messages name the user's lines wherever tfexport, torch and the user's code are installed."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once
from tests.support.installs import DEPENDENCIES, Install, build_wheel, copy_sources
from tests.support.paths import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="packages are linked into environments"),
]
SUPPORT = REPOSITORY / "tests" / "support"
MODEL = (SUPPORT / "user_model.py").read_text(encoding="utf-8")
SCRIPT = f"{MODEL}\n\nimport sys\n\nimport line_report\n\nline_report.main(*sys.argv[1:])\n"
CELL, KERNEL_CELL = "<ipython-input-1-1f2e3d>", "/tmp/ipykernel_123/4567.py"
Said = dict[str, Any]


def line(code: str) -> int:
    """The number of a line of the model."""
    (number,) = (i for i, text in enumerate(MODEL.splitlines(), 1) if text.strip() == code)
    return number


MEAN = line("mean = (self.source(source) * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True)")
SUMMED = line("summed = self.target(target).cumsum(1)")
TANH = line("return self.out(torch.tanh(summed + mean))")
ONES = line("ones = torch.ones(int(target.size(1)), 1)")
BRANCH = line("if made.sum() > 0:")


def check(said: Said, file: str) -> None:
    """What was said names the user's file and lines, and no other file."""
    assert Path(said.pop("file")).name == file
    text = json.dumps(said)
    assert set(re.findall(r"[\w.-]+\.py\b", text)) == ({file} if file.endswith(".py") else set())
    assert "through" not in text
    assert "the library" not in text
    (note,) = said["notes"]
    code = "return self.out(torch.tanh(summed + mean))"
    assert note.count(f"tanh at {file}:{TANH} in forward: {code} is no") == 2
    (memory,), (state,) = said["found"]["memory"], said["found"]["state"]
    assert memory.endswith(f"div, {file}:{MEAN}")
    assert state.endswith(f"cumsum, {file}:{SUMMED}")
    sized, branching = said["refusals"]["Sized"], said["refusals"]["Branching"]
    assert f"Sized.forward ({file}, line {ONES})" in sized
    assert f"{file}:{ONES} in forward: ones = torch.ones(int(target.size(1)), 1)" in sized
    assert "omit int" in sized
    assert f"Branching.forward ({file}, line {BRANCH}), if made.sum() > 0: a data-" in branching


def report(install: Install, folder: Path, *modules: str, **variables: str) -> Said:
    """What a script of the user's in a folder is told, by module."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "line_report.py").write_bytes((SUPPORT / "line_report.py").read_bytes())
    (folder / "cell.txt").write_text(MODEL, encoding="utf-8")
    install.run("train.py", folder / "report.json", *modules, folder=folder, **variables)
    said: Said = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return said


def write_package(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("", encoding="utf-8")
    (folder / name / "model.py").write_text(MODEL, encoding="utf-8")


def unless_offline(build: Callable[[], None]) -> None:
    """Build something by pip, which takes what it needs for that from an index."""
    try:
        build()
    except subprocess.CalledProcessError as error:
        if "setuptools" not in error.stderr and "connection" not in error.stderr:
            pytest.fail(error.stderr)
        pytest.skip(f"pip cannot build it here: {error.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def wheel(once: Once) -> Path:
    """A wheel of this tree."""
    (path,) = once("wheel", lambda folder: unless_offline(lambda: build_wheel(folder))).glob("*")
    return path


def test_checkout_with_torch_elsewhere(tmp_path: Path) -> None:
    """Both are found by PYTHONPATH."""
    install = Install(tmp_path / "environment")
    paths = f"{REPOSITORY}:{DEPENDENCIES}"
    said = report(install, tmp_path / "a folder", "__main__", PYTHONPATH=paths)
    assert said["places"]["tfexport"] == str(REPOSITORY / "tfexport" / "__init__.py")
    check(said["__main__"], "train.py")


def test_editable_install_with_torch_of_another_environment(tmp_path: Path) -> None:
    """The other environment's packages are named in a file, as by ``--system-site-packages``."""
    install = Install(tmp_path / "environment", DEPENDENCIES)
    copy_sources(tmp_path / "clone")
    unless_offline(lambda: install.install("--editable", tmp_path / "clone"))
    said = report(install, tmp_path / "user", "__main__")
    assert said["places"]["tfexport"] == str(tmp_path / "clone" / "tfexport" / "__init__.py")
    check(said["__main__"], "train.py")


def test_wheel_and_every_place_of_the_users_code(tmp_path: Path, wheel: Path) -> None:
    """One environment has all: only the user's code differs."""
    other = tmp_path / "other" / "site-packages"
    install = Install(tmp_path / "environment", other, link=True)
    install.install(wheel)
    write_package(install.packages, "in_packages")
    write_package(other, "in_other_packages")
    write_package(tmp_path / "files", "in_archive")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for path in sorted((tmp_path / "files").rglob("*.py")):
            archive.write(path, path.relative_to(tmp_path / "files"))
    modules = {
        "__main__": "train.py",
        "in_packages.model": "model.py",
        "in_other_packages.model": "model.py",
        "in_archive.model": "model.py",
        f"cell:{CELL}:cell.txt": CELL,
        f"cell:{KERNEL_CELL}:cell.txt": Path(KERNEL_CELL).name,
    }
    if find_spec("IPython") is not None:
        modules["ipython::cell.txt"] = ""
    said = report(install, tmp_path / "user", *modules, PYTHONPATH=str(tmp_path / "app.zip"))
    assert said["places"]["tfexport"] == str(install.packages / "tfexport" / "__init__.py")
    assert said["places"]["torch"] == str(install.packages / "torch" / "__init__.py")
    if "ipython::cell.txt" in modules:  # the name has a digest
        modules["ipython::cell.txt"] = said["ipython::cell.txt"]["file"]
        assert modules["ipython::cell.txt"].startswith("<ipython-input-")
    failures = {}
    for module, file in modules.items():
        try:
            check(said[module], file)
        except AssertionError as error:
            failures[module] = str(error)
    assert failures == {}
