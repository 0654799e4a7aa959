"""Ways of batching with one HTTP layer, under a Poisson load: python -m benchmarks.serving.

Of every way the capacity is measured first, with as many requests at a time as fill its batches;
then all of them get loads that are shares of the capacity of CTranslate2's best configuration. A
server and the load run in separate processes, one server at a time, and the ways take turns.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.configurations import REPOSITORY
from benchmarks.ending import LONGEST, prepare_ending, sentences
from benchmarks.load import Load
from benchmarks.models import SIZES
from benchmarks.serving_system import Setup

PEERS = {
    "CTranslate2, 2 workers": Setup("CTranslate2"),
    "CTranslate2, 2 workers, batches of 16": Setup("CTranslate2", slots=32),
    "CTranslate2, 2 threads": Setup("CTranslate2", workers=1, threads=2, slots=32),
}
OURS = {
    "continuous": Setup("continuous"),
    "continuous, onnxruntime": Setup("continuous", engine="onnxruntime"),
    "static batches": Setup("static"),
    "one at a time": Setup("static", slots=2),
}
SHARES = (0.25, 0.5, 0.8, 1.0, 1.25, 1.5)


@contextmanager
def serving(bundle: Path, setup: Setup) -> Iterator[int]:
    """A server; its port."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(setup.threads)}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serving_system", str(bundle), json.dumps(asdict(setup))],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        cwd=REPOSITORY,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # an overloaded one has hours of work left
                process.kill()


def put_load(load: Load) -> dict[str, Any]:
    """Run a load; see ``benchmarks.load.run``."""
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(asdict(load))]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(found.stdout)
    return result


class Bench:
    """One model under all loads."""

    def __init__(self, name: str, folder: Path, seconds: float) -> None:
        self.name, self.folder, self.seconds = name, folder, seconds
        self.bundle = folder / f"{name}.bundle"
        self.path = f"/v2/models/{name}/infer"
        self.bodies = folder / "bodies.json"
        parameters = {"max_length": LONGEST, "return_scores": False}
        self.bodies.write_text(json.dumps([
            {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, len(row)],
                         "data": row}], "parameters": parameters}
            for row in sentences(300)
        ]))  # fmt: skip

    def load(self, setup: Setup, rate: float = 0.0, seed: int = 0) -> dict[str, Any]:
        """Start a server, warm it, and put a load on it."""
        with serving(self.bundle, setup) as port:
            warming = Load(port, self.path, str(self.bodies), seconds=2.0, connections=8)
            put_load(warming)
            found = put_load(replace(
                warming, seconds=self.seconds, rate=rate, connections=2 * setup.slots, seed=seed
            ))  # fmt: skip
        times = np.array(found["latencies"] or [np.nan])
        p50, p95, p99 = np.percentile(times, [50, 95, 99]) * 1000
        return {
            "rate": rate, "answered": len(times) / found["seconds"], "p50": p50, "p95": p95,
            "p99": p99, "statuses": found["statuses"],
        }  # fmt: skip

    def capacities(self, ways: dict[str, Setup], rounds: int) -> dict[str, float]:
        """Requests a second of every way, the best of some rounds that take turns."""
        found = dict.fromkeys(ways, 0.0)
        for turn in range(rounds):
            for name, setup in ways.items():
                found[name] = max(found[name], self.load(setup, seed=turn)["answered"])
                click.echo(f"{self.name}: {name}: {found[name]:.1f} a second", err=True)
        return found


def measure(
    name: str, folder: Path, seconds: float, rounds: int, shares: Sequence[float]
) -> dict[str, Any]:
    """Capacities of all ways, and what loads do to those that matter."""
    prepare_ending(name, SIZES[name], folder)
    bench = Bench(name, folder, seconds)
    capacities = bench.capacities({**OURS, **PEERS}, rounds)
    peer = max(PEERS, key=lambda way: capacities[way])
    loads: dict[str, list[dict[str, Any]]] = {}
    for share in shares:
        for way in ("continuous", "static batches", "one at a time", peer):
            found = bench.load({**OURS, **PEERS}[way], share * capacities[peer], seed=7)
            loads.setdefault(way, []).append({"share": share, **found})
            click.echo(f"{name}: {way} at {share:.0%}: p95 {found['p95']:.0f} ms", err=True)
    return {"capacities": capacities, "peer": peer, "loads": loads, "shares": list(shares)}


def table(name: str, found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    best = found["capacities"][found["peer"]]
    lines = [f"**{name}**", "", "| batching | requests a second | ÷ CTranslate2's best |",
             "|---|---|---|"]  # fmt: skip
    lines += [
        f"| {way} | {rate:.1f} | {rate / best:.2f} |" for way, rate in found["capacities"].items()
    ]
    lines += ["", "| load | " + " | ".join(found["loads"]) + " |", "|---|" + "---|" * 4]
    for place, share in enumerate(found["shares"]):
        cells = [
            f"{at['answered']:.0f}/s {at['p50']:.0f} / {at['p95']:.0f} / {at['p99']:.0f}"
            for at in (rows[place] for rows in found["loads"].values())
        ]
        lines.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "Milliseconds: median, 95th and 99th percentile.", ""])


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(["small", "base"]))
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/bench/serving"))
@click.option("--seconds", default=15.0, show_default=True, help="Of every load.")
@click.option("--rounds", default=2, show_default=True, help="Of measuring capacities.")
@click.option("--share", "shares", multiple=True, type=float, default=SHARES, show_default=True,
              help="Of CTranslate2's capacity, as loads.")  # fmt: skip
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(
    names: tuple[str, ...],
    folder: Path,
    seconds: float,
    rounds: int,
    shares: tuple[float, ...],
    output: Path | None,
) -> None:
    """Measure a server's ways of batching, and CTranslate2."""
    begun, results = time.time(), {}
    for name in names or ("small", "base"):
        results[name] = measure(name, (folder / name).absolute(), seconds, rounds, shares)
        click.echo(table(name, results[name]))
    if output is not None:
        output.write_text(json.dumps(results))
    click.echo(f"{time.time() - begun:.0f} seconds", err=True)


if __name__ == "__main__":
    main()
