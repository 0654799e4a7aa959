"""Ways of batching with one HTTP layer, under a Poisson load: python -m benchmarks.serving.

Of every way the capacity is measured first, with as many requests at a time as fill its batches;
then some of them get loads that are shares of the capacity of CTranslate2's best configuration.
Each server and the load run in processes of their own. All servers are open at the same time and
take turns in short rounds, since the speed of a machine changes by the minute; one works at a time.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import urlopen

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
LOADED = ("continuous", "static batches", "one at a time")
PAUSE = 0.3  # seconds, in which the threads of the server before stop spinning
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


def processor_seconds(port: int) -> float:
    """Processor time of a server so far, as its metrics have it."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return float(re.findall(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)[0])


def put_load(load: Load) -> dict[str, Any]:
    """Run a load; see ``benchmarks.load.run``."""
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(asdict(load))]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(found.stdout)
    return result


class Bench:
    """Open servers of one model, which take turns."""

    def __init__(self, name: str, folder: Path, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self.bundle = folder / f"{name}.bundle"
        self.path = f"/v2/models/{name}/infer"
        self.bodies = folder / "bodies.json"
        parameters = {"max_length": LONGEST, "return_scores": False}
        self.bodies.write_text(json.dumps([
            {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, len(row)],
                         "data": row}], "parameters": parameters}
            for row in sentences(300)
        ]))  # fmt: skip

    @contextmanager
    def open(self, ways: dict[str, Setup]) -> Iterator[dict[str, int]]:
        """Start and warm a server of each way; their ports."""
        with ExitStack() as servers:
            ports = {
                way: servers.enter_context(serving(self.bundle, setup))
                for way, setup in ways.items()
            }
            for port in ports.values():
                put_load(Load(port, self.path, str(self.bodies), seconds=2.0, connections=8))
            yield ports

    def load(self, port: int, setup: Setup, rate: float = 0.0, seed: int = 0) -> dict[str, Any]:
        """Put a load on a server.

        Returns:
            Requests a second, the server's processor time for each in ms, and latencies in ms.
        """
        time.sleep(PAUSE)
        before = processor_seconds(port)
        found = put_load(Load(
            port, self.path, str(self.bodies), self.seconds, rate, 2 * setup.slots, seed
        ))  # fmt: skip
        spent = processor_seconds(port) - before
        times = np.array(found["latencies"] or [np.nan])
        p50, p95, p99 = np.percentile(times, [50, 95, 99]) * 1000
        return {
            "rate": rate, "answered": len(times) / found["seconds"], "p50": p50, "p95": p95,
            "p99": p99, "processor": 1000 * spent / len(times), "statuses": found["statuses"],
        }  # fmt: skip

    def capacities(
        self, ways: dict[str, Setup], ports: dict[str, int], rounds: int
    ) -> dict[str, list[dict[str, Any]]]:
        """What every way answers in each round, with as many requests as fill its batches."""
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for turn in range(rounds):
            for way, setup in ways.items():
                found[way].append(self.load(ports[way], setup, seed=turn))
            rates = ", ".join(f"{way} {rows[-1]['answered']:.0f}" for way, rows in found.items())
            click.echo(f"{self.name}, round {turn + 1}: {rates} a second", err=True)
        return found


def measure(
    bench: Bench, ways: dict[str, Setup], rounds: int, shares: Sequence[float]
) -> dict[str, Any]:
    """Capacities of all ways, and what loads do to those that matter."""
    with bench.open(ways) as ports:
        capacities = bench.capacities(ways, ports, rounds)
        best = {way: max(row["answered"] for row in rows) for way, rows in capacities.items()}
        peer = max(PEERS.keys() & ways, key=lambda way: best[way])
        loads: dict[str, list[dict[str, Any]]] = {}
        for share in shares:
            for way in [*(way for way in LOADED if way in ways), peer]:
                found = bench.load(ports[way], ways[way], share * best[peer], seed=7)
                loads.setdefault(way, []).append({"share": share, **found})
                text = f"{bench.name}: {way} at {share:.0%}: p95 {found['p95']:.0f} ms"
                click.echo(text, err=True)
    return {"capacities": capacities, "peer": peer, "loads": loads, "shares": list(shares)}


def table(name: str, found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rates = {
        way: np.array([row["answered"] for row in rows])
        for way, rows in found["capacities"].items()
    }
    peer = rates[found["peer"]]
    lines = [
        f"**{name}**", "",
        "| | requests a second | ms of processor time | best ÷ CTranslate2's | median ÷ "
        "CTranslate2's | median of the pairs |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for way, rate in rates.items():
        times = [row["processor"] for row in found["capacities"][way]]
        ratios = (
            rate.max() / peer.max(),
            np.median(rate) / np.median(peer),
            np.median(rate / peer),
        )
        lines.append(
            f"| {way} | {' '.join(f'{one:.0f}' for one in rate)} | {np.median(times):.2f} | "
            + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"
        )  # fmt: skip
    if found["loads"]:
        lines += ["", "| load | " + " | ".join(found["loads"]) + " |"]
        lines.append("|---|" + "---|" * len(found["loads"]))
    for place, share in enumerate(found["shares"]):
        cells = [
            f"{at['answered']:.0f}/s {at['p50']:.0f} / {at['p95']:.0f} / {at['p99']:.0f}"
            for at in (rows[place] for rows in found["loads"].values())
        ]
        lines.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
    explained = "Of each round; loads with the median, 95th and 99th percentile in ms."
    return "\n".join([*lines, "", explained, ""])


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(["small", "base"]))
@click.option("--way", "chosen", multiple=True, type=click.Choice([*OURS, *PEERS]),
              help="Default: all. One of them has to be CTranslate2's.")  # fmt: skip
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/bench/serving"))
@click.option("--seconds", default=5.0, show_default=True, help="Of every load.")
@click.option("--rounds", default=5, show_default=True, help="Of measuring capacities.")
@click.option("--share", "shares", multiple=True, type=float, default=SHARES, show_default=True,
              help="Of CTranslate2's capacity, as loads.")  # fmt: skip
@click.option("--no-loads", is_flag=True, help="Measure capacities only.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(
    names: tuple[str, ...],
    chosen: tuple[str, ...],
    folder: Path,
    seconds: float,
    rounds: int,
    shares: tuple[float, ...],
    no_loads: bool,
    output: Path | None,
) -> None:
    """Measure a server's ways of batching, and CTranslate2."""
    begun, results = time.time(), {}
    ways = {way: setup for way, setup in {**OURS, **PEERS}.items() if not chosen or way in chosen}
    if not PEERS.keys() & ways:
        raise click.UsageError(f"one --way has to be of: {', '.join(PEERS)}")
    for name in names or ("small", "base"):
        place = (folder / name).absolute()
        prepare_ending(name, SIZES[name], place)
        bench = Bench(name, place, seconds)
        results[name] = measure(bench, ways, rounds, () if no_loads else shares)
        click.echo(table(name, results[name]))
    if output is not None:
        output.write_text(json.dumps(results))
    click.echo(f"{time.time() - begun:.0f} seconds", err=True)


if __name__ == "__main__":
    main()
