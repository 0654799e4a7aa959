"""Files: constant memory, and runs that go on where they were killed."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tfexport.errors import OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files import FileSummary, progress_path, translate_file
from tfexport.runtime.lines import json_format, text_format

LINES = [f"w{4 + i % 13} w{4 + i % 7} w{4 + i % 5}" for i in range(60)]
BAD = {7: b"\xff\xfe", 31: b"w5 " * 80, 40: b""}  # not UTF-8, too long, empty


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [BAD.get(i, line.encode()) for i, line in enumerate(LINES, start=1)]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))  # the last line has no end
    return tmp_path / "in.txt"


def run(
    translator: Translator, source: Path, output: Path, count: int = 1, **options: Any
) -> FileSummary:
    where = {name: options.pop(name) for name in ("resume", "force") if name in options}
    keywords = {"max_length": 5, "batch_size": 2, "num_hypotheses": count,
                "beam_size": max(count, 2), **options}  # fmt: skip
    settings, _ = translator.resolver.resolve(keywords)
    return translate_file(
        translator, source, output, settings, text_format(count), lines_each=count,
        described={"options": keywords}, **where,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_is_what_its_lines_are(
    translator: Translator, source: Path, tmp_path: Path, count: int
) -> None:
    output = tmp_path / "out.txt"
    summary = run(translator, source, output, count)
    assert summary == FileSummary(60, 0, (7, 31))
    assert not progress_path(output).exists()
    written = output.read_text(encoding="utf-8").split("\n")
    assert written.pop() == ""
    assert len(written) == 60 * count
    good = [i for i in range(1, 61) if i not in BAD]
    expected = translator.translate(
        [LINES[i - 1] for i in good], max_length=5, beam_size=max(count, 2), num_hypotheses=count
    )
    for i, result in zip(good, expected, strict=True):
        assert written[(i - 1) * count : i * count] == result.texts
    assert [written[(i - 1) * count] for i in BAD] == ["", "", ""]


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

    def kill(line: Any, offset: int) -> None:
        if line.number == 45:
            raise Killed

    settings_of = {"max_length": 5, "batch_size": 2, "num_hypotheses": count,
                   "beam_size": max(count, 2)}  # fmt: skip
    settings, _ = translator.resolver.resolve(settings_of)
    with pytest.raises(Killed):
        translate_file(translator, source, output, settings, text_format(count), lines_each=count,
                       described={"options": settings_of}, tell=kill)  # fmt: skip
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
    with pytest.raises(OutputExistsError, match=r"was begun with another .*options"):
        run(translator, source, output, resume=True)
    with pytest.raises(OutputExistsError, match="It is unfinished: --resume goes on"):
        run(translator, source, output)
    progress_path(output).unlink()
    source.write_bytes(source.read_bytes() + b"\nw5")
    with pytest.raises(OutputExistsError, match="60 lines, where 61 were expected"):
        run(translator, source, output, resume=True)
    assert output.read_bytes() == text
    assert run(translator, source, output, force=True).lines == 61


def test_a_translator_takes_files_itself(
    translator: Translator, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.txt"
    options: dict[str, Any] = {"beam_size": 2, "max_length": 5}
    assert translator.translate_file(source, output, **options) == FileSummary(60, 0, (7, 31))
    expected = translator.translate([LINES[0]], **options)[0].text
    assert output.read_text(encoding="utf-8").split("\n")[0] == expected
    with pytest.raises(OutputExistsError, match="already exists"):
        translator.translate_file(source, output, **options)
    assert translator.translate_file(source, output, resume=True, **options).resumed == 60
    translator.translate_file(source, output, force=True, jsonl=True, target_prefix=[9], **options)
    values = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [value["tokens"][:1] for value in values if value["tokens"]] == [[9]] * 57


def test_resume_begins_what_was_never_begun(
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


def test_memory_does_not_grow_with_the_file(translator: Translator, tmp_path: Path) -> None:
    peaks = []
    for lines in (400, 4000):
        source = tmp_path / f"{lines}.txt"
        source.write_text("w5 w6 w7\n" * lines, encoding="utf-8")
        tracemalloc.start()
        run(translator, source, tmp_path / f"{lines}.out", max_length=2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000


def test_json_lines_hold_everything(translator: Translator, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_bytes(b"w5 w6\n\xff\n\n")
    settings, _ = translator.resolver.resolve(
        {"beam_size": 2, "num_hypotheses": 2, "max_length": 4, "return_token_scores": True,
         "return_attention": True}
    )  # fmt: skip
    translate_file(translator, source, output, settings, json_format(several=True))
    first, bad, empty = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert len(first["hypotheses"]) == 2
    best = first["hypotheses"][0]
    assert best == {key: value for key, value in first.items() if key != "hypotheses"}
    counted = len(best["tokens"]) + best["finished"]
    assert sum(best["token_scores"]) / counted == pytest.approx(best["score"])
    assert len(best["attention"]) == len(best["tokens"])
    assert all(len(row) == len(best["source_tokens"]) == 3 for row in best["attention"])
    assert len(best["alignment"].split()) == len(best["tokens"])
    assert bad["tokens"] is None
    assert "not UTF-8" in bad["error"]
    assert empty["text"] == ""
    assert empty["tokens"] == []
