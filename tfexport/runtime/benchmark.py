"""Timings of a bundle on this machine, for several numbers of workers, threads and batch sizes.

Runs of all plans are interleaved, so that a temporary slowdown of the machine affects all alike.
"""

import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import tfexport
from tfexport.bundle import MANIFEST, read_manifest
from tfexport.errors import InputError, Message, join_problems
from tfexport.runtime.engine import Engine
from tfexport.runtime.files.input_lines import read_line, read_numbers
from tfexport.runtime.model import native_engine
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.model.open_model import choose_engine
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.parallel.cpu import instruction_set, usable_cores
from tfexport.runtime.parallel.workers import make_batches
from tfexport.runtime.search import Request
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair
from tfexport.runtime.translator import Translator
from tfexport.typing import PathLike, Progress, silent

SOURCE_LENGTH, ROWS = 20, 32  # of random ids
WARM_BATCHES = 2  # rows that are decoded before the timing


@dataclass(frozen=True)
class Plan:
    """A combination of workers, threads and batch size.

    Attributes:
        workers: batches decoded at a time.
        threads: threads of each.
        batch_size: as in ``DecodingOptions``.
        batch_type: as in ``DecodingOptions``.
    """

    workers: int
    threads: int
    batch_size: int
    batch_type: str = "rows"


@dataclass
class Timing:
    """Measured times of one plan.

    Attributes:
        plan: the plan.
        sentences: rows of a run.
        tokens: target tokens of a run, end tokens not counted.
        seconds: seconds of every run.
        batches: seconds of every batch of every run; empty with several workers.
    """

    plan: Plan
    sentences: int
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)


def measure(
    bundle: Path,
    rows: Sequence[Sequence[int]],
    plans: Sequence[Plan],
    runs: int,
    options: dict[str, Any],
    progress: Progress = silent,
    engine: EngineName = "auto",
) -> list[Timing]:
    """Decode all rows with every plan, ``runs`` times each.

    Args:
        bundle: its folder.
        rows: source ids as the encoder takes them, none of them empty.
        plans: what to compare.
        runs: number of runs of each plan.
        options: further keywords of ``Translator.generate``.
        progress: called with the name of the phase, the steps done and their total.
        engine: what computes the model; see ``Translator``.

    Returns:
        A timing for each plan, in their order.
    """
    opened: dict[tuple[int, int], Translator] = {}
    found = [Timing(plan, len(rows)) for plan in plans]
    steps = (runs + 1) * len(plans)
    try:
        for run in range(runs + 1):
            for number, timing in enumerate(found):
                plan = timing.plan
                progress(
                    "warming up" if run == 0 else "measuring", run * len(plans) + number, steps
                )
                key = plan.workers, plan.threads
                if key not in opened:
                    opened[key] = Translator(
                        bundle, plan.threads, workers=plan.workers, engine=engine
                    )
                _run(opened[key], rows, timing, options, warm_up=run == 0)
    finally:
        for translator in opened.values():
            translator.close()
    return found


def benchmark_rows(
    bundle: Path,
    file: str | None,
    keywords: dict[str, Any],
    *,
    ids: bool = False,
    language_pair: LanguagePair = NO_LANGUAGES,
) -> tuple[list[list[int]], dict[str, Any]]:
    """Make source ids to decode, from a file's lines that are not blank, or at random.

    Args:
        bundle: its folder; it is closed before this returns.
        file: UTF-8 lines; None for random ids, the same on every machine.
        keywords: decoding options, which are checked.
        ids: lines are ids separated by spaces instead of text.
        language_pair: the languages of the lines, for a model with language tokens.

    Returns:
        The rows, and the keywords with the token of the target language.

    Raises:
        ConfigError: unknown or contradictory options.
        InputError: naming all lines that cannot be decoded; or there is no line.
    """
    engine = Engine(bundle)
    named = language_pair.source is not None or language_pair.target is not None
    language_pair = language_pair._replace(as_ids=ids or file is None or not named)
    engine.resolver.resolve(keywords, language_pair=language_pair)
    languages = engine.manifest.languages
    if (
        languages is not None
        and languages.target_place in ("first", "start")
        and language_pair.target
    ):
        keywords = {**keywords, "target_language": language_pair.target}
    rows = _random_rows(engine) if file is None else _read_rows(engine, file, language_pair, ids)
    return rows, keywords


def _random_rows(engine: Engine) -> list[list[int]]:
    engine.manifest.require_ids()
    limits, special = engine.manifest.limits, engine.manifest.special_ids
    taken = {special.pad, special.bos, special.eos, special.start}
    usable = [i for i in range(limits.source_vocab_size) if i not in taken]
    length = min(SOURCE_LENGTH, limits.max_source_length or SOURCE_LENGTH)
    draw = random.Random(0)
    return [draw.choices(usable, k=length) for _ in range(ROWS)]


