"""Standard streams that are closed, full, or pipes; and output of libraries into them."""

import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.paths import VERSION_1

pytestmark = pytest.mark.skipif(os.name == "nt", reason="runs in a shell")
TFEXPORT = f"{sys.executable} -m tfexport"


def shell(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "in.txt").write_text("w5 w6\nw7\n")
    command = command.replace("tfexport ", f"{TFEXPORT} ").replace("BUNDLE", str(VERSION_1))
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tfexport translate BUNDLE <&-", "stdin: is closed"),
        ("tfexport translate BUNDLE -o out.txt <&-", "stdin: is closed"),
        ("tfexport score BUNDLE - in.txt <&-", "stdin: is closed"),
        ("tfexport translate BUNDLE in.txt >&-", "stdout: is closed"),
        ("tfexport inspect BUNDLE >&-", "stdout: is closed"),
        ("tfexport score BUNDLE in.txt in.txt >&-", "stdout: is closed"),
        ("tfexport translate BUNDLE in.txt >/dev/full", "stdout: No space left on device"),
        ("tfexport inspect BUNDLE >/dev/full", "stdout: No space left on device"),
        ("tfexport score BUNDLE in.txt in.txt >/dev/full", "stdout: No space left on device"),
        ("tfexport --help >/dev/full", "stdout: No space left on device"),
        ("tfexport --version >/dev/full", "stdout: No space left on device"),
        ("tfexport translate --help >/dev/full", "stdout: No space left on device"),
        ("tfexport --help >&-", "stdout: is closed"),
    ],
)
def test_a_stream_that_cannot_be_used_is_named(command: str, message: str, tmp_path: Path) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = shell(command, tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"Error: {message}\n"


def test_a_closed_stream_is_no_place_for_an_output(tmp_path: Path) -> None:
    """The next file to be opened would get its descriptor, and the output of libraries."""
    code = (
        "import os; from tfexport.cli import main as m; m._replace_closed_streams(); "
        "number = os.open('out.txt', os.O_CREAT | os.O_WRONLY); os.write(number, b'%d' % number)"
    )
    done = shell(f'{sys.executable} -c "{code}" >&- 2>&- <&-', tmp_path)
    assert done.returncode == 0
    assert int((tmp_path / "out.txt").read_text()) > 2


def test_a_reader_that_stops_ends_the_command_without_a_message(tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text("w5 w6\n" * 3000)
    done = shell(
        "tfexport translate BUNDLE many.txt --max-length 2 | head -n 1; echo ${PIPESTATUS[0]}",
        tmp_path,
    )
    assert done.stdout.splitlines()[1:] == ["141"]
    assert done.stderr == ""


def test_a_process_substitution_is_translated_into_a_file(tmp_path: Path) -> None:
    assert shutil.which("bash")
    (tmp_path / "many.txt").write_text("w5 w6\n" * 900)
    done = shell(
        "tfexport translate BUNDLE <(cat many.txt) -o a.txt --max-length 2 && "
        "cat many.txt | tfexport translate BUNDLE /dev/stdin -o b.txt --max-length 2 && "
        "cat many.txt | tfexport translate BUNDLE -o c.txt --max-length 2",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    texts = [(tmp_path / name).read_text() for name in ("a.txt", "b.txt", "c.txt")]
    assert texts[0].count("\n") == 900
    assert texts[0] == texts[1] == texts[2]
    assert not list(tmp_path.glob("*.progress")), "it is whole"


def test_stdin_is_not_its_own_output(tmp_path: Path) -> None:
    done = shell("tfexport translate BUNDLE -o in.txt --force <in.txt", tmp_path)
    assert "is also the input" in done.stderr
    assert (tmp_path / "in.txt").read_text() == "w5 w6\nw7\n"


def test_no_telemetry_wherever_the_home_folder_is(tmp_path: Path) -> None:
    """Telemetry of onnxruntime would report, or warn that it cannot store a machine id."""
    code = (
        "import os, sys, tfexport\n"
        "from tfexport.runtime import Translator\n"
        "Translator(sys.argv[1], 1).translate(['w5'])\n"
        "print(len(os.listdir('/proc/self/task')) if sys.platform == 'linux' else 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(VERSION_1)],
        env={**os.environ, "HOME": "/proc/nowhere", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == "", version("onnxruntime")
    assert done.stdout == "1\n", "threads beside the main one"


def test_an_output_without_a_folder_is_refused_by_its_own_name(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("w5\n")
    done = invoke("translate", VERSION_1, source, "-o", tmp_path / "none" / "out.txt")
    assert done.exit_code == 1
    assert f"{tmp_path / 'none' / 'out.txt'}: the folder" in done.stderr
    if Path("/proc").is_dir():  # where not even root may write
        done = invoke("translate", VERSION_1, source, "-o", "/proc/out.txt")
        assert done.stderr == "Error: /proc/out.txt: No such file or directory\n"


@pytest.mark.parametrize("module", ["click", "tfexport.cli.translate_command"])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(
    tmp_path: Path, module: str
) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv[1:] = ['translate', sys.argv[1]]\n"
        "from tfexport.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(VERSION_1)],
        cwd=tmp_path, input="w4\n", capture_output=True, text=True, check=False,
        # A shell lets what it starts in the background ignore the signal, and all below that too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")
