"""Runs over one partition, through the stages, without Ray; translations only mark their rows."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from tests.corpus.files import COUNTED, LOCAL, marked, source_of
from tfexport.corpus import ray_workers
from tfexport.corpus.assembly import Outcome, RunSettings
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import SourceFile
from tfexport.corpus.ray_workers import PieceWorker, scan
from tfexport.corpus.row_decoder import CorpusRow, RowResult, Task
from tfexport.corpus.shipping import ShippedBundle
from tfexport.corpus.stages import Coordinator, PieceStep
from tfexport.runtime.parallel.cpu import ThreadLayout

JOB = RunSettings({"bundle": "b", "options": {}}, COUNTED, 2)
SUFFIX = {"text": "txt", "jsonl": "jsonl", "parquet": "parquet"}
CONTENT = {
    "text": b"a\nb\nc\n\xff\ne\n",
    "jsonl": b'{"text": "a"}\n{"text": "b"}\n\n{"text": 4}\n{"text": "e"}\n',
}


def with_inputs(folder: Path) -> Path:
    """A folder with an input of each format, and one for outputs."""
    (folder / "out").mkdir()
    for name, content in CONTENT.items():
        (folder / f"in.{SUFFIX[name]}").write_bytes(content)
    table = pa.table({"text": ["a", "b", None, "d", "e"], "n": range(5)})
    pq.write_table(table, folder / "in.parquet", row_group_size=3)
    return folder


def partition_of(
    folder: Path, name: str = "text", disk: fs.FileSystem = LOCAL, compression: str | None = None
) -> Partition:
    path = folder / f"in.{SUFFIX[name]}"
    target = SourceFile(disk, (folder / f"out/o.{SUFFIX[name]}").as_posix(), compression)
    return Partition(path.name, name, source_of(path), target, path.stat().st_size)


class FailedError(Exception):
    """A partition that cannot be translated."""


class StoppedError(Exception):
    """A run that cannot go on."""


class Marking:
    """Decodes rows to marks of them, and of the job's bundle.

    Attributes:
        calls: pieces that it was given.
    """

    def __init__(self, job: RunSettings) -> None:
        self.calls, self._bundle = 0, job.made_of["bundle"]

    def close(self) -> None:
        """It has no threads."""

    def decode(self, rows: Sequence[CorpusRow], scores: bool) -> list[RowResult]:
        self.calls += 1
        return marked(
            replace(row, source=row.source + self._bundle) if isinstance(row.source, str) else row
            for row in rows
        )


def scanned(partition: Partition, job: RunSettings = JOB) -> list[PieceStep]:
    return [pickle.loads(row["step"]) for row in scan({"step": pickle.dumps(partition)}, job)]


def translated(
    steps: Sequence[PieceStep],
    decoder: Any,
    job: RunSettings = JOB,
    coordinator: Coordinator | None = None,
) -> list[PieceStep]:
    """What a worker with this decoder makes of them."""
    counts = coordinator or Coordinator(job)
    remote = SimpleNamespace(
        begin=SimpleNamespace(remote=counts.begin), end=SimpleNamespace(remote=counts.end)
    )
    with (
        patch.object(ray_workers, "open_decoder", lambda *given: decoder),
        patch.object(ray_workers, "ray", SimpleNamespace(get=lambda found: found)),
    ):
        worker = PieceWorker(ShippedBundle("", "", {}), ThreadLayout(), Task(), job, remote)
        rows = worker({"step": [pickle.dumps(step) for step in steps]})
    return [pickle.loads(step) for step in rows["step"]]


def keep_pieces(partition: Partition, job: RunSettings = JOB) -> int:
    """Translate the pieces that are not there; how many those were."""
    decoder = Marking(job)
    for step in translated(scanned(partition, job), decoder, job):
        check(step)
    return decoder.calls


def check(step: PieceStep) -> None:
    if step.stopped is not None:
        raise StoppedError(step.stopped)
    if step.failed is not None:
        raise FailedError(step.failed)


def run(partition: Partition, job: RunSettings = JOB) -> tuple[Outcome, int]:
    """The outcome, and how many pieces were translated for it."""
    first, *_ = scanned(partition, job)
    check(first)
    if first.outcome is not None:
        return first.outcome, 0
    made = keep_pieces(partition, job)
    joined = Coordinator(job).join(partition, first.digest, first.pieces)
    check(joined)
    assert joined.outcome is not None
    return joined.outcome, made


def in_output(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes()
            for path in (folder / "out").rglob("*") if path.is_file()}  # fmt: skip


def clear_output(folder: Path) -> None:
    for name in in_output(folder):
        (folder / "out" / name).unlink()
