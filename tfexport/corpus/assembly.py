"""Where the output of a partition comes together.

Beside the output NAME, until it is complete, stands the folder ``.NAME.parts`` with its translated
pieces; behind it stays ``.NAME.done``, a record of what it was made of and of what it contains. A
piece and a record hold the identity of what they are made of, so that a name alone says nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfexport.corpus.formats import FORMATS
from tfexport.corpus.partitions import Partition
from tfexport.corpus.places import (
    BLOCK,
    exists,
    opened,
    read_json_file,
    remove_folder,
    write_whole,
)

SAMPLES = 5  # errors of rows that are kept of a piece, and shown of a partition
_LONGEST_HEADER = 1 << 16


@dataclass(frozen=True)
class Job:
    """The settings of a run that all stages know.

    Attributes:
        made_of: everything but its input that an output depends on, as JSON values.
        column: with the texts.
        batch_rows: rows of a piece.
    """

    made_of: Mapping[str, Any]
    column: str
    batch_rows: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of rows.

    Attributes:
        rows: how many.
        tokens: that were decoded.
        errors: rows that could not be decoded.
        samples: number and error of the first few of them, counted from 1.
    """

    rows: int = 0
    tokens: int = 0
    errors: int = 0
    samples: tuple[tuple[int, str], ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.errors + other.errors,
            (*self.samples, *other.samples)[:SAMPLES],
        )


class DamagedError(Exception):
    """A piece that is not what was written."""


class Assembly:
    """The output of one partition."""

    def __init__(self, partition: Partition, digest: str, job: Job) -> None:
        """Name the places of an output.

        Args:
            partition: to translate.
            digest: of its content.
            job: that it is part of.
        """
        self._partition, target = partition, partition.target
        self._system, self._path = target.system, target.path
        folder, _, name = target.path.rpartition("/")
        self._parts, self._record = f"{folder}/.{name}.parts", f"{folder}/.{name}.done"
        whole = json.dumps(
            {"input": digest, "kind": partition.format, **job.made_of}, sort_keys=True
        )
        self._batch_rows = job.batch_rows
        self._identity = hashlib.sha256(whole.encode()).hexdigest()[:32]

    def finished(self) -> Outcome | None:
        """The outcome of a complete output that was made of the same; None without one."""
        record = _json(read_json_file(self._system, self._record))
        if record.get("identity") != self._identity or not exists(self._system, self._path):
            return None
        if self._sha256(self._path) != record.get("sha256"):
            return None
        outcome = _outcome(record)
        if outcome is not None:
            remove_folder(self._system, self._parts)  # which a kill may have left
        return outcome

    def is_outdated(self) -> bool:
        """Whether a run has written an output there, of other input, bundle or options."""
        record = _json(read_json_file(self._system, self._record))
        return record.get("identity") not in (None, self._identity)

    def is_foreign(self) -> bool:
        """Whether an output stands there that no run has written."""
        ours = (
            exists(self._system, self._record)
            or self._system.get_file_info(self._parts).type.name == "Directory"
        )
        return exists(self._system, self._path) and not ours

    def piece(self, index: int) -> Outcome | None:
        """The outcome of a piece that is there; None if it is not."""
        path = self._piece_path(index)
        if not exists(self._system, path):
            return None
        with opened(self._system, path) as stream:
            header = _json(stream.read(_LONGEST_HEADER).partition(b"\n")[0])
        return _outcome(header)

    def keep(self, index: int, outcome: Outcome, body: bytes) -> None:
        """Write a piece.

        Raises:
            OSError: it cannot be written.
        """
        header = {**asdict(outcome), "sha256": hashlib.sha256(body).hexdigest()}

        def write(stream: Any) -> None:
            stream.write(json.dumps(header).encode() + b"\n")
            stream.write(body)

        write_whole(self._system, self._piece_path(index), write)

    def join(self, pieces: int) -> Outcome:
        """Make the output of its pieces, and remove them.

        Raises:
            DamagedError: a piece is missing or damaged; it is removed, for the next run.
            OSError: the output cannot be written.
            PartitionError: the input cannot be read any more.
        """
        outcomes = [Outcome()]
        form, partition = FORMATS[self._partition.format], self._partition

        def write(stream: Any) -> None:
            form.join(self._bodies(pieces, outcomes), partition.source, stream)

        # Under its final name only when the record could tell what it is.
        write_whole(
            self._system, self._path, write,
            beside=self._parts, compression=partition.target.compression,
        )  # fmt: skip
        total = sum(outcomes, Outcome())
        record = {**asdict(total), "identity": self._identity, "sha256": self._sha256(self._path)}
        content = json.dumps(record).encode()
        # Beside the pieces, which are removed; what a kill leaves elsewhere would stay.
        write_whole(
            self._system, self._record, lambda stream: stream.write(content), beside=self._parts
        )
        remove_folder(self._system, self._parts)
        return total

    def _bodies(self, pieces: int, outcomes: list[Outcome]) -> Iterator[bytes]:
        for index in range(pieces):
            path = self._piece_path(index)
            content = b""
            if exists(self._system, path):
                with opened(self._system, path) as stream:
                    content = stream.read()
            first, _, body = content.partition(b"\n")
            header = _json(first)
            outcome = _outcome(header)
            if outcome is None or header.get("sha256") != hashlib.sha256(body).hexdigest():
                if content:
                    self._system.delete_file(path)
                raise DamagedError(f"piece {index + 1} is missing or damaged")
            outcomes.append(outcome)
            yield body

    def _piece_path(self, index: int) -> str:
        return f"{self._parts}/{self._identity}-{self._batch_rows}-{index:06d}"

    def _sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        with opened(self._system, path) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        return digest.hexdigest()


def _outcome(values: Mapping[str, Any]) -> Outcome | None:
    """An outcome from a header or record; None if it was not written whole."""
    try:
        samples = tuple((row, error) for row, error in values["samples"])
        return Outcome(values["rows"], values["tokens"], values["errors"], samples)
    except (KeyError, TypeError, ValueError):
        return None


def _json(content: bytes | None) -> dict[str, Any]:
    """An object; an empty one of what is none."""
    try:
        values = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
