"""Every system on equal weights, in one run: python -m benchmarks.compare [--help].

Each system runs in its own process; runs are interleaved, so that a slow minute of the machine
slows all of them; the median of the runs counts. Tokens are compared with eager PyTorch's.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.models import OPTIMUM_PYTHON, SIZES, prepare
from benchmarks.roofline import measure_machine, work_of
from benchmarks.startup import machine
from benchmarks.systems import SYSTEMS

OURS = "tfexport"
LENGTH = 30  # new tokens
SOURCE = 20  # source tokens
# How those that screen the vocabulary choose their tokens; see roofline.work_of.
GREEDY = {OURS: "screened", f"{OURS}, scores": "scored", "generate.onnx": "scored"}
BEAM_SYSTEMS = ("tfexport", "tfexport int8", "CTranslate2", "CTranslate2 MKL", "CTranslate2 int8",
                "Transformers", "Optimum-ONNX")  # fmt: skip


class Process:
    """A system that is running."""

    def __init__(self, name: str, folder: Path, checkpoint: Path, threads: int, beam: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if name.endswith("MKL"):
            environment["CT2_USE_MKL"] = "1"
        python = str(OPTIMUM_PYTHON) if name == "Optimum-ONNX" else sys.executable
        if not Path(python).exists():
            raise RuntimeError(f"{python} is not there")
        command = [python, "-m", "benchmarks.systems", name, str(folder), str(checkpoint),
                   str(threads), str(beam)]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment,
        )  # fmt: skip
        self.loaded = self._read()["loaded"]

    def run(self, rows: list[list[int]], limit: int) -> dict[str, Any]:
        """Decode once; seconds, tokens and peak memory so far."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"rows": rows, "limit": limit}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the system ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    names: list[str], folder: Path, checkpoint: Path, vocab: int, batch: int, threads: int,
    beam: int, runs: int,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """One cell: seconds, peak memory and agreement of every system that runs."""
    draw = random.Random(batch)
    rows = [[draw.randrange(4, vocab) for _ in range(SOURCE)] for _ in range(batch)]
    _forget(folder)
    running: dict[str, Process] = {}
    for name in names:
        try:
            running[name] = Process(name, folder, checkpoint, threads, beam)
            running[name].run(rows, LENGTH)  # warm up
        except RuntimeError:
            running.pop(name, None)
            print(f"  {name}: does not run here", file=sys.stderr)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for _ in range(runs):
        for name, process in running.items():
            found[name].append(process.run(rows, LENGTH))
    for process in running.values():
        process.close()
    reference = found.get("eager, cached") or found[OURS]
    expected = reference[0]["tokens"]
    cells: dict[str, dict[str, Any]] = {}
    for name, answers in found.items():
        tokens = answers[0]["tokens"]
        pairs = [
            one == two
            for row, other in zip(expected, tokens, strict=True)
            for one, two in zip(row, other, strict=False)
        ]
        cells[name] = {
            "seconds": median(answer["seconds"] for answer in answers),
            "peak_mb": answers[-1]["peak_kb"] / 1024,
            "agreement": sum(pairs) / max(1, len(pairs)),
            "length": sum(map(len, tokens)) / len(tokens),
        }
    return cells


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


def _line(name: str, cell: dict[str, Any], cells: dict[str, dict[str, Any]]) -> str:
    """One system, compared with tfexport on weights of the same kind."""
    ours = cells.get(f"{OURS} int8" if "int8" in name else OURS)
    ratio = f"{cell['seconds'] / ours['seconds']:5.2f}" if ours else "    –"
    return (
        f"  {name:<22}{cell['tokens_per_second']:9.0f} tokens/s  tfexport is {ratio} x"
        f"  same tokens {cell['agreement']:6.1%}  peak {cell['peak_mb']:6.0f} MB"
        f"  of memory {cell['of_bandwidth']:4.0%}  of matrix units {cell['of_matrix_peak']:4.0%}"
    )


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice([*SIZES]), default=[*SIZES])
@click.option("--batch", "batches", multiple=True, type=int, default=[1, 8, 32])
@click.option("--threads", "threads", multiple=True, type=int, default=[1, 2])
@click.option(
    "--system", "systems", multiple=True, type=click.Choice([*SYSTEMS]), default=[*SYSTEMS]
)
@click.option("--beam", type=int, default=1, help="Beam size; only systems with beams then run.")
@click.option("--runs", type=int, default=7)
@click.option("--folder", type=Path, default=Path("build/bench"), help="Where models are written.")
@click.option("--json", "output", type=Path, help="Also write the figures there.")
def main(
    sizes: tuple[str, ...], batches: tuple[int, ...], threads: tuple[int, ...],
    systems: tuple[str, ...], beam: int, runs: int, folder: Path, output: Path | None,
) -> None:  # fmt: skip
    """Measure every system on random models of equal weights."""
    names = [name for name in systems if beam == 1 or name in BEAM_SYSTEMS]
    results = []
    print(machine())
    for size in sizes:
        checkpoint = prepare(size, folder / size)
        for count in threads:
            for batch in batches:
                # Each time: what the machine can do changes with what others do on it.
                peak = measure_machine(count)
                cells = measure(names, folder / size, checkpoint, SIZES[size].vocab_size, batch,
                                count, beam, runs)  # fmt: skip
                results.append({"size": size, "threads": count, "batch": batch, "beam": beam,
                                "runs": runs, "machine": asdict(peak), "cells": cells})  # fmt: skip
                print(f"{size}, batch {batch}, {count} threads, beam {beam}, {LENGTH} tokens; "
                      f"the machine: {peak}")  # fmt: skip
                for name, cell in cells.items():
                    weights = "int8" if "int8" in name else "float32"
                    if beam == 1:
                        weights = GREEDY.get(name, weights)
                    work = work_of(SIZES[size], batch, SOURCE, LENGTH, weights, beam)
                    seconds = cell["seconds"]
                    cell["tokens_per_second"] = batch * LENGTH / seconds
                    cell["of_bandwidth"] = work.bytes / seconds / peak.bandwidth
                    cell["of_matrix_peak"] = work.seconds_of_products(peak) / seconds
                    print(_line(name, cell, cells), flush=True)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n",
                          encoding="utf-8")  # fmt: skip


if __name__ == "__main__":
    main()
