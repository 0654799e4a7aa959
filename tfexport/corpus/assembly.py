"""The output of a partition: pieces in a hidden folder, which are joined at the end.

Until the output NAME is complete, the folder ``.NAME.parts`` next to it holds the translated
pieces. Afterwards ``.NAME.done`` records the inputs and the content of NAME. Pieces and records
contain the identity of their inputs, so file names are not trusted. An output that no run has
written, such as an edited one, is not replaced.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyarrow import fs

from tfexport.corpus.columns import Columns
from tfexport.corpus.filesystem import (
    BLOCK,
    exists,
    opened,
    read_small_file,
    remove_folder,
    write_atomically,
)
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import PartitionError
from tfexport.errors import Message, Option

SAMPLES = 5  # errors of rows that are kept for a piece, and shown for a partition
_LONGEST_HEADER = 1 << 16
_LONGEST_NAME = 240  # bytes, so that an ending can be added


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run for all stages.

    Attributes:
        made_of: everything that an output depends on except its input, as JSON values.
        columns: see ``Columns``.
        batch_rows: rows of a piece.
        run: the run's name, which its pieces contain.
        force: whether outputs that no run has written, or that were changed since, are replaced.
        spell: writes options in the reasons why a partition fails.
    """

    made_of: Mapping[str, Any]
    columns: Columns
    batch_rows: int
    run: str = ""
    force: bool = False
    spell: Callable[[Option], str] = str


@dataclass(frozen=True)
class Outcome:
    """The outcome of several rows.

    Attributes:
        rows: the number of rows.
        tokens: how many were decoded.
        errors: rows that could not be decoded.
        samples: number and error of the first few of them, counted from 1.
        cut: rows whose translation was cut at its longest length.
        unknown: tokens of sources that the model does not know.
        with_unknown: rows with such tokens.
    """

    rows: int = 0
    tokens: int = 0
    errors: int = 0
    samples: tuple[tuple[int, str], ...] = ()
    cut: int = 0
    unknown: int = 0
    with_unknown: int = 0

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.errors + other.errors,
            (*self.samples, *other.samples)[:SAMPLES],
            self.cut + other.cut,
            self.unknown + other.unknown,
            self.with_unknown + other.with_unknown,
        )


class ForeignError(Exception):
    """An output may not be replaced."""


