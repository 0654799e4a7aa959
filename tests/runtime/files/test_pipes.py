"""Inputs that can be read only once."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.line_files import run
from tfexport.errors import ConfigError, OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.line_stream import LineFormat, LineTask
from tfexport.runtime.files.resumable import FileSummary, translate_file


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
    resolved, _ = translator.engine.resolver.resolve({"max_length": 5})
    expected, output = tmp_path / "expected.txt", tmp_path / "out.txt"
    options: dict[str, Any] = {}
    if way == "prefixes":
        (tmp_path / "prefixes.txt").write_text("w9\n" * 60)
        options["prefix_file"] = tmp_path / "prefixes.txt"
    translate_file(translator.engine, source, expected, LineTask(resolved, LineFormat(), **options))
    if way == "prefixes":
        options["prefix_file"] = feed(b"w9\n" * 60)
    given: Any = source if way == "prefixes" else feed(data)
    if way == "stream":
        given = open(given, "rb")  # noqa: PTH123, SIM115 - closed by hand below
    if way == "fifo":
        given = tmp_path / "fifo"
        os.mkfifo(given)
        threading.Thread(target=lambda: given.write_bytes(data), daemon=True).start()
    summary = translate_file(
        translator.engine, given, output, LineTask(resolved, LineFormat(), **options)
    )
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

    def stop(line: Any) -> None:
        raise KeyboardInterrupt

    resolved, _ = translator.engine.resolver.resolve({"max_length": 2})
    with pytest.raises(KeyboardInterrupt):
        translate_file(
            translator.engine,
            feed(b"w5\n"),
            output,
            LineTask(resolved, LineFormat()),
            on_result=stop,
        )
    with pytest.raises(OutputExistsError, match=r"out\.txt: .*pipe.*force=True"):
        run(translator, source, output, resume=True)


@needs_pipes
def test_an_open_input_is_never_the_output(translator: Translator, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("w5\n")
    resolved, _ = translator.engine.resolver.resolve({})
    source = tmp_path / "in.txt"
    for prefixes in (None, output):
        source.write_text("w5\n")
        task = LineTask(resolved, LineFormat(), prefix_file=prefixes)
        with output.open("rb") as file, pytest.raises(OutputExistsError, match="also the input"):
            translate_file(
                translator.engine, source if prefixes else file, output, task, force=True
            )
        assert output.read_text() == "w5\n"
