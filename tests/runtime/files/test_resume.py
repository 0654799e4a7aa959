"""Runs that go on where they were killed, and finished outputs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.line_files import LINES, run
from tfexport.errors import OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.line_stream import LineFormat, LineTask
from tfexport.runtime.files.resumable import FileSummary, progress_path, translate_file


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("cut", [0, 1, 250, 700, 1100, 10_000])
def test_a_killed_run_goes_on(
    translator: Translator, source: Path, tmp_path: Path, count: int, cut: int
) -> None:
    """As a kill leaves it: the output ends anywhere, the journal says what was begun."""
    whole = tmp_path / "whole.txt"
    run(translator, source, whole, count)
    output, journal = tmp_path / "out.txt", progress_path(tmp_path / "out.txt")

    class Killed(BaseException):
        pass

    def kill(line: Any) -> None:
        if line.number == 45:
            raise Killed

    settings_of = {"max_length": 5, "batch_size": 2, "num_hypotheses": count,
                   "beam_size": max(count, 2)}  # fmt: skip
    resolved, _ = translator.engine.resolver.resolve(settings_of)
    with pytest.raises(Killed):
        translate_file(
            translator.engine,
            source,
            output,
            LineTask(resolved, LineFormat(num_hypotheses=count)),
            on_result=kill,
        )
    assert journal.exists()
    with output.open("r+b") as file:
        file.truncate(min(cut, output.stat().st_size))
    done = output.read_bytes().count(b"\n") // count
    summary = run(translator, source, output, count, resume=True)
    assert output.read_bytes() == whole.read_bytes()
    assert summary == FileSummary(60, done, (7, 31))
    assert not journal.exists()
    # Once more: there is nothing left to do, nothing is changed, and bad lines stay bad.
    again = run(translator, source, output, count, resume=True)
    assert again == FileSummary(60, 60, (7, 31))
    assert output.read_bytes() == whole.read_bytes()


def test_only_the_same_run_goes_on(translator: Translator, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    run(translator, source, output)
    text = output.read_bytes()
    progress_path(output).write_text(json.dumps({"options": {}}) + "\n", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"another .*options.*resumed"):
        run(translator, source, output, resume=True)
    with pytest.raises(OutputExistsError, match=r"unfinished: resume=True .*force=True"):
        run(translator, source, output)
    progress_path(output).unlink()
    source.write_bytes(source.read_bytes() + b"\nw5")
    with pytest.raises(OutputExistsError, match="60 lines, where 61 were expected"):
        run(translator, source, output, resume=True)
    assert output.read_bytes() == text
    assert run(translator, source, output, force=True).lines == 61


def test_resume_begins_what_was_never_stopped(
    translator: Translator, source: Path, tmp_path: Path
) -> None:
    assert run(translator, source, tmp_path / "out.txt", resume=True).resumed == 0


def test_killed_process_resumes_from_the_command_line(tiny_bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in LINES * 10), encoding="utf-8")
    command = [
        sys.executable, "-m", "tfexport", "translate", str(tiny_bundle), str(source),
        "-o", str(output), "--beam-size", "4", "--max-length", "20", "--batch-size", "2",
        "--threads", "1",
    ]  # fmt: skip
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([*command, "--resume"], stderr=subprocess.DEVNULL)
        before = output.stat().st_size if output.exists() else 0
        limit = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < limit:
            if output.exists() and output.stat().st_size > before:
                break
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
            kills += 1
        process.wait()
    assert kills, "the run is long enough to be killed"
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = Translator(tiny_bundle).translate(LINES, beam_size=4, max_length=20)
    assert output.read_text(encoding="utf-8").splitlines() == [r.text for r in expected] * 10


@pytest.mark.parametrize("jsonl", [False, True])
def test_a_finished_output_is_held_against_its_options(
    translator: Translator, source: Path, tmp_path: Path, jsonl: bool
) -> None:
    output = tmp_path / "out"

    def again(**options: Any) -> FileSummary:
        return translator.translate_file(source, output, jsonl=jsonl, resume=True, **options)

    made = again(max_length=9)
    assert again(max_length=9) == FileSummary(made.lines, 60, (7, 31))
    text = output.read_bytes()
    for other in ({"max_length": 8}, {"max_length": 9, "end_tokens": ["w4", "w6"]}):
        with pytest.raises(OutputExistsError, match=r"line \d+ is not what .* give"):
            again(**other)
    output.write_bytes(text[:-1])
    with pytest.raises(OutputExistsError, match="59 lines and half a one, and no"):
        again(max_length=9)
    if jsonl:  # scores of another processor
        output.write_bytes(re.sub(rb'("score": -\d+\.\d{4})\d+', rb"\g<1>", text))
        assert output.read_bytes() != text
        assert again(max_length=9).resumed == 60
    # Without a seed there is nothing to compare with.
    output.write_bytes(text)
    assert again(max_length=9, sampling=True).resumed == 60
