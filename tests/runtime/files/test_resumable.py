"""Files: constant memory, and runs that go on where they were killed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tfexport.errors import ConfigError, OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.journal import progress_path
from tfexport.runtime.files.line_format import json_format, text_format
from tfexport.runtime.files.resumable import FileSummary, translate_file

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
    resolved, _ = translator.resolver.resolve(keywords)
    return translate_file(
        translator, source, output, resolved, text_format(count), lines_each=count,
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
    resolved, _ = translator.resolver.resolve(settings_of)
    with pytest.raises(Killed):
        translate_file(translator, source, output, resolved, text_format(count), lines_each=count,
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


def feed(data: bytes) -> str:
    """A path that can be read once, as a process substitution is."""
    reading, writing_end = os.pipe()

    def write() -> None:
        with open(writing_end, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)

    threading.Thread(target=write, daemon=True).start()
    return f"/dev/fd/{reading}"


needs_pipes = pytest.mark.skipif(os.name == "nt", reason="it has no paths of pipes")


@needs_pipes
@pytest.mark.parametrize("way", ["path", "stream", "fifo", "prefixes"])
def test_a_pipe_loses_no_line(
    translator: Translator, source: Path, tmp_path: Path, way: str
) -> None:
    data = source.read_bytes()
    resolved, _ = translator.resolver.resolve({"max_length": 5})
    expected, output = tmp_path / "expected.txt", tmp_path / "out.txt"
    options: dict[str, Any] = {}
    if way == "prefixes":
        (tmp_path / "prefixes.txt").write_text("w9\n" * 60)
        options["prefix_file"] = tmp_path / "prefixes.txt"
    translate_file(translator, source, expected, resolved, text_format(), **options)
    if way == "prefixes":
        options["prefix_file"] = feed(b"w9\n" * 60)
    given: Any = source if way == "prefixes" else feed(data)
    if way == "stream":
        given = open(given, "rb")  # noqa: PTH123, SIM115 - closed by hand below
    if way == "fifo":
        given = tmp_path / "fifo"
        os.mkfifo(given)
        threading.Thread(target=lambda: given.write_bytes(data), daemon=True).start()
    summary = translate_file(translator, given, output, resolved, text_format(), **options)
    if way == "stream":
        given.close()
    assert summary == FileSummary(60, 0, (7, 31))
    assert output.read_bytes() == expected.read_bytes()


@needs_pipes
def test_a_run_from_a_pipe_is_not_gone_on_with(
    translator: Translator, source: Path, tmp_path: Path
) -> None:
    output, once = tmp_path / "out.txt", "can be read only once"
    with pytest.raises(ConfigError, match=once):
        run(translator, Path(feed(b"w5\n")), output, resume=True)
    assert not output.exists()

    def stop(line: Any, offset: int) -> None:
        raise KeyboardInterrupt

    resolved, _ = translator.resolver.resolve({"max_length": 2})
    with pytest.raises(KeyboardInterrupt):
        translate_file(
            translator, feed(b"w5\n"), output, resolved, text_format(), tell=stop,
            described={"options": {}},
        )  # fmt: skip
    with pytest.raises(OutputExistsError, match="was begun from a pipe"):
        run(translator, source, output, resume=True)


@needs_pipes
def test_an_open_input_is_never_the_output(translator: Translator, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("w5\n")
    resolved, _ = translator.resolver.resolve({})
    for options in ({"source": None}, {"source": tmp_path / "in.txt", "prefix_file": output}):
        (tmp_path / "in.txt").write_text("w5\n")
        with output.open("rb") as file, pytest.raises(OutputExistsError, match="also the input"):
            translate_file(
                translator, options.pop("source") or file, output, resolved, text_format(),
                force=True, **options,
            )  # fmt: skip
        assert output.read_text() == "w5\n"


def test_one_run_writes_an_output(translator: Translator, source: Path, tmp_path: Path) -> None:
    """A second one, in whatever way it is asked for, changes nothing."""
    output = tmp_path / "out.txt"
    (tmp_path / "link.txt").symlink_to(output)
    refused = []

    def tell(line: Any, offset: int) -> None:
        if line.number != 40:
            return
        for path in (output, tmp_path / "link.txt"):
            for options in ({"resume": True}, {"force": True}):
                with pytest.raises(OutputExistsError, match="is being written by") as caught:
                    run(translator, source, path, **options)
                refused.append(caught.value)

    resolved, _ = translator.resolver.resolve({"max_length": 5, "beam_size": 2})
    translate_file(translator, source, output, resolved, text_format(), tell=tell)
    assert len(refused) == 4
    run(translator, source, tmp_path / "alone.txt")
    assert output.read_bytes() == (tmp_path / "alone.txt").read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"in.txt", "out.txt", "link.txt", "alone.txt"}


@pytest.mark.parametrize("change", ["append", "cut", "remove"])
def test_a_program_without_locks_is_noticed(
    translator: Translator, source: Path, tmp_path: Path, change: str
) -> None:
    output = tmp_path / "out.txt"

    def tell(line: Any, offset: int) -> None:
        if line.number == 40:
            if change == "remove":
                output.unlink()
            elif change == "append":
                with output.open("ab") as file:
                    file.write(b"other\n")
            else:
                os.truncate(output, 0)

    resolved, _ = translator.resolver.resolve({"max_length": 5})
    with pytest.raises(OutputExistsError, match="another program has changed it"):
        translate_file(translator, source, output, resolved, text_format(), tell=tell)


@pytest.mark.parametrize(
    "journal",
    [
        b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"", b"[]\n", b"null\n", b'{"bad": 1',
        b'FIRST\n{"bad": "x"}\n', b"FIRST\nnull\n", b"FIRST\n[]\n", b'FIRST\n{"bad": -1}\n',
        b'FIRST\n{"bad": true}\n', b"FIRST\n\xff\n", b"FIRST\n" + b"[" * 100_000 + b"\n",
        b'FIRST\n{"bad": 7}\n{"b\n{"bad": 8}\n',
    ],
    ids=range(14),
)  # fmt: skip
def test_a_damaged_journal_is_refused_and_changes_nothing(
    translator: Translator, source: Path, tmp_path: Path, journal: bytes
) -> None:
    output = tmp_path / "out.txt"
    first = begun(translator, source, output, stop=20)
    progress_path(output).write_bytes(journal.replace(b"FIRST", first))
    before = output.read_bytes()
    with pytest.raises(OutputExistsError, match=r"its out\.txt\.progress is damaged in line"):
        run(translator, source, output, resume=True)
    assert output.read_bytes() == before
    assert run(translator, source, output, force=True).lines == 60


def test_a_torn_last_line_of_a_journal_is_no_damage(
    translator: Translator, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.txt"
    first = begun(translator, source, output, stop=6)
    progress_path(output).write_bytes(first + b'\n{"ba')
    assert run(translator, source, output, resume=True).bad == (7, 31)


def begun(translator: Translator, source: Path, output: Path, stop: int) -> bytes:
    """Leave an output unfinished; the first line of its journal."""

    def tell(line: Any, offset: int) -> None:
        if line.number == stop:
            raise KeyboardInterrupt

    keywords = {"max_length": 5, "batch_size": 2, "num_hypotheses": 1, "beam_size": 2}
    resolved, _ = translator.resolver.resolve(keywords)
    with pytest.raises(KeyboardInterrupt):
        translate_file(translator, source, output, resolved, text_format(),
                       described={"options": keywords}, tell=tell)  # fmt: skip
    return progress_path(output).read_bytes().partition(b"\n")[0]


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


@pytest.mark.skipif(os.name == "nt", reason="it has no such limit")
@pytest.mark.parametrize("limit", [100, 3000])
def test_a_full_disk_names_the_output(
    translator: Translator, source: Path, tmp_path: Path, limit: int
) -> None:
    import resource

    output = tmp_path / "out.txt"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            translator.translate_file(source, output, max_length=60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(output)


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
    resolved, _ = translator.resolver.resolve(
        {"beam_size": 2, "num_hypotheses": 2, "max_length": 4, "return_token_scores": True,
         "return_attention": True}
    )  # fmt: skip
    translate_file(translator, source, output, resolved, json_format(several=True))
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
