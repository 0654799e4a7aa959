"""Checks of an earlier run's output: how many lines it has, and whether they match this run."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tfexport.errors import Message, Option, OutputExistsError
from tfexport.runtime.engine import Engine
from tfexport.runtime.files.input_lines import InputLines
from tfexport.runtime.files.journal import progress_path, read_journal
from tfexport.runtime.files.line_stream import LineResult, find_bad_lines, translate_lines
from tfexport.runtime.files.line_task import LineTask
from tfexport.runtime.parallel.batches import rows_ahead

BLOCK = 1 << 20
SCORE_TOLERANCE = 1e-3  # scores of an equal model on another processor


def read_bad_lines(output: Path, made_of: Mapping[str, Any]) -> list[int]:
    """Read the bad lines of an unfinished output, after a check that it belongs to this run.

    Raises:
        OutputExistsError: it was begun with another input, bundle or options; they are named.
    """
    began, bad = read_journal(output)
    if "source" in began and began["source"] is None:
        raise _begin_anew(f"{output}: was started from a pipe, so it cannot be resumed.")
    differing = sorted(key for key in {*began, *made_of} if began.get(key) != made_of.get(key))
    if differing:
        raise _begin_anew(
            f"{output}: was started with another {', '.join(differing)}, so it cannot be resumed. "
            "Use the same input, bundle and options."
        )
    return bad


def cut_torn_lines(output: Path, lines_per_input: int) -> int:
    """Truncate an output to complete groups of lines; returns how many groups are left."""
    ends = 0
    keep = position = 0
    with output.open("r+b") as file:
        while block := file.read(BLOCK):
            start = 0
            while (at := block.find(b"\n", start)) >= 0:
                ends += 1
                start = at + 1
                if ends % lines_per_input == 0:
                    keep = position + start
            position += len(block)
        file.truncate(keep)
    return ends // lines_per_input


def check_finished(
    engine: Engine,
    task: LineTask,
    lines: InputLines,
    prefixes: Iterable[bytes | tuple[int, ...]],
    output: Path,
    tell: Callable[[LineResult], object],
) -> list[int]:
    """Check a finished output, which has no journal, against this run, and find its bad lines.

    Nothing records how it was made, so its first lines are decoded again. Bad lines are found
    without decoding.

    Raises:
        OutputExistsError: this input, bundle and options give other lines.
    """
    options, lines_per_input = task.options, task.line_format.lines_per_input
    bad: list[int] = []
    written, torn = _count_lines(output)
    if torn:
        raise _is_not_ours(output, f"{written} lines and half a one")
    # A draw without a seed gives other lines each time, and a callback may do anything.
    repeatable = ("seed" in options.given or not options.sampling) and options.callback is None
    compared = rows_ahead(options) if repeatable else 0
    with output.open("rb") as file:
        for result in translate_lines(
            engine, islice(lines, compared), options, ids=task.line_format.ids, prefixes=prefixes,
            chunk=max(compared, 1),
        ):  # fmt: skip
            expected = [f"{line}\n".encode() for line in task.line_format.write(result)]
            if not all(map(_is_alike, expected, islice(file, lines_per_input))):
                raise _begin_anew(
                    f"{output}: line {(result.number - 1) * lines_per_input + 1} is not what this "
                    "input, bundle and options give. Name another output."
                )
            if result.problem is not None:
                bad.append(result.number)
                tell(result)
    for result in find_bad_lines(
        engine, lines, options, ids=task.line_format.ids, prefixes=prefixes, first=compared + 1
    ):
        bad.append(result.number)
        tell(result)
    if written != lines.count * lines_per_input:
        whole = lines.count * lines_per_input
        raise _is_not_ours(output, f"{written} lines, where {whole} were expected")
    return bad


def _is_not_ours(output: Path, found: str) -> OutputExistsError:
    return _begin_anew(
        f"{output}: {found}, and no {progress_path(output).name}: it is not an unfinished output "
        "of this command. Name another output."
    )


def _begin_anew(problem: str) -> OutputExistsError:
    return OutputExistsError(Message(f"{problem} Or start again with ", Option("force", True), "."))


def _is_alike(expected: bytes, found: bytes) -> bool:
    """Whether two lines are equal; JSON lines may differ in rounding and in an error's words."""
    if expected == found:
        return True
    try:
        values = json.loads(expected), json.loads(found)
    except (ValueError, RecursionError):
        return False
    for value in values:
        # Python and the command line spell options differently.
        if isinstance(value, dict) and isinstance(value.get("error"), str):
            value["error"] = ""
    return isinstance(values[0], dict) and _is_close(*values)


def _is_close(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return list(expected) == list(found) and all(
            _is_close(expected[key], found[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_is_close, expected, found))
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE)
    return type(expected) is type(found) and bool(expected == found)


def _count_lines(path: Path) -> tuple[int, bool]:
    """The number of complete lines, and whether an incomplete one follows."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count, last != b"\n"