class Assembly:
    """The output of one partition."""

    def __init__(self, partition: Partition, digest: str, job: RunSettings) -> None:
        """Find the paths of an output.

        Args:
            partition: the partition to translate.
            digest: sha256 of its content.
            job: the run's settings.
        """
        self._partition, target = partition, partition.target
        self._system, self._path = target.system, target.path
        folder, _, name = target.path.rpartition("/")
        hidden = f"{folder}/.{_shortened(name)}"
        self._parts, self._record = f"{hidden}.parts", f"{hidden}.done"
        self._note = f"{self._parts}/joined"
        whole = json.dumps(
            {"input": digest, "kind": partition.format, **job.made_of}, sort_keys=True
        )
        self._job = job
        self._identity = hashlib.sha256(whole.encode()).hexdigest()[:32]

    def finished(self) -> Outcome | None:
        """The outcome of a complete output of the same input and settings; None without one."""
        record = _json(read_small_file(self._system, self._record))
        if record.get("identity") != self._identity or not exists(self._system, self._path):
            return None
        if self._sha256(self._path) != record.get("sha256"):
            return None
        outcome = _outcome(record)
        if outcome is not None:
            remove_folder(self._system, self._parts)  # a killed run may have left it
        return outcome

    def is_outdated(self) -> bool:
        """Whether a run has written this output from another input, bundle or options."""
        record = _json(read_small_file(self._system, self._record))
        return record.get("identity") not in (None, self._identity)

    def check_replaceable(self) -> None:
        """Check that an existing file is an unchanged output of a run.

        Raises:
            ForeignError: it is not, and ``force`` is not given.
        """
        found = self._system.get_file_info(self._path).type
        if found == fs.FileType.NotFound:
            return
        if found != fs.FileType.File:
            raise ForeignError(
                f"{self._path} exists, but was not written by a run. Move it away, or choose "
                "another output"
            )
        written = [
            _json(read_small_file(self._system, path)).get("sha256")
            for path in (self._record, self._note)
        ]
        if self._job.force or self._sha256(self._path) in written:
            return
        what = "exists, but was not written by a run"
        if any(written):
            what = "was changed after a run wrote it"
        force = Option("force", True)
        raise ForeignError(
            Message(
                f"{self._path} {what}. Move it away, choose another output, or replace it with ",
                force,
            ).spelled(self._job.spell)
        )

    def prepare(self) -> None:
        """Make the folder of the pieces before any work.

        Raises:
            OSError: it cannot be made.
        """
        self._system.create_dir(self._parts, recursive=True)

    def piece(self, index: int) -> tuple[Outcome, bool] | None:
        """The outcome of an existing piece, and whether an earlier run has made it."""
        path = self._piece_path(index)
        if not exists(self._system, path):
            return None
        with opened(self._system, path) as stream:
            header = _json(stream.read(_LONGEST_HEADER).partition(b"\n")[0])
        outcome = _outcome(header)
        return None if outcome is None else (outcome, header.get("run") != self._job.run)

    def keep(self, index: int, outcome: Outcome, body: bytes) -> None:
        """Write a piece.

        Raises:
            OSError: it cannot be written.
        """
        digest = hashlib.sha256(body).hexdigest()
        header = {**asdict(outcome), "sha256": digest, "run": self._job.run}

        def write(stream: Any) -> None:
            stream.write(json.dumps(header).encode() + b"\n")
            stream.write(body)

        write_atomically(self._system, self._piece_path(index), write)

    def join(self, pieces: int) -> Outcome:
        """Make the output from its pieces, and remove them.

        Raises:
            ForeignError: another program has written or changed the file meanwhile.
            OSError: the output cannot be written.
            PartitionError: a piece is missing or damaged, which is removed for the next run; or
                the input cannot be read any more.
        """
        form, partition, digests = FORMATS[self._partition.format], self._partition, list[str]()

        def write(stream: Any) -> Outcome:
            outcomes = list[Outcome]()
            form.join(self._bodies(pieces, outcomes), partition.source, stream, self._job.columns)
            return sum(outcomes, Outcome())

        def hash_and_check(partial: str) -> None:
            # Before the file is renamed: another program may replace it later.
            self.check_replaceable()
            digests.append(self._sha256(partial))
            # If the run is killed before the record is written, this file identifies the output.
            note = json.dumps({"sha256": digests[-1]}).encode()
            write_atomically(self._system, self._note, lambda stream: stream.write(note))

        total = write_atomically(
            self._system, self._path, write,
            folder=self._parts, compression=partition.target.compression,
            before_move=hash_and_check,
        )  # fmt: skip
        record = {**asdict(total), "identity": self._identity, "sha256": digests[-1]}
        content = json.dumps(record).encode()
        # In the folder of the pieces, which is removed; elsewhere a killed run would leave the
        # file.
        write_atomically(
            self._system, self._record, lambda stream: stream.write(content), folder=self._parts
        )
        remove_folder(self._system, self._parts)
        return total

    def _bodies(self, pieces: int, outcomes: list[Outcome]) -> Iterator[bytes]:
        for index in range(pieces):
            path = self._piece_path(index)
            if not exists(self._system, path):
                raise PartitionError(
                    f"piece {index + 1} is missing from {self._parts}, which every machine of the "
                    "cluster must be able to read"
                )
            with opened(self._system, path) as stream:
                first, _, body = stream.read().partition(b"\n")
            header = _json(first)
            outcome = _outcome(header)
            if outcome is None or header.get("sha256") != hashlib.sha256(body).hexdigest():
                self._system.delete_file(path)
                raise PartitionError(f"piece {index + 1} is damaged")
            outcomes.append(outcome)
            yield body

    def _piece_path(self, index: int) -> str:
        return f"{self._parts}/{self._identity}-{self._job.batch_rows}-{index:06d}"

    def _sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        with opened(self._system, path) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        return digest.hexdigest()


def _shortened(name: str) -> str:
    """A file's name; a long one is replaced by its start and its hash."""
    content = name.encode()
    if len(content) <= _LONGEST_NAME:
        return name
    return content[:200].decode(errors="ignore") + hashlib.sha256(content).hexdigest()[:32]


def _outcome(values: Mapping[str, Any]) -> Outcome | None:
    """An outcome from a header or record; None if it is incomplete."""
    try:
        samples = tuple((row, error) for row, error in values["samples"])
        counts = {one.name: values[one.name] for one in fields(Outcome) if one.name != "samples"}
        return Outcome(**counts, samples=samples)
    except (KeyError, TypeError, ValueError):
        return None


def _json(content: bytes | None) -> dict[str, Any]:
    """Parse a JSON object; an empty one if it is invalid."""
    try:
        values = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
