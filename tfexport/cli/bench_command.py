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
    DecodingCommand,
    as_call,
    decoding_options,
    engine_option,
    given,
    integer_range,
    language_options,
)
from tfexport.errors import ConfigError
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.runtime.benchmark import Plan, Timing
    from tfexport.runtime.model.engine_name import EngineName

OPTIONS = frozenset({"beam_size", "max_length", "batch_type"})
BATCH_SIZES = (1, 8, 32)
MAX_LENGTH = 30  # length of the translations of random ids


@dataclass(frozen=True)
class _Call:
    """Arguments and options of the command; ``decoding`` has those of ``DecodingOptions``."""

    bundle: str
    file: str | None
    ids: bool
    batch_sizes: tuple[int, ...]
    threads: tuple[int, ...]
    runs: int
    tune: bool
    as_json: bool
    source_language: str | None
    target_language: str | None
    engine: "EngineName"
    decoding: dict[str, Any]


@click.command(
    cls=DecodingCommand,
    short_help="Measure how fast a bundle decodes on this machine. Needs no torch.",
)
@click.argument("bundle", type=click.Path())
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--ids", is_flag=True, help="Lines of FILE are space-separated ids.")
@click.option("--batch-size", "batch_sizes", type=integer_range("batch_size"),
              multiple=True, help="Lines (or tokens) per batch; repeatable.  "
              "[default: 1, 8, 32; with --tune: 32]")  # fmt: skip
@click.option("--threads", "threads", type=click.IntRange(1, MOST_THREADS), multiple=True,
              help="Threads inside an operator; repeatable.  [default: all cores]")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, 1000), default=7, show_default=True,
              help="Runs of each setting; the table shows their median.")  # fmt: skip