def _read_rows(
    engine: Engine, file: str, language_pair: LanguagePair, ids: bool
) -> list[list[int]]:
    options, _ = engine.resolver.resolve({"truncate": True}, language_pair=language_pair)
    rows: list[list[int]] = []
    problems: list[Message] = []
    with Path(file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = read_line(line, first=number == 1)
                source = read_numbers(text) if ids else text
                request = engine.request(source, number, (), options, as_ids=ids)
            except InputError as error:
                problems.append(Message(f"line {number}: ", error.message))
                continue
            if request is not None:
                rows.append(request.ids)
    if not rows and not problems:
        problems.append(Message("it has no line that is not blank"))
    if problems:
        raise InputError(join_problems(file, problems))
    return rows


def _run(
    translator: Translator,
    rows: Sequence[Sequence[int]],
    timing: Timing,
    options: dict[str, Any],
    warm_up: bool,
) -> None:
    plan = timing.plan
    keywords = {
        "return_scores": False,  # as in ``tfexport translate``
        **options,
        "batch_size": plan.batch_size,
        "batch_type": plan.batch_type,
    }
    batches = make_batches(
        [Request(list(row)) for row in rows],
        DecodingOptions(batch_size=plan.batch_size, batch_type=plan.batch_type),
    )
    calls = [[rows[i] for i in batch] for batch in batches]
    if plan.workers > 1:  # they share the batches of one call
        calls = [[row for call in calls for row in call]]
    if warm_up:
        for call in islice(calls, WARM_BATCHES):
            translator.generate(call, **keywords)
        return
    durations, tokens = [], 0
    for call in calls:
        start = time.perf_counter()
        results = translator.generate(call, **keywords)
        durations.append(time.perf_counter() - start)
        tokens += sum(len(result.hypotheses[0].tokens) for result in results)
    timing.seconds.append(sum(durations))
    timing.tokens = tokens
    if plan.workers == 1:
        timing.batches += durations


ONNXRUNTIME, NATIVE = "onnxruntime", "native"
DIGITS = 12  # characters of a digest, as in the server's model versions


@dataclass(frozen=True)
class Signature:
    """The conditions of a measurement, as one line that can be compared.

    Attributes:
        artifact: its kind and the start of its digest, as ``bundle:51dcf27445a7``.
        engine: the engine and its version.
        instruction_set: the instruction set that the engine uses; if unknown, those of the
            processor.
        workers: batches at a time.
        threads: the threads of each worker.
        options: the options that were given.
        libraries: further libraries that the result depends on, name to version.
    """

    artifact: str
    engine: str = ONNXRUNTIME
    instruction_set: str = field(default_factory=instruction_set)
    workers: int = 1
    threads: int = field(default_factory=usable_cores)
    options: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, str]:
        """Field to its value, in the order of the line."""
        kind, _, digest = self.artifact.partition(":")
        return {
            kind: digest,
            "tfexport": tfexport.__version__,
            ONNXRUNTIME: onnxruntime_version(),
            **self.libraries,
            "engine": self.engine,
            "cpu": self.instruction_set,
            "threads": str(self.threads),
            **({"workers": str(self.workers)} if self.workers > 1 else {}),
            **{name: _shown(value) for name, value in sorted(self.options.items())},
        }

    def __str__(self) -> str:
        """The signature as one line."""
        return "|".join(f"{name}:{value}" for name, value in self.to_dict().items())


def of_artifact(path: PathLike, engine: EngineName = "onnxruntime", **values: Any) -> Signature:
    """The signature of a measurement of a bundle or a single file.

    Args:
        path: the bundle's folder, or the file.
        engine: as requested; for a bundle "auto" is resolved.
        **values: other attributes of ``Signature``; 0 threads are all cores.

    Raises:
        BundleError: it is a folder, and no bundle.
        OSError: it is a file that cannot be read.
    """
    path = Path(path)
    if values.get("threads") == 0:
        values["threads"] = max(1, usable_cores() // values.get("workers", 1))
    kind = "file" if path.is_file() else "bundle"
    if kind == "bundle":
        if choose_engine(read_manifest(path), engine)[0] == NATIVE:
            values = {"engine": NATIVE, "instruction_set": native_engine.instruction_set()} | values
            own = {native_engine.DISTRIBUTION: native_engine.version()}
            values["libraries"] = {**values.get("libraries", {}), **own}
        path = path / MANIFEST  # the manifest contains the digests of all files
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return Signature(f"{kind}:{digest.hexdigest()[:DIGITS]}", **values)


def onnxruntime_version() -> str:
    """The version of the installed onnxruntime, without importing it."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version(ONNXRUNTIME)
    except metadata.PackageNotFoundError:  # a build of another name, such as onnxruntime-gpu
        return "unknown"


def _shown(value: Any) -> str:
    """A value of an option, without the separator of fields."""
    separators = (",", ":")
    text = (
        value if isinstance(value, str) else json.dumps(value, default=str, separators=separators)
    )
    return text.replace("|", "%7C").replace("\n", "%0A")
