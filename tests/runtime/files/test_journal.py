"""The journal of an unfinished output."""

from pathlib import Path

import pytest

from tests.support.line_files import run, stopped
from tfexport.errors import OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.resumable import progress_path


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
    first = stopped(translator, source, output, stop=20)
    progress_path(output).write_bytes(journal.replace(b"FIRST", first))
    before = output.read_bytes()
    with pytest.raises(OutputExistsError, match=r"line \d+ of out\.txt\.progress .*force=True"):
        run(translator, source, output, resume=True)
    assert output.read_bytes() == before
    assert run(translator, source, output, force=True).lines == 60


def test_a_torn_last_line_of_a_journal_is_no_damage(
    translator: Translator, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.txt"
    first = stopped(translator, source, output, stop=6)
    progress_path(output).write_bytes(first + b'\n{"ba')
    assert run(translator, source, output, resume=True).bad == (7, 31)
