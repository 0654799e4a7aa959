"""Drawn calls of the C interface, the short form; ``make fuzz-native`` has sanitizers as well."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tfexport_native.library import LIBRARY

DRIVER = Path(__file__).parent / "driver"
CASES = 600


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program, library = tmp_path_factory.mktemp("fuzz") / "fuzz", Path(LIBRARY._name)
    sources = [str(path) for path in sorted(DRIVER.glob("*.cpp"))]
    subprocess.run(
        [compiler, "-std=c++17", "-O1", *sources, str(library), f"-Wl,-rpath,{library.parent}",
         "-pthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def test_drawn_calls_give_errors_and_never_faults(fuzz: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [str(fuzz), "0", str(CASES), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = re.search(r"(\d+) calls did what they say, (\d+) were refused", run.stdout)
    assert found is not None
    assert int(found[1]) > 5 * CASES
    assert int(found[2]) > CASES
