"""Real sentences, which end at different lengths: python -m benchmarks.sentences.

A small model that every system expresses is trained for a minute on the demo's test set. Then the
set is decoded as a file, with the best split of cores and size of batches; sentence by sentence,
as they would be asked for; and a process is timed from its start to its first sentence.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.choice import finalists
from benchmarks.configurations import CTRANSLATE2, OURS, Configuration, configurations_of
from benchmarks.process import Process
from benchmarks.startup import machine
from benchmarks.systems import BATCH
from benchmarks.training import pairs, prepare_trained

SIZES_OF_BATCHES = (32, 128)  # rows
LIMIT = 60  # tokens of a sentence
ALONE = 200  # sentences that are decoded one at a time
STARTS = 5
Row = list[int]
Rows = list[Row]


class Bench:
    """One system in all its configurations."""

    def __init__(self, system: str, folder: Path, checkpoint: Path) -> None:
        self.system, self.folder, self.checkpoint = system, folder, checkpoint

    def open(self, way: Configuration) -> Process:
        """A process of this system, loading."""
        log = self.folder / "systems.log"
        return Process(self.system, way, self.folder, self.checkpoint, 1, log)

    def choose(self, job: "Job") -> list[Configuration]:
        """The fastest way by the best of two runs, and the next one if it is near."""
        seconds: dict[str, float] = {}
        ways = job.ways(self.system)
        for way in ways:
            process = self.open(way)
            try:
                seconds[way.name] = min(job.run(process)["seconds"] for _ in range(2))
            except RuntimeError:
                continue  # a back end that this machine has not
            finally:
                process.close()
        return [way for way in ways if way.name in finalists(seconds)]

    def start(self, way: Configuration, row: list[int]) -> float:
        """Seconds from a process' start to its first sentence."""
        begun = time.perf_counter()
        process = self.open(way)
        process.run([row], LIMIT)
        seconds = time.perf_counter() - begun
        process.close()
        return seconds


@dataclass(frozen=True)
class Job:
    """Rows, all together or each by itself."""

    rows: Rows
    alone: bool

    def run(self, process: Process) -> dict[str, Any]:
        """Decode once."""
        return process.run(self.rows, LIMIT, self.alone)

    def ways(self, system: str) -> list[Configuration]:
        """Every split of the cores with each size of batches; of a row, with nothing to share."""
        ways = configurations_of(system)
        if self.alone:
            return [way for way in ways if way.workers == 1]
        return [
            replace(way, name=f"{way.name}, {size} rows", options={**way.options, BATCH: str(size)})
            for way in ways
            for size in SIZES_OF_BATCHES
        ]


def compare(benches: list[Bench], job: Job, runs: int) -> dict[str, dict[str, Any]]:
    """Figures of each system in its fastest way; runs of all take turns."""
    opened = [
        (bench.system, way, bench.open(way)) for bench in benches for way in bench.choose(job)
    ]
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _ in range(runs):
        for system, way, process in opened:
            answers.setdefault(system, {}).setdefault(way.name, []).append(job.run(process))
    for _, _, process in opened:
        process.close()
    found = {}
    for system, by_way in answers.items():
        seconds = {name: median(one["seconds"] for one in made) for name, made in by_way.items()}
        best = min(seconds, key=seconds.__getitem__)
        found[system] = {
            "way": best,
            "sentences_per_second": len(job.rows) / seconds[best],
            "peak_mb": max(one["peak_kb"] for one in by_way[best]) / 1024,
            "tokens": by_way[best][0]["tokens"],
        }
    return found


def line(name: str, found: dict[str, dict[str, Any]]) -> str:
    """A line of a table in Markdown: tfexport, its peer, the ratio, and equal sentences."""
    ours, theirs = found.values()
    ratio = ours["sentences_per_second"] / theirs["sentences_per_second"]
    cells = [
        f"{one['sentences_per_second']:,.0f} ({one['way']}; {one['peak_mb']:.0f} MB)"
        for one in (ours, theirs)
    ]
    equal = [one == two for one, two in zip(ours["tokens"], theirs["tokens"], strict=True)]
    return f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} | {sum(equal) / len(equal):.1%} |"


def start_line(name: str, benches: list[Bench], found: dict[str, dict[str, Any]], row: Row) -> str:
    """The same of starting, in the way that is fastest with rows alone."""
    seconds = []
    for bench in benches:
        best = found[bench.system]["way"]
        way = next(way for way in configurations_of(bench.system) if way.name == best)
        seconds.append(median(bench.start(way, row) for _ in range(STARTS)))
    ours, theirs = seconds
    return f"| {name} | {ours:.2f} s | {theirs:.2f} s | {theirs / ours:.2f} | |"


@click.command()
@click.option("--training", default=60.0, show_default=True, help="Seconds of training the model.")
@click.option("--runs", default=5, show_default=True)
@click.option("--folder", type=Path, default=Path("build/bench/sentences"), show_default=True)
@click.option("--json", "output", type=Path, help="Where the figures are written.")
def main(training: float, runs: int, folder: Path, output: Path | None) -> None:
    """Compare with CTranslate2 on sentences of a model that was trained on them."""
    checkpoint = prepare_trained(folder, training)
    data = pairs()
    mean = np.mean([len(target) for _, target in data])
    click.echo(f"{machine()}; {len(data)} sentences, {mean:.1f} tokens on the mean\n")
    click.echo("| sentences a second | tfexport | CTranslate2 | ÷ | equal |\n|---|---|---|---|---|")
    rows = [source for source, _ in data]
    figures: dict[str, Any] = {}
    for weights in OURS:
        benches = [
            Bench(system, folder.absolute(), checkpoint.absolute())
            for system in (OURS[weights], CTRANSLATE2[weights])
        ]
        jobs = {"the set": Job(rows, alone=False), "one by one": Job(rows[:ALONE], alone=True)}
        for name, job in jobs.items():
            found = compare(benches, job, runs)
            figures[f"{weights}, {name}"] = found
            click.echo(line(f"{weights}, {name}", found))
        click.echo(start_line(f"{weights}, start to first sentence", benches, found, rows[0]))
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
