"""Files: their lines, one writer at a time, constant memory."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.support.line_files import BAD, LINES, run
from tfexport.errors import OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.line_stream import LineFormat, LineTask
from tfexport.runtime.files.resumable import FileSummary, progress_path, translate_file


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


def test_one_run_writes_an_output(translator: Translator, source: Path, tmp_path: Path) -> None:
    """A second one, in whatever way it is asked for, changes nothing."""
    output = tmp_path / "out.txt"
    (tmp_path / "link.txt").symlink_to(output)
    refused = []

    def tell(line: Any) -> None:
        if line.number != 40:
            return
        for path in (output, tmp_path / "link.txt"):
            for options in ({"resume": True}, {"force": True}, {}):
                with pytest.raises(OutputExistsError, match="is being written by") as caught:
                    run(translator, source, path, **options)
                refused.append(caught.value)

    resolved, _ = translator.engine.resolver.resolve({"max_length": 5, "beam_size": 2})
    translate_file(
        translator.engine, source, output, LineTask(resolved, LineFormat()), on_result=tell
    )
    assert len(refused) == 6
    run(translator, source, tmp_path / "alone.txt")
    assert output.read_bytes() == (tmp_path / "alone.txt").read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"in.txt", "out.txt", "link.txt", "alone.txt"}


@pytest.mark.parametrize("change", ["append", "cut", "remove"])
def test_a_program_without_locks_is_noticed(
    translator: Translator, source: Path, tmp_path: Path, change: str
) -> None:
    output = tmp_path / "out.txt"

    def tell(line: Any) -> None:
        if line.number == 40:
            if change == "remove":
                output.unlink()
            elif change == "append":
                with output.open("ab") as file:
                    file.write(b"other\n")
            else:
                os.truncate(output, 0)

    resolved, _ = translator.engine.resolver.resolve({"max_length": 5})
    with pytest.raises(OutputExistsError, match=r"another program .*force=True"):
        translate_file(
            translator.engine, source, output, LineTask(resolved, LineFormat()), on_result=tell
        )


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
