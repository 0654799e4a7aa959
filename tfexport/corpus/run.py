"""A run over a corpus: workers translate pieces and join partitions; the run counts them.

``CorpusWorkers`` are threads of this process, or processes of a Ray cluster.
"""

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from tfexport.bundle import read_manifest
from tfexport.corpus.assembly import RunSettings
from tfexport.corpus.cluster import Bounds, WorkerPlan, connected
from tfexport.corpus.columns import Columns, added_columns
from tfexport.corpus.decoders import open_decoder
from tfexport.corpus.filesystem import file_system, local_path
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.listing import folder_of, is_folder, list_folder
from tfexport.corpus.partitions import Partition, find_partitions
from tfexport.corpus.report import CorpusReport, OnAdvance, RunProgress
from tfexport.corpus.row_decoder import make_task
from tfexport.corpus.shipping import ship
from tfexport.corpus.stages import PieceStep
from tfexport.corpus.subtitle_files import claim_folders
from tfexport.corpus.thread_workers import ThreadWorkers
from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    Problem,
    join_problems,
    missing_dependency,
    shown,
)
from tfexport.locks import writing
from tfexport.runtime.options import DecodingKeywords, DecodingOptions, given_options
from tfexport.runtime.parallel.cpu import ThreadLayout, usable_cores
from tfexport.typing import Unpack

_FORMAT_OF_PIECES = 5  # increased whenever outputs of the same input would differ
_ROWS, _FILES = 2048, 64  # of a piece, by default
_JOINS = 8  # partitions that may be joined at a time before the next piece is awaited

CorpusEngine = Literal["auto", "local", "ray"]


def translate_corpus(  # noqa: PLR0913 - one keyword for each option of the command
    bundle: str | os.PathLike[str],
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    column: str | None = None,
    *,
    output_column: str | None = None,
    include: Sequence[str] = (),
    file_format: str | None = None,
    engine: CorpusEngine = "auto",
    address: str | None = None,
    workers: int | Bounds | None = None,
    threads_per_worker: int = 1,
    batch_rows: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    target_prefix: str | None = None,
    vocabulary_map: str | os.PathLike[str] | None = None,
    max_seconds: float | None = None,
    transcription: Mapping[str, Any] | None = None,
    subtitles: Mapping[str, str | os.PathLike[str]] | None = None,
    force: bool = False,
    on_advance: OnAdvance = lambda advance: None,
    spell: Callable[[Option], str] = str,
    options: DecodingOptions | None = None,
    **keywords: Unpack[DecodingKeywords],
) -> CorpusReport:
    """Translate the files of a folder, or one file, on this machine or a cluster.

    A bundle that reads sound or pictures takes rows with the names of such files, or a folder of
    them, which gives one file of lines with a name each.

    The same call continues an interrupted run: existing files and pieces of the same input, bundle
    and options are kept. Two runs at a time may not have the same output; on a local disk a lock
    prevents it.

    Args:
        bundle: its folder; nodes that do not see it are sent its files.
        source: a file or folder, as a path or as a URI that pyarrow knows, which all nodes can
            read. Names of sounds and pictures are relative to this folder, or to that of the file.
        output: a path or URI of the same kind; each file is complete, or absent. Of a folder of
            sounds or pictures, a file of JSON lines, CSV or TSV, by its suffix.
        column: the column with the texts, of all formats but text; "text" by default. See
            ``translate_dataset``. With the names of sounds or pictures, "audio" or "image" by
            default.
        output_column: see ``translate_dataset``.
        include: shell patterns of the files of a folder that are translated, by name or by path in
            the folder; by default all whose suffix is that of a format.
        file_format: "text", "jsonl", "parquet", "csv" or "tsv", of all files; by default that of
            each file's suffix. With it, a folder is one of files of rows, also for a bundle that
            reads sound or pictures.
        engine: "local" for threads of this process; "ray" for processes that Ray starts, here or on
            a cluster; "auto" for Ray if there is an address, or if the program has called
            ``ray.init``, and for threads otherwise.
        address: the address of a running cluster; None for this machine only, or for the cluster of
            the program's own ``ray.init``.
        workers: see ``translate_dataset``. If threads of this process decode, there are as many as
            the most workers would have.
        threads_per_worker: see ``translate_dataset``.
        batch_rows: rows of a piece, which a worker sorts by length and decodes together; by default
            2048, and 64 of sounds or pictures.
        source_language: see ``translate_dataset``.
        target_language: see ``translate_dataset``.
        target_prefix: see ``translate_dataset``.
        vocabulary_map: see ``translate_dataset``.
        max_seconds: the longest sound that is read; by default 60, or 14,400 by a Whisper model.
        transcription: options by name for a Whisper model, those of ``TranscriptionOptions`` but
            ``language``, which is ``source_language``.
        subtitles: a folder, as a path or URI, for the subtitles of a Whisper model: "srt", "vtt" or
            both. Each sound of a folder gets a file of its name there.
        force: replace files of the output that no run has written, or that were changed since; by
            default their partition fails. Write into a folder of subtitles that holds other files.
        on_advance: called with the progress.
        spell: writes the options in the errors of rows and partitions.
        options: see ``translate_dataset``.
        **keywords: see ``translate_dataset``.

    Raises:
        BundleError: the bundle is missing or damaged.
        ClusterError: the cluster has failed.
        ConfigError: options are invalid; all are listed.
        InputError: there is no input, or it holds files of unknown format.
        MissingDependencyError: Ray is asked for, and is not installed.
        OutputExistsError: another run is writing the output.
    """
    media = read_manifest(bundle).media
    if batch_rows is None:
        batch_rows = _ROWS if media is None else _FILES
    plan = WorkerPlan(workers, threads_per_worker, batch_rows)
    on_ray = _is_for_ray(engine, address)
    given, place = os.fspath(source), os.fspath(output)
    task = make_task(
        given_options(options, keywords), source_language, target_language, target_prefix,
        vocabulary_map, spell, most_seconds=max_seconds, transcription=transcription or {},
        subtitles={kind: _everywhere(folder) for kind, folder in (subtitles or {}).items()},
        place="" if media is None else folder_of(given),
    )  # fmt: skip
    asked, column = column, column or media or "text"
    listing = None
    if media is not None and file_format is None and is_folder(given):
        listing = list_folder(given, place, media, column, include)
        partitions, passed_over = [listing.partition], listing.passed_over
    else:
        partitions, passed_over = find_partitions(given, place, file_format, include)
    _check_has_columns(partitions, {"column": asked, "output_column": output_column})
    # Opened here to find its errors early, too.
    layout = ThreadLayout(threads=1) if on_ray else plan.of_this_machine()
    decoder = open_decoder(Path(bundle), layout, task)
    names = listing.names if listing else None
    claim_folders(task.subtitles, (given, place), names, force)
    columns = Columns(column, decoder.row_columns, added_columns(output_column), spell)
    with ExitStack() as stack:
        alone = stack.enter_context(connected(address)) if on_ray else True
        if local := local_path(*file_system(place)):
            local.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(local))
        if listing:
            listing.write()
            stack.callback(listing.remove)
        shipped = ship(bundle, shared=alone)
        made_of = {
            "bundle": shipped.digest, "column": columns.text, "added": columns.added,
            "format": _FORMAT_OF_PIECES,
            **({"files": listing.digest} if listing else {}),
            **task.identity(),
        }  # fmt: skip
        job = RunSettings(made_of, columns, batch_rows, uuid.uuid4().hex, force, spell)
        if not on_ray:
            with ThreadWorkers(decoder, job, layout.workers) as threads:
                report = _run(threads, partitions, passed_over, on_advance)
            report.cores = min(report.cores, usable_cores())
            return report
        from tfexport.corpus.ray_workers import RayWorkers, running  # noqa: PLC0415 - imports Ray

        with running():
            workers_of_ray = RayWorkers(plan, job, shipped, task, alone)
            return _run(workers_of_ray, partitions, passed_over, on_advance)


