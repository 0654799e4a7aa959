"""A source with bad lines, and a run over it, for tests of files."""

from pathlib import Path
from typing import Any

import pytest

from tfexport.runtime import Translator
from tfexport.runtime.files.line_stream import LineFormat, LineTask
from tfexport.runtime.files.resumable import FileSummary, progress_path, translate_file

LINES = [f"w{4 + i % 13} w{4 + i % 7} w{4 + i % 5}" for i in range(60)]
BAD = {7: b"\xff\xfe", 31: b"w5 " * 80, 40: b""}  # not UTF-8, too long, empty


def run(
    translator: Translator, source: Path, output: Path, count: int = 1, **options: Any
) -> FileSummary:
    where = {name: options.pop(name) for name in ("resume", "force") if name in options}
    keywords = {"max_length": 5, "batch_size": 2, "num_hypotheses": count,
                "beam_size": max(count, 2), **options}  # fmt: skip
    resolved, _ = translator.engine.resolver.resolve(keywords)
    return translate_file(
        translator.engine,
        source,
        output,
        LineTask(resolved, LineFormat(num_hypotheses=count)),
        **where,
    )


def stopped(translator: Translator, source: Path, output: Path, stop: int) -> bytes:
    """Leave an output unfinished; the first line of its journal."""

    def tell(line: Any) -> None:
        if line.number == stop:
            raise KeyboardInterrupt

    keywords = {"max_length": 5, "batch_size": 2, "num_hypotheses": 1, "beam_size": 2}
    resolved, _ = translator.engine.resolver.resolve(keywords)
    with pytest.raises(KeyboardInterrupt):
        translate_file(
            translator.engine, source, output, LineTask(resolved, LineFormat()), on_result=tell
        )
    return progress_path(output).read_bytes().partition(b"\n")[0]
