"""``tfexport bench``."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import progress_bar
from tfexport.cli.decoding_options import (
    MOST_THREADS,
    RANGES,
    decoding_options,
    given,
    spelled_as_options,
)
from tfexport.errors import ConfigError, InputError, join_problems

if TYPE_CHECKING:
    from tfexport.runtime import Translator
    from tfexport.runtime.benchmark import Plan, Timing

OPTIONS = frozenset({"beam-size", "max-length", "batch-type"})
BATCH_SIZES = (1, 8, 32)
SOURCE_LENGTH, ROWS, MAX_LENGTH = 20, 32, 30  # of random ids


@click.command(short_help="How fast a bundle decodes on this machine. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--ids", is_flag=True, help="Lines of FILE are space-separated ids.")
@click.option("--batch-size", "batch_sizes", type=click.IntRange(*RANGES["batch-size"]),
              multiple=True, help="Lines (or tokens) of a batch; repeatable.  "
              "[default: 1, 8, 32; with --tune: 32]")  # fmt: skip
@click.option("--threads", "threads", type=click.IntRange(1, MOST_THREADS), multiple=True,
              help="Threads inside an operator; repeatable.  [default: all cores]")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, 1000), default=7, show_default=True,
              help="Every row of the table is the median of so many.")  # fmt: skip
@click.option("--tune", is_flag=True, help="Find how many workers of how many threads decode "
              "FILE fastest, and keep it: translate takes it for files.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@decoding_options(OPTIONS)
def bench(
    bundle: str,
    file: str | None,
    ids: bool,
    batch_sizes: tuple[int, ...],
    threads: tuple[int, ...],
    runs: int,
    tune: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Decode FILE, or random ids, over and over, and print what it takes.

    A sentence waits as long as its batch: the time of a batch is the latency, sentences a second
    are the throughput. Runs are interleaved, and rows of the table can be compared with each
    other. Other work on the machine slows all of them.

    \b
    tfexport bench de-en.bundle german.txt
    tfexport bench de-en.bundle german.txt --tune
    """
    from tfexport.cli.tuning import machine
    from tfexport.runtime.benchmark import measure

    if tune and threads:
        raise ConfigError("--tune tries the threads itself; leave --threads out")
    keywords = given(options)
    kind = keywords.pop("batch_type", "rows")
    plans = _plans(batch_sizes, threads, tune, kind)
    if file is None:
        keywords.setdefault("max_length", MAX_LENGTH)
    rows = _rows(bundle, file, ids, keywords)
    with progress_bar() as tell:
        timings = measure(Path(bundle), rows, plans, runs, keywords, tell)
    best = min(timings, key=lambda timing: median(timing.seconds))
    source = "random ids" if file is None else file
    if as_json:
        facts = {
            "bundle": bundle, "machine": machine(), "source": source, "runs": runs,
            "options": keywords, "timings": [_facts(timing) for timing in timings],
        }  # fmt: skip
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        click.echo(f"{bundle} on {machine()}: {len(rows)} rows of {source}, median of {runs} runs")
        _print(timings)
    if tune:
        _keep(bundle, best.plan)


def _keep(bundle: str, plan: "Plan") -> None:
    """Keep the fastest split for ``translate``; what was measured is printed already.

    Raises:
        ClickException: it cannot be kept, with what to do.
    """
    from tfexport.cli.tuning import VARIABLE, Split, tuning_file, write_split

    click.echo(f"Fastest: {plan.workers} workers of {plan.threads} threads, --batch-size "
               f"{plan.batch_size}.", err=True)  # fmt: skip
    try:
        kept = write_split(Path(bundle), Split(plan.workers, plan.threads))
    except OSError as error:
        raise click.ClickException(
            f"the split could not be kept: {tuning_file()}: {error.strerror or error}. Name a file "
            f"that can be written with {VARIABLE}, or give translate --workers {plan.workers} "
            f"--threads {plan.threads}."
        ) from error
    click.echo(f"It is kept in {kept}; translate takes it for files.", err=True)


