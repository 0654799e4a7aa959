"""Exports that are killed, or run out of disk: the old bundle or a new one is left, whole."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx_ir as ir
import pytest

from tests.conftest import CONFIG
from tests.support.combinations import few_of
from tests.support.command import invoke
from tfexport.bundle import open_bundle
from tfexport.errors import BundleError
from tfexport.export import forms
from tfexport.runtime import TranslationResult, Translator

IDS = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]

# The command with its graphs at hand and little to compare, so that it spends its time on what it
# does with them. It runs once for each line of stdin, in a process of its own that does not have
# to import torch first, and waits for another line before it says that this one has ended.
COMMANDS = """
import dataclasses, json, os, sys, traceback
from pathlib import Path
import onnx_ir as ir
import pytest
import torch
import torch._dynamo
import tfexport.cli.reports
from tests.conftest import compare_few_shapes
from tfexport.cli.main import main
from tfexport.export import forms
folder = Path(sys.argv[1])
forms.FORMS = tuple(
    dataclasses.replace(form, export=lambda *_, name=form.filename: ir.load(folder / name))
    for form in forms.bundle_forms()
)
compare_few_shapes(pytest.MonkeyPatch())
torch.set_num_threads(1)
while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        sys.argv = ["tfexport", *json.loads(line)]
        status = 1
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)  # onnxruntime cannot be taken down in a fork
    print(child, flush=True)
    sys.stdin.readline()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Commands:
    """Exports of the tiny model to one place, each in a process that can be killed."""

    def __init__(self, graphs: Path, checkpoint: Path, output: Path) -> None:
        self.line = json.dumps(words(checkpoint, output))
        self.log = output.with_name("log")
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-c", COMMANDS, str(graphs)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def _ask(self, line: str) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{line}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline() or pytest.fail(self.log.read_text()))

    def begin(self) -> int:
        """The process, by its number."""
        return self._ask(self.line)

    def end(self) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        return self._ask("")


def words(checkpoint: Path, output: Path) -> list[str]:
    settings = [f"--set={word}" for word in ("num_heads=2", *IDS, "unk_id=4")]
    return ["onnx", "--force", "--checkpoint", str(checkpoint), "-o", str(output), *settings]


@pytest.mark.usefixtures("few_shapes")
def test_full_disk_leaves_no_bundle(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [
        dataclasses.replace(form, export=lambda *_, name=form.filename: ir.load(tiny_bundle / name))
        for form in forms.bundle_forms()
    ]
    monkeypatch.setattr(forms, "FORMS", tuple(loaded))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))  # Python ignores the signal
    try:
        done = invoke(*words(tiny_checkpoint, tmp_path / "a.bundle"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 1, done.output
    assert os.strerror(errno.EFBIG) in done.output
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


ROW = [[12, 4, 4, 5, 6]]


def check_what_is_left(
    output: Path, expected: list[TranslationResult], how: signal.Signals
) -> None:
    """The old bundle or the new one, whole."""
    try:
        translator = Translator(output)
    except BundleError:
        with pytest.raises(BundleError, match="the previous bundle is complete at"):
            open_bundle(output)
        (aside,) = output.parent.glob(".a.bundle.aside-*")
        aside.rename(output)
        translator = Translator(output)
    assert translator.manifest.special_ids.unk in (3, 4)
    # The two bundles have other unknown tokens, and nothing else differs.
    (found,) = translator.generate(ROW, max_length=9)
    assert found.hypotheses == expected[0].hypotheses
    for left in output.parent.glob(".a.bundle.partial-*"):
        # A kill that no handler sees leaves its folder; nothing reads it as a bundle before its
        # last file, the manifest, is written.
        assert how == signal.SIGKILL
        if (left / "manifest.json").exists():
            with contextlib.suppress(BundleError):
                (found,) = Translator(left).generate(ROW, max_length=9)
                assert found.hypotheses == expected[0].hypotheses
        else:
            with pytest.raises(BundleError):
                Translator(left)
        shutil.rmtree(left)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", few_of([1, 4], 1))
def test_killed_export_leaves_the_old_bundle_or_a_new_one(
    tmp_path: Path, tiny_bundle: Path, tiny_checkpoint: Path, rounds: int
) -> None:
    """Kill at random moments; what stands there decodes as before or as after, never otherwise."""
    output = tmp_path / "a.bundle"
    expected = Translator(tiny_bundle).generate(ROW, max_length=9)
    commands = Commands(tiny_bundle, tiny_checkpoint, output)
    with commands.server:
        start = time.perf_counter()
        commands.begin()
        assert commands.end() == 0, commands.log.read_text()
        duration = time.perf_counter() - start
        generator = random.Random(rounds)
        for how in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] * rounds:
            shutil.rmtree(output)
            shutil.copytree(tiny_bundle, output)
            process = commands.begin()
            time.sleep(generator.uniform(0, 1.1 * duration))
            os.kill(process, how)
            commands.end()
            check_what_is_left(output, expected, how)
