"""Two threads while another process keeps a core busy: python -m benchmarks.neighbour.

Each cell: tokens a second with one thread and with two, alone and next to the neighbour. One
thread next to it shows what the machine takes away, whatever the engine does. Runs take turns, and
the neighbour comes and goes.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from benchmarks.compare import LENGTH, Bench
from benchmarks.configurations import ONE, OURS, TWO, Configuration, configurations_of
from benchmarks.models import prepare
from benchmarks.process import Process
from benchmarks.startup import machine

SETTLE = 0.5  # seconds in which a process next to a new neighbour finds out about it


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that spins on the last of this process' cores."""
    cores = sorted(os.sched_getaffinity(0))
    spinning = (  # until this process ends, however it does
        f"import os\nos.sched_setaffinity(0, [{cores[-1]}])\nparent = os.getppid()\n"
        "while os.getppid() == parent: sum(range(10_000))"
    )
    with subprocess.Popen([sys.executable, "-c", spinning]) as process:
        try:
            time.sleep(SETTLE)
            yield
        finally:
            process.kill()


def rate(process: Process, rows: list[list[int]], seconds: float) -> float:
    """Tokens a second, in calls that follow one another for so long.

    Single calls of the small model take 5 ms. The system gives who has slept a core to itself for
    some milliseconds, and so each would say when it began rather than how fast it is.
    """
    once: float = process.run(rows, LENGTH)["seconds"]
    times = max(round(seconds / once), 1)
    taken: float = process.run(rows, LENGTH, times=times)["seconds"]
    return times * len(rows) * LENGTH / taken


def native(way: Configuration) -> Configuration:
    """The configuration of the native engine that has these threads."""
    return next(c for c in configurations_of("tfexport") if c.name == f"native, {way.name}")


@click.command()
@click.option("--folder", type=Path, default=Path("build/bench"), show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Of every measurement.")
def main(folder: Path, rounds: int, seconds: float) -> None:
    """Measure what a busy neighbour costs the native engine."""
    click.echo(f"{machine()}\n\n| tokens a second | 1 thread | 2 threads | 1 next to a neighbour | "
               "2 next to a neighbour | ÷ 1 thread |\n|---|---|---|---|---|---|")  # fmt: skip
    for size in ("small", "base"):
        checkpoint = prepare(size, folder / size)
        for weights, system in OURS.items():
            bench = Bench(size, (folder / size).absolute(), checkpoint, weights, [system], 1, 1, 1)
            keys = [(system, native(way).name) for way in (ONE, TWO)]
            running = bench.open(keys)
            for batch in (1, 8, 32):
                rows = bench.rows(batch)
                alone: tuple[list[float], ...] = ([], [])
                beside: tuple[list[float], ...] = ([], [])
                for _ in range(rounds):
                    for key, found in zip(keys, alone, strict=True):
                        found.append(rate(running[key], rows, seconds))
                    with neighbour():
                        for key, found in zip(keys, beside, strict=True):
                            found.append(rate(running[key], rows, seconds))
                one, two, one_beside, two_beside = map(median, (*alone, *beside))
                click.echo(f"| {size}, {weights}, batch {batch} | {one:,.0f} | {two:,.0f} | "
                           f"{one_beside:,.0f} | {two_beside:,.0f} | "
                           f"{two_beside / one:.2f} |")  # fmt: skip
            for process in running.values():
                process.close()


if __name__ == "__main__":
    main()
