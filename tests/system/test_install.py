"""The package as a user installs it to decode: .venv-runtime, which make builds without torch."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY, VERSION_1

FOLDER = REPOSITORY / ".venv-runtime" / ("Scripts" if os.name == "nt" else "bin")

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="needs .venv-runtime: run the tests with 'make test'"
)


@pytest.mark.parametrize("module", ["torch", "onnx", "onnx_ir", "onnxscript", "safetensors"])
def test_installing_the_runtime_brings_neither_torch_nor_onnx(module: str) -> None:
    done = subprocess.run([FOLDER / "python", "-c", f"import {module}"], capture_output=True)
    assert done.returncode == 1
    assert b"ModuleNotFoundError" in done.stderr


def test_installed_command_translates(tmp_path: Path) -> None:
    done = subprocess.run(
        [FOLDER / "tfexport", "translate", VERSION_1, "--max-length", "6"],
        input=b"w12 w4 w4 w5 w6\n\n",
        capture_output=True,
        cwd=tmp_path,  # not the repository: the installed package is what is imported
    )
    assert done.stdout == b"w6 w15 w5 w7 w7 w7\n\n", done.stderr


def test_installed_package_is_typed() -> None:
    code = "import tfexport, pathlib; print(pathlib.Path(tfexport.__file__).parent / 'py.typed')"
    command = [str(FOLDER / "python"), "-c", code]
    done = subprocess.run(command, capture_output=True, cwd=FOLDER, text=True)
    assert Path(done.stdout.strip()).exists()
