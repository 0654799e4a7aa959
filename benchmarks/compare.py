"""Every system on equal weights, each in its best configuration: python -m benchmarks.compare.

Every configuration of every system runs in its own process. First those of one system run against
one another; the fastest of each system, and the runner-up if it is near, then run against all other
systems'. Runs are interleaved, so that a slow minute of the machine slows all of them; medians of
these last runs count. Tokens are compared with eager PyTorch's.
"""

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.choice import BRIEF, LEAST_BRIEF, ROUNDS, best, finalists, may_win, runs_for
from benchmarks.configurations import (
    BEAM_SYSTEMS,
    DEFAULT,
    INSTRUCTION_SETS,
    OURS,
    QUICK,
    Configuration,
    configurations_of,
    ranks_by_integers,
    weights_of,
)
from benchmarks.models import OPUS, SIZES, prepare
from benchmarks.process import Process
from benchmarks.roofline import Machine, Peaks, Work, work_of
from benchmarks.startup import machine
from benchmarks.systems import SYSTEMS
from benchmarks.tables import report
from benchmarks.versions import versions

LENGTH = 30  # new tokens
SOURCE = 20  # source tokens
GREEDY_BATCHES, BEAM_BATCHES = (1, 8, 32), (8,)
# The beams that folders of OPUS-MT ask for, measured more closely than other models' beams.
OPUS_BEAMS, OPUS_BATCHES = (4, 6), (1, 8, 16, 32)


# How those that screen the vocabulary choose their tokens; see roofline.work_of.
GREEDY = {"tfexport": "preselected", "tfexport, scores": "scored", "generate.onnx": "scored"}
Rows = list[list[int]]
Key = tuple[str, str]  # a system and the name of a configuration


