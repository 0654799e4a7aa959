"""Commands on terminals: completion, colours, narrow and dumb ones, bars with rates and ETA."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY, VERSION_1
from tfexport.cli.reports import print_parity
from tfexport.export import ParityReport
from tfexport.export.parity import STAGES, Comparison

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def on_terminal(*args: object, width: int = 80, **variables: str) -> str:
    """What a command writes to a terminal of its own, as stderr and stdout."""
    command = [sys.executable, "-m", "tfexport", *map(str, args)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width), **variables}
    main, end = pty.openpty()
    with subprocess.Popen(command, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        written = b""
        while True:
            try:
                block = os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            written += block
    os.close(main)
    assert process.returncode == 0, written.decode()
    return written.decode()


@pytest.fixture(name="lines")
def _lines(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("w5 w6\n" * 40, encoding="utf-8")
    return tmp_path / "in.txt"


@pytest.mark.parametrize("verb", ["translate", "score"])
def test_a_file_shows_its_rate_and_the_time_left(lines: Path, verb: str) -> None:
    inputs = [lines] if verb == "translate" else [lines, lines]
    written = on_terminal(verb, VERSION_1, *inputs, "-o", lines.with_name("out"))
    plain = ESCAPE.sub("", written)
    assert re.search(r"line 40, [\d,]+ a second", plain)
    assert re.search(r"left: *(\d+:)+\d\d", plain)


@pytest.mark.parametrize("verb", ["translate", "bench"])
def test_a_dumb_terminal_gets_no_escapes(lines: Path, verb: str) -> None:
    output = ["-o", lines.with_name("out")] if verb == "translate" else ["--runs", 1]
    written = on_terminal(verb, VERSION_1, lines, *output, TERM="dumb")
    assert "\x1b" not in written
    assert "\r" not in written.replace("\r\n", "")


def test_no_color_leaves_colours_out(lines: Path) -> None:
    call = ["bench", VERSION_1, lines, "--runs", 1]
    assert COLOUR.search(on_terminal(*call))
    assert not COLOUR.search(on_terminal(*call, NO_COLOR="1"))


@pytest.mark.parametrize("verb", [["bench", "--runs", "1"], ["inspect", "--all"]])
def test_tables_fold_to_a_narrow_terminal(verb: list[str]) -> None:
    name, *options = verb
    written = ESCAPE.sub("", on_terminal(name, VERSION_1, *options, width=44, NO_COLOR="1"))
    tables = [line for line in written.replace("\r", "\n").splitlines() if line[:1] in "┏┃┡│└"]
    assert len(tables) > 5
    assert max(map(len, tables)) <= 44


@pytest.mark.parametrize(("width", "shapes"), [(260, True), (100, False), (60, False)])
def test_a_parity_table_that_is_too_wide_shows_its_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, shapes: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    found = [Comparison(stage, 8, 7, 1e-6, 3) for stage in STAGES]
    found += [Comparison("beam", 1, 33, 1.0, 3)]
    print_parity(ParityReport("eager", found), "a.bundle")
    shown = ESCAPE.sub("", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= width
    assert ("batch" in shown) == shapes
    assert re.search("✗ 1.0e.00", shown)
    assert all(stage.split()[0] in shown for stage in STAGES)


def test_shells_complete_verbs_options_and_files(tmp_path: Path) -> None:
    (block,) = [
        block
        for block in read_blocks(REPOSITORY / "docs" / "commands.md")
        if block.heading == "Terminals"
    ]
    for line in block.text.splitlines():
        shell = re.search(r"_TFEXPORT_COMPLETE=(\w+)_source", line)
        assert shell is not None
        environment = {**os.environ, "_TFEXPORT_COMPLETE": f"{shell[1]}_source"}
        script = Path(sys.executable).with_name("tfexport")
        done = subprocess.run([script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0
        assert "tfexport" in done.stdout
        if shutil.which(shell[1]):
            source = tmp_path / "source"
            source.write_text(done.stdout)
            subprocess.run([shell[1], "-n", source], check=True)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("tfexport tr", "translate"),
        ("tfexport translate --beam", "--beam-size"),
        ("tfexport translate a.bundle --search-rules t", "transformers"),
        ("tfexport onnx --graph g", "generate"),
    ],
)
def test_what_is_typed_is_completed(typed: str, wanted: str) -> None:
    words = typed.split()
    environment = {
        **os.environ,
        "_TFEXPORT_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    script = Path(sys.executable).with_name("tfexport")
    done = subprocess.run([script], env=environment, capture_output=True, text=True)
    assert f"plain,{wanted}" in done.stdout.splitlines()
