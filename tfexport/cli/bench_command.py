"""``tfexport bench``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import progress_bar
from tfexport.cli.decoding_options import (
    as_call,
    decoding_options,
    given,
    whole_numbers,
)
from tfexport.errors import ConfigError
from tfexport.runtime.parallel.thread_layout import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.runtime.benchmark import Plan, Timing

OPTIONS = frozenset({"beam_size", "max_length", "batch_type"})
BATCH_SIZES = (1, 8, 32)
MAX_LENGTH = 30  # of the translations of random ids


@dataclass(frozen=True)
class _Call:
    """Arguments and options of the command; those of decoding by themselves."""

    bundle: str
    file: str | None
    ids: bool
    batch_sizes: tuple[int, ...]
    threads: tuple[int, ...]
    runs: int
    tune: bool
    as_json: bool
    decoding: dict[str, Any]


@click.command(short_help="How fast a bundle decodes on this machine. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--ids", is_flag=True, help="Lines of FILE are space-separated ids.")
@click.option("--batch-size", "batch_sizes", type=whole_numbers("batch_size"),
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
def bench(**values: Any) -> None:
    """Decode FILE, or random ids, over and over, and print what it takes.

    A sentence waits as long as its batch: the time of a batch is the latency, sentences a second
    are the throughput. Runs are interleaved, and rows of the table can be compared with each
    other. Other work on the machine slows all of them.

    \b
    tfexport bench de-en.bundle german.txt
    tfexport bench de-en.bundle german.txt --tune
    """
    from tfexport.runtime.benchmark import benchmark_rows, measure

    call = as_call(_Call, values)
    if call.tune and call.threads:
        raise ConfigError("--tune tries the threads itself; leave --threads out")
    keywords = given(call.decoding)
    plans = _plans(call, keywords.pop("batch_type", "rows"))
    if call.file is None:
        keywords.setdefault("max_length", MAX_LENGTH)
    rows = benchmark_rows(Path(call.bundle), call.file, keywords, ids=call.ids)
    with progress_bar() as tell:
        timings = measure(Path(call.bundle), rows, plans, call.runs, keywords, tell)
    _print(call, keywords, timings)
    if call.tune:
        best = min(timings, key=lambda timing: median(timing.seconds))
        _keep(call.bundle, best.plan)


def _keep(bundle: str, plan: "Plan") -> None:
    """Keep the fastest layout for ``translate``; all timings are printed already.

    Raises:
        ClickException: it cannot be kept, with what to do.
    """
    from tfexport.cli.tuning import VARIABLE, tuning_file, write_layout
    from tfexport.runtime.parallel.thread_layout import ThreadLayout

    click.echo(f"Fastest: {plan.workers} workers of {plan.threads} threads, --batch-size "
               f"{plan.batch_size}.", err=True)  # fmt: skip
    try:
        kept = write_layout(Path(bundle), ThreadLayout(plan.workers, plan.threads))
    except OSError as error:
        raise click.ClickException(
            f"the split could not be kept: {tuning_file()}: {error.strerror or error}. Name a file "
            f"that can be written with {VARIABLE}, or give translate --workers {plan.workers} "
            f"--threads {plan.threads}."
        ) from error
    click.echo(f"It is kept in {kept}; translate takes it for files.", err=True)


def _plans(call: _Call, kind: str) -> "list[Plan]":
    from tfexport.runtime.benchmark import Plan
    from tfexport.runtime.parallel.cpu import usable_cores

    cores = usable_cores()
    if call.tune:
        layouts = [(cores // each, each) for each in range(1, cores + 1) if cores % each == 0]
    else:
        layouts = [(1, each) for each in call.threads or (cores,)]
    sizes = call.batch_sizes or ((32,) if call.tune else BATCH_SIZES)
    if kind == "tokens" and not call.batch_sizes:
        raise ConfigError("--batch-type tokens needs --batch-size: how many tokens")
    return [Plan(*layout, size, kind) for layout in layouts for size in sizes]


def _print(call: _Call, keywords: dict[str, Any], timings: "Sequence[Timing]") -> None:
    from tfexport.cli.tuning import machine

    source = "random ids" if call.file is None else call.file
    if call.as_json:
        facts = {
            "bundle": call.bundle, "machine": machine(), "source": source, "runs": call.runs,
            "options": keywords, "timings": [_facts(timing) for timing in timings],
        }  # fmt: skip
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    count = timings[0].sentences
    click.echo(
        f"{call.bundle} on {machine()}: {count} rows of {source}, median of {call.runs} runs"
    )
    _print_table(timings)


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


def _print_table(timings: "Sequence[Timing]") -> None:
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