@dataclass
class Bench:
    """One model, decoded by all systems whose weights are of one kind.

    Attributes:
        size: its name in benchmarks.models.SIZES.
        folder: where its files are.
        checkpoint: its weights.
        weights: "float32" or "int8".
        systems: their names.
        beam: hypotheses of each row.
        rounds: runs of every configuration, to choose by; brief ones have more.
        runs: runs of those chosen, unless they are slow or brief.
        isa: the instruction set beyond which no system goes, or None.
        only: configurations to choose among; of a system that has none of them, all.
        expected: the tokens that float32 gives, by batch, beam and size; filled by the first bench.
    """

    size: str
    folder: Path
    checkpoint: Path
    weights: str
    systems: list[str]
    beam: int
    rounds: int
    runs: int
    isa: str | None = None
    only: tuple[str, ...] = ()
    expected: dict[tuple[str, int, int], Rows] = field(default_factory=dict)

    def rows(self, batch: int) -> Rows:
        """Random source tokens, the same in every system and run."""
        draw = random.Random(batch)
        vocabulary = SIZES[self.size].vocab_size
        return [[draw.randrange(4, vocabulary) for _ in range(SOURCE)] for _ in range(batch)]

    def configurations(self, system: str) -> list[Configuration]:
        """Those that a system is chosen from."""
        every = configurations_of(system, self.isa)
        return [each for each in every if each.name in self.only] or every

    def configuration(self, system: str, name: str) -> Configuration:
        """One of a system's, by its name."""
        return next(c for c in configurations_of(system, self.isa) if c.name == name)

    def open(self, wanted: Iterable[Key]) -> dict[Key, Process]:
        """Start processes, two at a time; without those that do not run here."""
        running: dict[Key, Process] = {}
        loading: list[Key] = []
        for key in wanted:
            try:
                running[key] = Process(key[0], self.configuration(*key), self.folder,
                                       self.checkpoint, self.beam,
                                       self.folder / "systems.log")  # fmt: skip
            except RuntimeError as error:
                print(f"  {key[0]} does not run here: {error}", file=sys.stderr)
                continue
            loading.append(key)
            if len(loading) > 1:
                self._wait(running, loading.pop(0))
        for key in loading:
            self._wait(running, key)
        return running

    def _wait(self, running: dict[Key, Process], key: Key) -> None:
        try:
            running[key].wait()
        except RuntimeError:
            self._drop(running, key)

    def run(self, running: dict[Key, Process], key: Key, batch: int) -> dict[str, Any] | None:
        """Decode once; None if the system ended, which is then left out."""
        try:
            return running[key].run(self.rows(batch), LENGTH)
        except (RuntimeError, BrokenPipeError):
            self._drop(running, key)
            return None

    def _drop(self, running: dict[Key, Process], key: Key) -> None:
        running.pop(key).close()
        log = self.folder / "systems.log"
        print(f"  {key[0]} ({key[1]}) does not run here; see {log}", file=sys.stderr)

    def choose(self, system: str, batches: tuple[int, ...]) -> dict[int, dict[str, float]]:
        """The least seconds of each configuration of a system, by batch."""
        found: dict[int, dict[str, float]] = {}
        running = self.open((system, c.name) for c in self.configurations(system))
        for batch in batches:
            times: dict[str, list[float]] = {key[1]: [] for key in _able(running, batch)}
            for turn in range(max(self.rounds, ROUNDS)):
                fastest = min((min(s) for s in times.values() if s), default=0.0)
                for key in _able(running, batch):
                    seconds = times[key[1]]
                    if turn >= self.rounds and min(seconds, default=0.0) > BRIEF:
                        continue
                    if turn == 0 or may_win(seconds, fastest):
                        answer = self.run(running, key, batch)
                        if answer is not None:
                            seconds.append(answer["seconds"])
            found[batch] = {name: min(seconds) for name, seconds in times.items() if seconds}
        for process in running.values():
            process.close()
        return found

    def measure(self, batches: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """A cell for each batch: the figures of all configurations, and which was best."""
        chosen = {system: self.choose(system, batches) for system in self.systems}
        wanted: dict[int, list[Key]] = {
            batch: [
                (system, name)
                for system in self.systems
                if chosen[system][batch]
                for name in finalists(chosen[system][batch])
            ]
            for batch in batches
        }
        _forget(self.folder)
        running = self.open(dict.fromkeys(key for batch in batches for key in wanted[batch]))
        for batch in batches:
            answers: dict[Key, list[dict[str, Any]]] = {}
            for key in wanted[batch]:
                if key in running and self.run(running, key, batch) is not None:  # warm up
                    answers[key] = []
            # New for each cell, and sampled between its runs: the machine changes by the minute.
            peaks = {cores: Peaks(cores) for cores in (1, 2)}
            times = {
                (system, name): runs_for(chosen[system][batch][name], self.runs)
                for system, name in answers
            }
            sets = {self.work(*key, batch).working_set for key in answers}
            for turn in range(max(self.runs, LEAST_BRIEF)):
                if not any(turn < times[key] for key in answers):
                    break
                for peak in peaks.values():
                    peak.sample(sets)
                for key, found in answers.items():
                    if key in running and turn < times[key]:
                        answer = self.run(running, key, batch)
                        if answer is not None:
                            found.append(answer)
            for peak in peaks.values():
                peak.sample(sets)
            yield self.cell(batch, chosen, answers, peaks)
        for process in running.values():
            process.close()

    def work(self, system: str, name: str, batch: int) -> Work:
        """The least that a system has to do in one of its configurations."""
        kind = self.weights
        if self.beam == 1:
            kind = GREEDY.get(system, kind)
        elif kind == "float32" and ranks_by_integers(self.configuration(system, name)):
            kind = "ranked"
        return work_of(SIZES[self.size], batch, SOURCE, LENGTH, kind, self.beam)

    def cell(
        self, batch: int, chosen: dict[str, dict[int, dict[str, float]]],
        answers: dict[Key, list[dict[str, Any]]], peaks: dict[int, Peaks],
    ) -> dict[str, Any]:  # fmt: skip
        """The measurements of one batch, in the form that is written as JSON."""
        reference = (self.size, batch, self.beam)
        for system in ("eager, cached", "Transformers", OURS["float32"]):
            for (name, _), found in answers.items():
                if found and name == system:
                    self.expected.setdefault(reference, found[0]["tokens"])
        systems: dict[str, dict[str, Any]] = {}
        for system, seconds in chosen.items():
            configurations: dict[str, dict[str, Any]] = {
                configuration.name: {
                    "cores": configuration.cores,
                    "least_when_choosing": seconds[batch][configuration.name],
                }
                for configuration in configurations_of(system, self.isa)
                if configuration.name in seconds[batch]
            }
            for name, figures in configurations.items():
                if found := answers.get((system, name), []):
                    work = self.work(system, name, batch)
                    peak = peaks[figures["cores"]].machine(work.working_set)
                    figures |= self.figures(work, batch, found, peak)
            if any("seconds" in figures for figures in configurations.values()):
                systems[system] = {"best": best(configurations), "configurations": configurations}
        return {"size": self.size, "batch": batch, "beam": self.beam, "weights": self.weights,
                "systems": systems}  # fmt: skip

    def figures(
        self, work: Work, batch: int, answers: list[dict[str, Any]], peak: Machine
    ) -> dict[str, Any]:
        """Figures of one configuration, from its runs."""
        tokens = answers[0]["tokens"]
        expected = self.expected.get((self.size, batch, self.beam))
        pairs = [
            one == two
            for row, other in zip(expected or [], tokens, strict=expected is not None)
            for one, two in zip(row, other, strict=False)
        ]
        runs = [answer["seconds"] for answer in answers]
        seconds, least = median(runs), min(runs)
        return {
            "seconds": seconds,
            "runs": runs,
            "tokens_per_second": batch * LENGTH / seconds,
            "peak_mb": max(answer["peak_kb"] for answer in answers) / 1024,
            "length": sum(map(len, tokens)) / len(tokens),
            "agreement": sum(pairs) / len(pairs) if pairs else None,
            "machine": asdict(peak),
            # The fastest run and the best sample: what the machine gives undisturbed.
            "of_bandwidth": work.bytes / least / peak.bandwidth,
            "of_matrix_peak": work.seconds_of_products(peak) / least,
            "of_bound": work.seconds(peak) / least,
        }


def searches_of(
    size: str, beams: tuple[int, ...], batches: tuple[int, ...]
) -> list[tuple[int, tuple[int, ...]]]:
    """Beam sizes and batches of a model, as they were asked for or as the tables have them."""
    usual = {1: GREEDY_BATCHES, 4: BEAM_BATCHES}
    if size == OPUS:
        usual = {**dict.fromkeys(OPUS_BEAMS, OPUS_BATCHES), 1: GREEDY_BATCHES}
    return [
        (beam, tuple(sorted(set(batches))) or usual.get(beam, BEAM_BATCHES))
        for beam in beams or usual
    ]


def _able(running: dict[Key, Process], batch: int) -> list[Key]:
    """Those whose workers each get rows."""
    return [key for key, process in running.items() if process.configuration.workers <= batch]


def _forget(folder: Path) -> None:
    """Let the system read files anew, as in a fresh container.

    What was just written lies in memory in large pieces, all of which counts as resident in a
    process that maps the file and reads a few pages. Linux only.
    """
    for file in folder.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _quick(context: click.Context, _: click.Parameter, quick: bool) -> None:
    if quick:
        context.default_map = {"systems": QUICK, "runs": 5}


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice([*SIZES]), default=[*SIZES])
@click.option("--batch", "batches", multiple=True, type=int,
              help="Rows; by default those of the tables.")  # fmt: skip
