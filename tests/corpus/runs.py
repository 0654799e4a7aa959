"""Runs over one partition without a cluster, whose translations only mark their rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from tests.corpus.files import LOCAL, marked, source_of
from tfexport.corpus.assembly import Assembly, Job, Outcome
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import Source

JOB = Job({"bundle": "b", "options": {}}, "text", 2)
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
    target = Source(disk, (folder / f"out/o.{SUFFIX[name]}").as_posix(), compression)
    return Partition(path.name, name, source_of(path), target, path.stat().st_size)


def keep_pieces(partition: Partition, job: Job = JOB) -> int:
    """Translate the pieces that are not there; how many those were."""
    form, made = FORMATS[partition.format], 0
    scanned = form.scan(partition.source, job.batch_rows, job.column)
    assembly = Assembly(partition, scanned.digest, job)
    for piece in scanned.pieces:
        if assembly.piece(piece.index) is not None:
            continue
        given, rows = form.read(partition.source, piece, job.column)
        decoded = marked(replace(row, source=shown(row.source, job)) for row in rows)
        bad = [(row.number + 1, one.error) for row, one in zip(rows, decoded, strict=True)
               if one.error is not None]  # fmt: skip
        outcome = Outcome(len(rows), 3 * (len(rows) - len(bad)), len(bad), tuple(bad))
        assembly.keep(piece.index, outcome, form.write(given, decoded))
        made += 1
    return made


def run(partition: Partition, job: Job = JOB) -> tuple[Outcome, int]:
    """As the stages do it: the outcome, and how many pieces were translated for it."""
    scanned = FORMATS[partition.format].scan(partition.source, job.batch_rows, job.column)
    assembly = Assembly(partition, scanned.digest, job)
    if (done := assembly.finished()) is not None:
        return done, 0
    assert not assembly.is_foreign()
    made = keep_pieces(partition, job)
    return assembly.join(len(scanned.pieces)), made


def shown(text: Any, job: Job) -> Any:
    return text + job.made_of["bundle"] if isinstance(text, str) else text


def in_output(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes()
            for path in (folder / "out").rglob("*") if path.is_file()}  # fmt: skip


def clear_output(folder: Path) -> None:
    for name in in_output(folder):
        (folder / "out" / name).unlink()
