"""The stages of a partition: scanning, translating, joining."""

import errno
import threading
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tfexport.corpus.assembly import SAMPLES, Assembly, ForeignError, Outcome, RunSettings
from tfexport.corpus.decoders import CorpusDecoder
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.partitions import Partition
from tfexport.corpus.pieces import PartitionError, Piece, SourceFile
from tfexport.corpus.row_decoder import RowResult
from tfexport.runtime.parallel.workers import StartError

# Errors of a disk that affect every output: it is full or read-only.
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}

Version = tuple[int, int]  # size in bytes and modification time of a file


@dataclass(frozen=True)
class PieceStep:
    """A piece between two stages, or the result of a partition without pieces.

    Attributes:
        name: the name of the partition.
        pieces: how many it has.
        digest: the digest of its content.
        version: the version of its file when it was scanned.
        partition: the file to read; None after translation.
        piece: the piece to translate; None of a partition without any.
        outcome: the result of its rows.
        reused: whether an earlier run has made it.
        outdated: whether an output of another input, bundle or options is replaced.
        failed: the reason why its partition cannot be translated.
        stopped: the reason why the run has to end, such as a full disk.
    """

    name: str
    pieces: int = 0
    digest: str = ""
    version: Version = (0, 0)
    partition: Partition | None = None
    piece: Piece | None = None
    outcome: Outcome | None = None
    reused: bool = False
    outdated: bool = False
    failed: str | None = None
    stopped: str | None = None

    def done(self) -> "PieceStep":
        """The step after translation, without its task."""
        return replace(self, partition=None, piece=None, version=(0, 0))


def scan_partition(partition: Partition, job: RunSettings) -> list[PieceStep]:
    """Yield a step for each piece, or one for a partition without pieces."""
    name, source = partition.name, partition.source
    try:
        form, version = FORMATS[partition.format], _version(source)
        found = form.scan(source, job.batch_rows, job.columns)
        _check_unchanged(source, version)
    except PartitionError as error:
        return [PieceStep(name, failed=str(error))]
    except (OSError, pa.ArrowException) as error:
        return [PieceStep(name, failed=f"cannot be read: {error}")]
    assembly = Assembly(partition, found.digest, job)
    try:
        if (outcome := assembly.finished()) is not None:
            return [PieceStep(name, outcome=outcome, reused=True)]
        assembly.check_replaceable()
        old = assembly.is_outdated()
        assembly.prepare()
    except ForeignError as error:
        return [PieceStep(name, failed=str(error))]
    except OSError as error:
        return [PieceStep(name, **_unwritten(partition, error))]
    count, digest, pieces = len(found.pieces), found.digest, found.pieces or [None]
    return [
        PieceStep(name, count, digest, version, partition, piece, outdated=old) for piece in pieces
    ]


def _unwritten(partition: Partition, error: OSError) -> dict[str, Any]:
    """The step after an OSError: either its partition has failed, or the run has to stop."""
    why = "stopped" if error.errno in _OF_THE_DISK else "failed"
    return {why: f"output {partition.target.path}: {error}"}


def _version(source: SourceFile) -> Version:
    try:
        info = source.system.get_file_info(source.path)
    except OSError as error:
        raise PartitionError(f"cannot be read: {error}") from None
    return info.size or 0, info.mtime_ns or 0


def _check_unchanged(source: SourceFile, version: Version) -> None:
    """Check that a file is unchanged since it was scanned."""
    if _version(source) != version:
        raise PartitionError("was changed while it was read. Run the command again")


class PieceTranslator:
    """Translates pieces, each into its own file. Safe to call from several threads.

    Attributes:
        ended: whether nothing may be written any more.
    """

    def __init__(self, decoder: CorpusDecoder, job: RunSettings) -> None:
        self._decoder, self._job, self.ended = decoder, job, False
        self._reading = threading.Lock()  # compressed files stay open

    def translate(self, step: PieceStep) -> PieceStep:
        """Translate a step's piece, unless an earlier run has done so.

        Raises:
            MemoryError: there was not enough; the piece itself is not the cause.
            StartError: the run has ended.
        """
        if step.partition is None or step.piece is None:
            return step
        try:
            outcome, reused = self._translated(step, step.partition, step.piece)
            return replace(step.done(), outcome=outcome, reused=reused)
        except MemoryError:  # Arrow's MemoryError is also an error of Arrow
            raise
        except OSError as error:
            return replace(step.done(), **_unwritten(step.partition, error))
        except PartitionError as error:
            return replace(step.done(), failed=str(error))
        except (pa.ArrowException, ValueError) as error:
            text = f"its rows from {step.piece.first + 1} on cannot be translated: {error}"
            return replace(step.done(), failed=text)

    def _translated(
        self, step: PieceStep, partition: Partition, piece: Piece
    ) -> tuple[Outcome, bool]:
        assembly = Assembly(partition, step.digest, self._job)
        if (found := assembly.piece(piece.index)) is not None:
            return found
        form = FORMATS[partition.format]
        with self._reading:
            given, rows = form.read(partition.source, piece, self._job.columns)
        _check_unchanged(partition.source, step.version)
        decoded = self._decoder.decode(rows, form.has_scores)
        if self.ended:
            raise StartError("the run has ended")
        outcome = _outcome(decoded, piece)
        assembly.keep(piece.index, outcome, form.write(given, decoded, self._job.columns))
        return outcome, False


def _outcome(decoded: list[RowResult], piece: Piece) -> Outcome:
    bad = [
        (piece.first + place + 1, row.error)
        for place, row in enumerate(decoded)
        if row.error is not None
    ]
    tokens = sum(row.tokens for row in decoded)
    samples = tuple((number, error[:500]) for number, error in bad[:SAMPLES])
    return Outcome(
        len(decoded), tokens, len(bad), samples, sum(row.cut for row in decoded),
        sum(row.unknown for row in decoded), sum(row.unknown > 0 for row in decoded),
    )  # fmt: skip


class Coordinator:
    """Joins partitions, and counts attempts at pieces; on Ray, one actor of the run."""

    def __init__(self, job: RunSettings) -> None:
        self._job = job
        self._begun: dict[str, int] = {}

    def begin(self, key: str) -> int:
        """Count an attempt at a piece; return the number of attempts that did not end.

        A worker that a piece kills cannot report it.
        """
        self._begun[key] = self._begun.get(key, 0) + 1
        return self._begun[key]

    def end(self, key: str) -> None:
        """Forget the attempts at a piece that has ended."""
        self._begun.pop(key, None)

    def join(self, partition: Partition, digest: str, pieces: int) -> PieceStep:
        """Make the output of a partition whose pieces are complete."""
        try:
            outcome = Assembly(partition, digest, self._job).join(pieces)
        except ForeignError as error:
            return PieceStep(partition.name, failed=str(error))
        except (PartitionError, pa.ArrowException, ValueError) as error:
            return PieceStep(partition.name, failed=f"{error}. Run the command again")
        except OSError as error:
            return PieceStep(partition.name, **_unwritten(partition, error))
        return PieceStep(partition.name, pieces, outcome=outcome)
