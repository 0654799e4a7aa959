"""The journal beside an unfinished output, ``OUTPUT.progress``.

JSON lines. The first is an object with everything that the output depends on (input, bundle,
options), each other names an input line that could not be decoded: ``{"bad": 7}``. The file is
removed when the output is complete.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tfexport.errors import Message, Option, OutputExistsError

LONGEST = 1 << 24  # bytes of a line, far more than a journal's lines have


def progress_path(output: Path) -> Path:
    """The path of an unfinished output's journal."""
    return output.with_name(f"{output.name}.progress")


class Journal:
    """The journal of an output that is being written."""

    def __init__(self, output: Path, made_of: Mapping[str, Any], bad: Sequence[int] = ()) -> None:
        """Start a journal; an existing one is replaced.

        Args:
            output: the file that the journal is about.
            made_of: everything that the output depends on, in JSON's types.
            bad: lines that an earlier run could not decode.
        """
        self._path = progress_path(output)
        partial = self._path.with_name(f"{self._path.name}.new")
        # Atomic: a kill in between must not lose the notes of an earlier run.
        with partial.open("wb") as file:
            _note(file, made_of)
            for number in bad:
                _note(file, {"bad": number})
        partial.replace(self._path)
        self._file = self._path.open("ab")

    def note_bad(self, number: int) -> None:
        """Note a bad line, before its output line is written."""
        _note(self._file, {"bad": number})
        self._file.flush()

    def close(self) -> None:
        """Close the file and keep it: another run may resume the output."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file: the output is complete."""
        self.close()
        self._path.unlink(missing_ok=True)


def _note(file: BinaryIO, value: Mapping[str, Any]) -> None:
    file.write(json.dumps(value, sort_keys=True).encode() + b"\n")


def read_journal(output: Path) -> tuple[dict[str, Any], list[int]]:
    """Read what an unfinished output was made of, and its bad lines.

    Raises:
        OutputExistsError: the journal is damaged, or is none.
    """
    path = progress_path(output)
    notes = _read_notes(path)
    number, made_of = next(notes, (1, None))
    if not isinstance(made_of, dict):
        raise _damaged(output, path, number)
    bad = []
    for number, note in notes:
        line = note.get("bad") if isinstance(note, dict) else None
        if type(line) is not int or line < 1:
            raise _damaged(output, path, number)
        bad.append(line)
    return made_of, bad


def _read_notes(path: Path) -> Iterator[tuple[int, Any]]:
    """Each line with its number; None for one that cannot be read.

    The last one, if it is torn, is left out: a run was killed while it wrote it.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if not line.endswith(b"\n") and len(line) < LONGEST:
                return
            try:
                value = json.loads(line.decode())
            except (ValueError, RecursionError):
                value = None
            yield number, value


def _damaged(output: Path, path: Path, number: int) -> OutputExistsError:
    return OutputExistsError(Message(
        f"{output}: line {number} of {path.name} is damaged, so the run cannot be resumed. "
        "Start again with ", Option("force", True), ".",
    ))  # fmt: skip