@click.option("--tune", is_flag=True, help="Find the numbers of workers and threads that decode "
              "FILE fastest, and save them as translate's default for files.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@language_options
@engine_option
@decoding_options(OPTIONS)
def bench(**values: Any) -> None:
    """Decode FILE, or random ids, several times, and print throughput and latency.

    Throughput is sentences per second. Latency is the time of a complete batch, which every
    sentence in it waits for. Runs of all settings are interleaved, so rows of the table can be
    compared even if other work slows the machine down for a while.

    \b
    tfexport bench de-en.bundle german.txt
    tfexport bench de-en.bundle german.txt --tune
    """
    from tfexport.runtime.benchmark import benchmark_rows, measure
    from tfexport.runtime.text.codec import LanguagePair

    call = as_call(_Call, values)
    if call.tune and call.threads:
        raise ConfigError("--tune tries different numbers of threads; omit --threads")
    if call.ids and call.file is None:
        raise ConfigError("--ids applies to the lines of FILE; omit it, or name FILE")
    keywords = given(call.decoding)
    plans = _plans(call, keywords.pop("batch_type", "rows"))
    if call.file is None:
        keywords.setdefault("max_length", MAX_LENGTH)
    language_pair = LanguagePair(call.source_language, call.target_language)
    rows, keywords = benchmark_rows(
        Path(call.bundle), call.file, keywords, ids=call.ids, language_pair=language_pair
    )
    with progress_bar() as progress:
        timings = measure(
            Path(call.bundle), rows, plans, call.runs, keywords, progress, engine=call.engine
        )
    _print(call, keywords, timings)
    if call.tune:
        best = min(timings, key=lambda timing: median(timing.seconds))
        _save_layout(call.bundle, best.plan)


def _save_layout(bundle: str, plan: "Plan") -> None:
    """Save the fastest numbers of workers and threads for ``translate``."""
    from tfexport.cli.tuning import VARIABLE, tuning_file, write_layout
    from tfexport.runtime.parallel.cpu import ThreadLayout

    click.echo(f"Fastest: {plan.workers} workers of {plan.threads} threads, --batch-size "
               f"{plan.batch_size}.", err=True)  # fmt: skip
    try:
        saved = write_layout(Path(bundle), ThreadLayout(plan.workers, plan.threads))
    except OSError as error:
        raise click.ClickException(
            f"the layout could not be saved: {tuning_file()}: {error.strerror or error}. Name a "
            f"file that can be written with {VARIABLE}, or give translate --workers {plan.workers} "
            f"--threads {plan.threads}."
        ) from error
    click.echo(f"Saved in {saved}; translate uses it for files.", err=True)


def _plans(call: _Call, batch_type: str) -> "list[Plan]":
    from tfexport.runtime.benchmark import Plan
    from tfexport.runtime.parallel.cpu import usable_cores

    cores = usable_cores()
    if call.tune:
        layouts = [(cores // n, n) for n in range(1, cores + 1) if cores % n == 0]
    else:
        layouts = [(1, threads) for threads in call.threads or (cores,)]
    sizes = call.batch_sizes or ((32,) if call.tune else BATCH_SIZES)
    if batch_type == "tokens" and not call.batch_sizes:
        raise ConfigError("--batch-type tokens needs --batch-size, the number of tokens")
    return [Plan(*layout, size, batch_type) for layout in layouts for size in sizes]


def _print(call: _Call, keywords: dict[str, Any], timings: "Sequence[Timing]") -> None:
    from tfexport.cli.tuning import machine
    from tfexport.runtime.benchmark import of_artifact

    def sign(plans: "Sequence[Plan]") -> str:
        """Time plans that differ only in their batch size."""
        first, sizes = plans[0], ",".join(str(plan.batch_size) for plan in plans)
        options = {**keywords, "batch_size": sizes}
        if first.batch_type != "rows":
            options["batch_type"] = first.batch_type
        return str(of_artifact(call.bundle, call.engine, workers=first.workers,
                               threads=first.threads, options=options))  # fmt: skip

    source = "random ids" if call.file is None else call.file
    if call.as_json:
        values = {
            "bundle": call.bundle, "machine": machine(), "source": source, "runs": call.runs,
            "options": keywords, "timings": [
                {**_figures(timing), "signature": sign([timing.plan])}
                for timing in timings
            ],
        }  # fmt: skip
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    count = timings[0].sentences
    click.echo(
        f"{call.bundle} on {machine()}: {count} rows of {source}, median of {call.runs} runs"
    )
    _print_table(timings)
    plans = [timing.plan for timing in timings]
    for layout in dict.fromkeys((plan.workers, plan.threads) for plan in plans):
        alike = [plan for plan in plans if (plan.workers, plan.threads) == layout]
        click.echo(f"signature: {sign(alike)}")


def _figures(timing: "Timing") -> dict[str, Any]:
    """Throughput and latency of one plan, with the times that were measured."""
    plan, seconds = timing.plan, median(timing.seconds)
    figures: dict[str, Any] = {
        "workers": plan.workers, "threads": plan.threads, "batch_size": plan.batch_size,
        "batch_type": plan.batch_type, "sentences": timing.sentences, "tokens": timing.tokens,
        "seconds": timing.seconds, "sentences_per_second": timing.sentences / seconds,
        "tokens_per_second": timing.tokens / seconds,
    }  # fmt: skip
    if timing.batches:
        figures["batch_milliseconds"] = {
            "median": 1000 * median(timing.batches),
            "95%": 1000 * _percentile_95(timing.batches),
        }
    return figures


def _percentile_95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _print_table(timings: "Sequence[Timing]") -> None:
    from rich.table import Table

    from tfexport.cli.reports import print_table

    table = Table()
    for column in ("workers", "threads", "batch", "sentences/s", "tokens/s", "batch takes, ms",
                   "95 % within, ms"):  # fmt: skip
        table.add_column(column, justify="right")
    for figures in map(_figures, timings):
        latency = figures.get("batch_milliseconds", {})
        unit = " tokens" if figures["batch_type"] == "tokens" else ""
        table.add_row(
            str(figures["workers"]),
            str(figures["threads"]),
            f"{figures['batch_size']}{unit}",
            f"{figures['sentences_per_second']:,.1f}",
            f"{figures['tokens_per_second']:,.0f}",
            *(f"{latency[key]:,.1f}" if latency else "–" for key in ("median", "95%")),
        )
    print_table(table)