@click.option("--system", "systems", multiple=True, type=click.Choice([*SYSTEMS]), default=DEFAULT)
@click.option("--beam", "beams", multiple=True, type=int,
              help="Beam sizes, 1 for greedy search; by default those of the tables.")  # fmt: skip
@click.option("--runs", type=int, default=7, show_default=True)
@click.option("--isa", type=click.Choice([*INSTRUCTION_SETS]),
              help="Limit systems to it, and leave out what runs onnxruntime.")  # fmt: skip
@click.option("--configuration", "only", multiple=True,
              help="Choose among these; of a system that has none of them, among all.")  # fmt: skip
@click.option("--quick", is_flag=True, is_eager=True, expose_value=False, callback=_quick,
              help="Only CTranslate2, in fewer runs.")  # fmt: skip
@click.option("--folder", type=Path, default=Path("build/bench"), help="Where models are written.")
@click.option("--json", "output", type=Path, default=Path("build/bench/compare.json"),
              show_default=True, help="Where the figures are written.")  # fmt: skip
def main(  # noqa: PLR0913 - one keyword for each option of the command
    sizes: tuple[str, ...], batches: tuple[int, ...], systems: tuple[str, ...],
    beams: tuple[int, ...], runs: int, isa: str | None,
    only: tuple[str, ...], folder: Path, output: Path,
) -> None:  # fmt: skip
    """Measure every configuration of every system on random models of equal weights."""
    figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "source": SOURCE,
                               "length": LENGTH, "results": []}  # fmt: skip
    expected: dict[tuple[str, int, int], Rows] = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    print(machine())
    for size in sizes:
        checkpoint = prepare(size, folder / size)
        for width, rows in searches_of(size, beams, batches):
            for weights in OURS:
                names = [
                    name
                    for name in systems
                    if weights_of(name) == weights
                    and configurations_of(name, isa)
                    and (width == 1 or name in BEAM_SYSTEMS)
                ]
                bench = Bench(size, (folder / size).absolute(), checkpoint, weights, names, width,
                              max(1, min(3, runs // 2)), runs, isa, only, expected)  # fmt: skip
                for cell in bench.measure(rows) if names else ():
                    figures["results"].append(cell)
                    print(report(cell), flush=True)
                    output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