def _plans(
    batch_sizes: Sequence[int], threads: Sequence[int], tune: bool, kind: str
) -> "list[Plan]":
    from tfexport.runtime.benchmark import Plan
    from tfexport.runtime.parallel.cpu import usable_cores

    cores = usable_cores()
    if tune:
        splits = [(cores // each, each) for each in range(1, cores + 1) if cores % each == 0]
    else:
        splits = [(1, each) for each in threads or (cores,)]
    sizes = batch_sizes or ((32,) if tune else BATCH_SIZES)
    if kind == "tokens" and not batch_sizes:
        raise ConfigError("--batch-type tokens needs --batch-size: how many tokens")
    return [Plan(*split, size, kind) for split in splits for size in sizes]


def _rows(bundle: str, file: str | None, ids: bool, keywords: dict[str, Any]) -> list[list[int]]:
    """The rows to decode, the options checked; the translator is gone before others open."""
    from tfexport.runtime import Translator

    translator = Translator(bundle)
    with spelled_as_options():
        translator.resolver.resolve(keywords)
    return _random_rows(translator) if file is None else _read_rows(translator, file, ids)


def _random_rows(translator: "Translator") -> list[list[int]]:
    """The same ids on every machine; special ones are not among them."""
    limits, special = translator.manifest.limits, translator.manifest.special_ids
    size = limits.source_vocab_size
    taken = {special.pad, special.bos, special.eos}
    usable = [i for i in range(size) if i not in taken]
    length = min(SOURCE_LENGTH, limits.max_source_length or SOURCE_LENGTH)
    draw = random.Random(0)
    return [draw.choices(usable, k=length) for _ in range(ROWS)]


def _read_rows(translator: "Translator", file: str, ids: bool) -> list[list[int]]:
    """The lines of a file that are not blank, as ids.

    Raises:
        InputError: a line cannot be decoded, or there is none; all lines are named.
    """
    from tfexport.runtime.files.line_format import read_line, read_numbers

    options, _ = translator.resolver.resolve({"truncate": True})
    rows, problems = [], []
    with Path(file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = read_line(line, first=number == 1)
                source = read_numbers(text) if ids else text
                request = translator.request(source, number, (), options, as_ids=ids)
            except InputError as error:
                problems.append(f"line {number}: {error}")
                continue
            if request is not None:
                rows.append(request.ids)
    if not rows and not problems:
        problems.append("it has no line that is not blank")
    if problems:
        raise InputError(join_problems(file, problems))
    return rows


def _facts(timing: "Timing") -> dict[str, Any]:
    """The figures of one row of the table, and those that they are made of."""
    plan, seconds = timing.plan, median(timing.seconds)
    facts: dict[str, Any] = {
        "workers": plan.workers, "threads": plan.threads, "batch_size": plan.batch_size,
        "batch_type": plan.batch_type, "sentences": timing.sentences, "tokens": timing.tokens,
        "seconds": timing.seconds, "sentences_per_second": timing.sentences / seconds,
        "tokens_per_second": timing.tokens / seconds,
    }  # fmt: skip
    if timing.batches:
        facts["batch_milliseconds"] = {
            "median": 1000 * median(timing.batches),
            "95%": 1000 * _percentile_95(timing.batches),
        }
    return facts


def _percentile_95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _print(timings: "Sequence[Timing]") -> None:
    from rich.table import Table

    from tfexport.cli.tables import print_table

    table = Table()
    for column in ("workers", "threads", "batch", "sentences/s", "tokens/s", "batch takes, ms",
                   "95 % within, ms"):  # fmt: skip
        table.add_column(column, justify="right")
    for facts in map(_facts, timings):
        waits = facts.get("batch_milliseconds", {})
        unit = " tokens" if facts["batch_type"] == "tokens" else ""
        table.add_row(
            str(facts["workers"]),
            str(facts["threads"]),
            f"{facts['batch_size']}{unit}",
            f"{facts['sentences_per_second']:,.1f}",
            f"{facts['tokens_per_second']:,.0f}",
            *(f"{waits[key]:,.1f}" if waits else "–" for key in ("median", "95%")),
        )
    print_table(table)
