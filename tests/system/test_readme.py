"""docs/quick-start.md, as a newcomer follows it; the README's commands are lines of that page.

Every block is run, in order, in a clean copy of the repository and in environments that the
page's own pip lines make: they contain nothing else.

The environments are kept in the repository's folder (.venv-readme-1, .venv-readme-2) while what
they are made from stays the same. Installing goes by constraints.txt, so that torch is the release
that everything else is tested with.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support import tutorial
from tests.support.documents import QUICK_START_PAGE, README, read_blocks
from tests.support.paths import REPOSITORY

# The newcomer's own model, which the page calls `model`.
MODEL = """
import tutorial
model = tutorial.make(d_model=16, num_heads=8, encoder_layers=1, decoder_layers=1, d_ff=24)
"""
VOCABULARY = 17
SAMPLES = 60  # of the demo's test set; the commands are the same for all of it, and take minutes
# Nothing of the environment that the tests run in.
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}


class Newcomer:
    """Follows the page in one folder, always in the environment that was made last.

    Attributes:
        folder: a copy of the repository.
        environments: those made so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environments: list[Path] = []

    def run(self, command: str) -> str:
        """Run one command; a pip line makes the next environment.

        Returns:
            What it prints.
        """
        if not command.startswith("pip install "):
            return self._bash(command)
        environment = REPOSITORY / f".venv-readme-{len(self.environments) + 1}"
        self.environments.append(environment)
        files = [REPOSITORY / name for name in ("pyproject.toml", "constraints.txt")]
        parts = [command, sys.version, *(file.read_text(encoding="utf-8") for file in files)]
        made_from = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        note = environment / "made-from"
        if not note.exists() or note.read_text() != made_from:
            shutil.rmtree(environment, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        printed = self._bash(command)  # again in one that is kept: this package may have changed
        note.write_text(made_from)
        return printed

    def serve(self, block: str) -> str:
        """Run a block that starts a server, asks it and stops it; on a port that is free."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        here = block.replace("8000", port).replace("localhost", "127.0.0.1")
        return self._bash(f"set -m\n{here}")

    def run_python(self, code: str) -> None:
        """Run a Python block after the newcomer's own code."""
        (self.folder / "block.py").write_text(code, encoding="utf-8")
        self._bash("python block.py")

    def _bash(self, command: str) -> str:
        variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        variables |= {
            "PATH": f"{self.environments[-1] / 'bin'}:{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(self.folder / "constraints.txt"),
            "PIP_NO_COMPILE": "false",  # pip's way of being told not to compile all of torch
            "TFEXPORT_TUNING": str(self.folder / "tuning.json"),
        }
        # PIP_ARGS are make's; they may name the index that torch's CPU build comes from.
        pip = f'pip() {{ command pip "$@" {os.environ.get("PIP_ARGS", "")}; }}'
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", f"{pip}\n{command}"],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """With a clone of the repository, and a trained model and its tokenizer lying in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    folder = tmp_path / "tfexport"
    for name in listed.stdout.split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    samples = folder / "examples/de-en/test.tsv"
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    samples.write_text("".join(lines[:SAMPLES]), encoding="utf-8")
    shutil.copy(str(tutorial.__file__), folder / "tutorial.py")
    made: dict[str, tutorial.TutorialModel] = {}
    exec(MODEL.replace("import tutorial", "from tests.support import tutorial"), made)
    torch.save(made["model"].state_dict(), folder / "model.pt")
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(4, VOCABULARY))]
    vocabulary = {word: i for i, word in enumerate(words)}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    return Newcomer(folder)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(os.name == "nt", reason="the commands are for a Unix shell")
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs git's list of files")
def test_quick_start_works_as_it_stands(newcomer: Newcomer) -> None:
    printed, answers = {}, []
    for block in read_blocks(QUICK_START_PAGE):
        if block.language == "python":
            own = MODEL if len(newcomer.environments) == 2 else ""
            newcomer.run_python(own + block.text)
        elif "tfexport serve" in block.text:
            answers.append(json.loads(newcomer.serve(block.text)))
        else:
            for command in block.commands:
                printed[command] = newcomer.run(command)

    decoding, exporting = newcomer.environments
    assert [answer["translatedText"] for answer in answers] == ["Good morning."]
    for environment, absent in ((exporting, "pytest"), (decoding, "torch")):
        done = subprocess.run([environment / "bin" / "python", "-c", f"import {absent}"],
                              capture_output=True, text=True)  # fmt: skip
        assert "ModuleNotFoundError" in done.stderr
    echoed = next(command for command in printed if command.startswith("echo "))
    assert printed[echoed].strip() == echoed.partition("# ")[2]
    pairs = (newcomer.folder / "examples/de-en/test.tsv").read_text(encoding="utf-8").splitlines()
    output = (newcomer.folder / "output.txt").read_text(encoding="utf-8")
    assert output.count("\n") == len(pairs)
    made = {path.name for path in newcomer.folder.iterdir()}
    for bundle in ("de-en.bundle", "int8.bundle"):
        done = subprocess.run([decoding / "bin" / "tfexport", "translate", bundle],
                              input="Wo ist der Bahnhof?\n", cwd=newcomer.folder,
                              capture_output=True, text=True)  # fmt: skip
        assert done.stdout == "Where's the station?\n", done.stderr
    bundles = {"de-en.bundle", "int8.bundle", "my.bundle", "trained.bundle"}
    assert {*bundles, "generate.onnx", "model.ts"} <= made


def test_readme_fits_three_screens_and_its_figures_are_those_of_the_performance_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(text.split()) <= 1000
    assert "proven" not in text
    performance = (README.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| .*\| \d\.\d\d \|", line)]
    assert len(rows) == 8
    for row in rows:
        found = re.findall(r"\| (\d\.\d\d|–)(?= )", row)
        assert len(found) in (4, 7)
        assert f"| {' | '.join(found)} |" in performance, found
    starts = [
        re.search(rf"\| {re.escape(name)} \|.*\| \*{{0,2}}(\d+)\*{{0,2}} \|\n", performance)
        for name in (
            "int8, as exported",
            "int8, a copy without what stands next to it",
            "CTranslate2, int8",
        )
    ]
    for found_start in starts:
        assert found_start
        assert f"{int(found_start[1]) / 1000:.2f} s" in text


def bare(line: str) -> str:
    """A command without its comment, and not in the background."""
    return line.partition("  #")[0].rstrip(" &")


def commands_of(page: Path) -> list[str]:
    """Commands of a page's shell blocks in which `tfexport` is used, in order."""
    blocks = [block for block in read_blocks(page) if not block.language]
    lines = [bare(line) for block in blocks for line in block.commands]
    return [line for line in lines if not line.startswith("make ")]


@pytest.mark.parametrize("page", [README, REPOSITORY / "docs/index.md"], ids=lambda page: page.stem)
def test_commands_of_first_pages_run_in_the_order_of_the_quick_start(page: Path) -> None:
    commands = commands_of(page)
    assert len(commands) > 3
    remaining = iter(commands_of(QUICK_START_PAGE))  # which tests/system/test_readme.py runs
    for line in commands:
        assert line in remaining, line