def _everywhere(folder: str | os.PathLike[str]) -> str:
    """A path that workers with another current folder read alike, or a URI."""
    name = os.fspath(folder)
    return name if "://" in name else str(Path(name).absolute())


def _check_has_columns(partitions: list[Partition], asked: Mapping[str, str | None]) -> None:
    """Refuse options of columns if all files are text."""
    if any(FORMATS[found.format].has_scores for found in partitions):
        return
    problems = [
        Problem(name, f"{value!r}: the files are lines of text, which have no columns")
        for name, value in asked.items()
        if value is not None
    ]
    if problems:
        raise ConfigError(join_problems("corpus", problems))


def _is_for_ray(engine: CorpusEngine, address: str | None) -> bool:
    """Whether to use Ray."""
    if engine not in get_args(CorpusEngine):
        choices = ", ".join(map(repr, get_args(CorpusEngine)))
        raise ConfigError(Message(Option("engine"), f": {shown(engine)} is not one of {choices}."))
    if engine == "local" and address is not None:
        text = "the local engine uses only this machine, but an address is set"
        raise ConfigError(join_problems("corpus", [Problem("address", text)]))
    found = sys.modules.get("ray")  # importing it takes seconds
    connected_already = found is not None and found.is_initialized()
    if engine == "ray" or address is not None or (engine == "auto" and connected_already):
        require_ray()
        return True
    return False


def require_ray() -> None:
    """Check that Ray Data can be imported.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise missing_dependency("a cluster's workers need Ray Data", "corpus") from None


class CorpusWorkers(Protocol):
    """Workers that translate pieces and join partitions: threads or Ray actors."""

    @property
    def cores(self) -> int:
        """The most cores that decode."""

    def steps(self, partitions: list[Partition]) -> Iterator[PieceStep]:
        """Yield every translated piece, and a step for partitions without pieces."""

    def join(self, partition: Partition, step: PieceStep) -> None:
        """Start to join a partition whose pieces are complete; `step` is its last."""

    @property
    def joining(self) -> int:
        """The number of partitions that are being joined."""

    def joined(self, wait: bool) -> list[tuple[PieceStep, PieceStep]]:
        """Partitions that have been joined since the last call, each with ``join``'s step."""


def _run(
    workers: CorpusWorkers,
    partitions: list[Partition],
    passed_over: list[str],
    on_advance: OnAdvance,
) -> CorpusReport:
    """Translate all partitions, and count the results."""
    progress, named = RunProgress(partitions), {found.name: found for found in partitions}
    report = progress.report
    report.cores, report.passed_over = workers.cores, passed_over

    def collect(wait: bool) -> None:
        for step, last in workers.joined(wait):
            progress.take_joined(step, last.outdated)
        on_advance(progress.advance())

    for step in workers.steps(partitions):
        if progress.take(step):
            workers.join(named[step.name], step)
        collect(wait=workers.joining > _JOINS)
        if report.stopped is not None:
            break
    while workers.joining and report.stopped is None:
        collect(wait=True)
    return progress.end()
