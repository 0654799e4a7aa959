"""Fixtures of tests of files."""

from pathlib import Path

import pytest

from tests.support.line_files import BAD, LINES
from tfexport.runtime import Translator


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [BAD.get(i, line.encode()) for i, line in enumerate(LINES, start=1)]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))  # the last line has no end
    return tmp_path / "in.txt"
