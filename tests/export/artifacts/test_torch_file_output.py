"""Where torch files are written: nothing is left of one that failed, and none is overwritten."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import SETTINGS
from tests.export.artifacts.test_torch_file import KINDS
from tests.support import tutorial
from tests.support.combinations import few_of
from tfexport.cli.main import cli
from tfexport.errors import BundleError, ParityError
from tfexport.export import export, verify

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.usefixtures("few_shapes")
def test_miss_leaves_no_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.export.report.MOST_ALLOWED", 1e-12)
    with pytest.raises(ParityError):
        export(tutorial_model, tmp_path / "m.ts", config=SETTINGS)
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, sys, warnings
from tests.support import tutorial
from tests.conftest import SETTINGS
from tfexport.export import export
warnings.simplefilter("ignore")
model = tutorial.make(0, 1.0, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    export(model, sys.argv[1], graph=sys.argv[2], config=SETTINGS, verify=False)
except OSError as error:
    print(error.filename, error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
@pytest.mark.parametrize("kind", few_of(KINDS, "torchscript"))
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, kind: str) -> None:
    """Torch's own writer would abort the process, past every handler."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "m.ts"), kind],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'm.ts'} File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_torch_file_is_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for file in (tmp_path / "text", tiny_checkpoint):
        with pytest.raises(BundleError, match="not a file that 'tfexport torchscript' wrote"):
            verify(file, tiny_checkpoint)
    with pytest.raises(BundleError, match="no such file"):
        verify(tmp_path / "missing.onnx", tiny_checkpoint)


@pytest.mark.usefixtures("few_shapes")
def test_command_writes_verifies_and_refuses_to_overwrite(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    output = tmp_path / "m.ts"
    words = [f"--set={key}={value}" for key, value in {**SETTINGS, "num_heads": 2}.items()]
    arguments = ["torchscript", "--checkpoint", str(tiny_checkpoint), "-o", str(output), *words]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "equal to torch.nn.Transformer" in done.stdout
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 1
    assert "--force" in again.output
    checked = CliRunner().invoke(cli, ["verify", str(output), "--checkpoint", str(tiny_checkpoint)])
    assert checked.exit_code == 0, checked.output
