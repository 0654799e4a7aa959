"""Reading and decoding rows of a user's module's inputs from an ``.npz`` file."""

import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfexport import graph_io
from tfexport.bundle import Manifest
from tfexport.errors import InputError, join_problems, shown
from tfexport.graph_io import TensorSpec
from tfexport.module_rows import read_row
from tfexport.runtime.engine import Engine, Job
from tfexport.runtime.files.line_stream import LineResult
from tfexport.runtime.results import TranslationResult
from tfexport.runtime.search import ResolvedOptions
from tfexport.typing import PathLike

Rows = list[dict[str, Any]]
SUFFIX = ".npz"
MOST_PROBLEMS = 20  # of rows, that one message lists
_REMEDY = (
    "An array for each input has the rows as its first axis; rows of unequal shape have an array "
    "each, NAME/0, NAME/1, and so on."
)


def read_array_rows(path: PathLike, inputs: Sequence[TensorSpec]) -> Rows:
    """Read rows from a file of ``numpy.savez``.

    Args:
        path: for each input one array with the rows as its first axis, or for rows of unequal shape
            one array a row, ``NAME/0``, ``NAME/1``, … ``attention_mask`` is optional.
        inputs: the inputs of the model.

    Raises:
        InputError: naming everything that is wrong with the file.
        OSError: it cannot be read.
    """
    path = Path(path)
    arrays = _load(path)
    columns, problems = _columns(arrays, inputs)
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        problems.append(f"inputs have unequal numbers of rows: {found}")
    if problems:
        raise InputError(join_problems(str(path), problems, _REMEDY))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_checked_rows(
    path: PathLike,
    inputs: Sequence[TensorSpec],
    below: Mapping[str, int],
    longest: Mapping[str, int],
) -> Rows:
    """Read rows from a file of ``numpy.savez``, as arrays of the inputs' types.

    Args:
        path: see ``read_array_rows``.
        inputs: see ``read_array_rows``.
        below: for each input that holds ids, the smallest number that is too large.
        longest: the largest size of axes that have one, by name.

    Raises:
        InputError: naming everything that is wrong with the file, or with the first rows.
        OSError: it cannot be read.
    """
    found = [read_row(inputs, row, below, longest) for row in read_array_rows(path, inputs)]
    problems = [
        f"row {number}: {problem}" for number, (_, wrong) in enumerate(found) for problem in wrong
    ]
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"… and {len(problems) - MOST_PROBLEMS} more"]
    if not found:
        problems = ["it holds no rows"]
    if problems:
        raise InputError(join_problems(str(path), problems))
    return [arrays for arrays, _ in found]


def read_rows_of(path: PathLike, manifest: Manifest) -> Rows:
    """Read rows of what a bundle takes, ids of a text model too; see ``read_checked_rows``."""
    io, limits = manifest.module_io, manifest.limits
    inputs, below = manifest.inputs, {graph_io.INPUT_IDS: limits.source_vocab_size}
    longest: dict[str, int] = {}
    if io is not None:
        below, longest = dict(io.below), dict(io.longest)
    for tensor in inputs:
        if tensor.name == graph_io.INPUT_IDS and limits.max_source_length is not None:
            axis = str(tensor.axes[1])
            longest[axis] = min(limits.max_source_length, longest.get(axis, sys.maxsize))
    return read_checked_rows(path, inputs, below, longest)


# What numpy and zipfile raise for damaged or foreign files.
_DAMAGED = (
    ValueError, TypeError, EOFError, MemoryError, NotImplementedError, RuntimeError,
    zlib.error, tokenize.TokenError, zipfile.BadZipFile,
)  # fmt: skip


def _load(path: Path) -> dict[str, Any]:
    with path.open("rb"):  # an error of the system names the file
        pass
    problem: object = "it holds one array"
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.lib.npyio.NpzFile):
            with file:
                arrays = {name: file[name] for name in file.files}
            odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
            if not odd:
                return arrays
            problem = f"{shown(odd[0])} is not an array"
    except _DAMAGED as error:
        problem = " ".join(str(error).split()) or type(error).__name__
    raise InputError(f"{path}: not an .npz file of plain arrays, as numpy.savez writes: {problem}.")


def _columns(
    arrays: Mapping[str, Any], inputs: Sequence[TensorSpec]
) -> tuple[dict[str, list[Any]], list[str]]:
    """The rows of each input, and all problems."""
    left, columns, problems = dict(arrays), dict[str, list[Any]](), list[str]()
    for tensor in inputs:
        name = tensor.name
        parts = [part for part in left if part.startswith(f"{name}/")]
        if name in left:
            whole = left.pop(name)
            if whole.ndim:
                columns[name] = list(whole)
            else:
                problems.append(f"{name!r} is a number, not an array of rows")
        elif parts:
            wanted = [f"{name}/{i}" for i in range(len(parts))]
            columns[name] = [left[part] for part in wanted if part in left]
            problems += [f"{part!r} is missing" for part in wanted if part not in left]
            for part in parts:
                del left[part]
        elif name != graph_io.ATTENTION_MASK:
            problems.append(f"input {name!r} is missing")
    problems += [f"{shown(name)} is not an input" for name in left]
    return columns, problems


def decode_rows(
    engine: Engine,
    rows: Sequence[Mapping[str, Any]],
    options: ResolvedOptions,
    prefix: tuple[int, ...] = (),
    chunk: int = 512,
) -> Iterator[LineResult]:
    """Decode rows in their order; a bad row gives a problem instead of a result.

    Args:
        engine: the engine of an open bundle.
        rows: input to array.
        options: how to decode, as the engine resolved it.
        prefix: the forced start of every target.
        chunk: rows that are batched together.
    """

    def read() -> Iterator[Job]:
        for number, row in enumerate(rows):
            try:
                yield Job(number, engine.request_from(row, number, prefix, options))
            except InputError as error:
                yield Job(number, None, error.message)

    for job, found in engine.decode_stream(read(), options, chunk):
        if job.problem is not None:
            yield LineResult(job.number, None, job.problem)
        elif engine.gives_text:
            yield LineResult(job.number, engine.result("", [], found, options))
        else:
            yield LineResult(job.number, TranslationResult(None, found))
