"""``tfexport serve``: what is wrong is said before anything is served. tests/serve has the rest."""

import shutil
import socket
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.paths import VERSION_1
from tests.system.test_imports import run


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--languages", "tiny"], 2, "--languages: 'tiny' is not NAME=de-en"),
        (["--languages", "tiny=german"], 2, "--languages: 'german' of tiny is not a pair"),
        (
            ["--languages", "other=de-en"],
            2,
            "no model 'other', of which there are settings; there are tiny",
        ),
        (["--timeout", "0"], 2, "--timeout: 0 is not a number of seconds above 0"),
        (["--timeout", "nan"], 2, "--timeout: nan"),
        (["--port", "70000"], 2, "70000 is not in the range"),
        (["--max-queue", "0"], 2, "0 is not in the range"),
        (["--host", "no such host"], 2, "cannot listen on no such host:8000"),
        (["--api-key-file", "nowhere"], 1, "nowhere: No such file"),
    ],
)
def test_wrong_options_are_named(
    tiny_bundle: Path, options: list[str], status: int, said: str
) -> None:
    done = invoke("serve", tiny_bundle, *options)
    assert done.exit_code == status
    assert said in done.stderr


def test_an_empty_key_file_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n \n")
    done = invoke("serve", tiny_bundle, "--port", "0", "--api-key-file", keys)
    assert done.exit_code == 2
    assert "holds no key" in done.stderr


def test_a_damaged_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    done = invoke("serve", tmp_path / "none.bundle", "--port", "0")
    assert done.exit_code == 1
    assert "none.bundle: no such file or folder" in done.stderr
    broken = Path(shutil.copytree(tiny_bundle, tmp_path / "broken.bundle"))
    (broken / "weights.bin").write_bytes(b"")
    done = invoke("serve", tiny_bundle, broken, "--port", "0")
    assert done.exit_code == 1
    assert "weights.bin" in done.stderr


def test_two_models_of_one_name_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny"
    done = invoke("serve", tiny_bundle, other, "--port", "0")
    assert done.exit_code == 2
    assert "two bundles make the model 'tiny'" in done.stderr


def test_a_port_that_is_taken_is_named(tiny_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke("serve", tiny_bundle, "--port", port)
    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr


def test_without_its_libraries_it_says_what_to_install() -> None:
    done = run(
        "from tfexport.cli.main import main; main()",
        *("serve", str(VERSION_1)),
        blocked=("fastapi",),
    )
    assert done.returncode == 1
    assert "serving needs fastapi. Install it with: pip install '" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_needs_neither_torch_nor_onnx() -> None:
    done = run("import tfexport.serve; print('served')")
    assert (done.stdout, done.stderr) == ("served\n", "")
