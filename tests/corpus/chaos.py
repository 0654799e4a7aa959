"""A corpus on a cluster of several nodes on this machine, while nodes, workers and drivers die.

``python -m tests.corpus.chaos BUNDLE TEXTS --rounds 10 --nodes 4`` draws what dies and when, runs
the command again where its driver died, and compares every row of the output with ``Translator``.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfexport.runtime import Translator

PATIENCE = 300.0  # seconds of a round


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    """A cluster of a head without CPUs, and of nodes with one each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    # A small store: several of them share this machine's memory.
    small = {"include_dashboard": False, "object_store_memory": 200 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=1, object_store_memory=small["object_store_memory"])
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def write_corpus(folder: Path, texts: Sequence[str], files: int, rows: int, seed: int) -> None:
    """Text, JSON lines and Parquet, by turns."""
    import pyarrow as pa
    from pyarrow import parquet

    draw = random.Random(seed)
    for number in range(files):
        drawn = [draw.choice(texts) for _ in range(rows)]
        path = folder / "deep" / f"{number:02d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 3 == 0:
            path.with_suffix(".txt").write_text("".join(f"{text}\n" for text in drawn))
        elif number % 3 == 1:
            lines = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(drawn)]
            path.with_suffix(".jsonl").write_text("".join(lines))
        else:
            table = pa.table({"id": range(rows), "text": drawn})
            parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=rows // 3)


def read_rows(path: Path) -> list[tuple[Any, str | None, str | None]]:
    """Id, source and translation of every row; of text the number of the line, and no source."""
    from pyarrow import parquet

    if path.suffix == ".txt":
        return [(i, None, line) for i, line in enumerate(path.read_text().splitlines())]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = parquet.read_table(path).to_pylist()
    assert all(row["error"] is None for row in rows)
    return [(row["id"], row["text"], row["translation"]) for row in rows]


def check(bundle: Path, given: Path, output: Path) -> int:
    """Every row once, in order, as ``Translator`` has it; how many rows there are."""
    sources = sorted(path for path in given.rglob("*") if path.is_file())
    # A worker of a driver that was killed may write a piece after all: it stands in no one's way.
    made = sorted(
        path for path in output.rglob("*")
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(output).parts)
    )  # fmt: skip
    assert [path.relative_to(given) for path in sources] == [
        path.relative_to(output) for path in made
    ]
    translator, count = Translator(bundle, threads=1), 0
    for source, path in zip(sources, made, strict=True):
        texts = _texts(source)
        rows = read_rows(path)
        assert [row[0] for row in rows] == list(range(len(texts))), path
        expected = [result.text for result in translator.translate(texts)]
        assert [row[2] for row in rows] == expected, path
        assert path.suffix == ".txt" or [row[1] for row in rows] == texts, path
        count += len(rows)
    return count


def _texts(path: Path) -> list[str]:
    from pyarrow import parquet

    if path.suffix == ".txt":
        return path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in path.read_text().splitlines()]
    found: list[str] = parquet.read_table(path)["text"].to_pylist()
    return found


def begin(bundle: Path, given: Path, output: Path, address: str) -> "subprocess.Popen[str]":
    """The command, as a user runs it."""
    command = [
        sys.executable, "-m", "tfexport", "corpus", str(bundle), str(given), str(output),
        "--address", address, "--batch-rows", "200", "--json",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def kill_worker(made: Any, draw: random.Random) -> str:
    """Kill one of the processes of this cluster that hold a translator."""
    session = Path(made.head_node.get_session_dir_path()).name
    found = subprocess.run(
        ["pgrep", "-f", "ray::MapWorker"], capture_output=True, text=True, check=False
    ).stdout.split()
    ours = [int(number) for number in found if session in _parent_command(number)]
    if not ours:
        return "no worker was there"
    try:
        os.kill(draw.choice(ours), signal.SIGKILL)
    except ProcessLookupError:
        return "the worker was gone"
    return "a worker was killed"


def _parent_command(number: str) -> str:
    try:
        parent = Path("/proc", number, "stat").read_text().rpartition(")")[2].split()[1]
        return Path("/proc", parent, "cmdline").read_text()
    except OSError:  # it has ended
        return ""


def kill_node(made: Any, draw: random.Random) -> str:
    """Take a node away without a word, and let another one come."""
    made.remove_node(draw.choice(list(made.worker_nodes)), allow_graceful=False)
    made.add_node(num_cpus=1, object_store_memory=200 << 20)
    return "a node was lost, and another came"


BLOWS = ("node", "worker", "driver")


def run_round(
    made: Any, bundle: Path, given: Path, output: Path, seed: int, blows: Sequence[str]
) -> list[str]:
    """Translate while things die, one after another as soon as there is something new to lose.

    Returns:
        What died.
    """
    draw, told, end = random.Random(seed), list[str](), time.monotonic() + PATIENCE
    driver, left, kept = begin(bundle, given, output, made.address), list(blows), 0
    try:
        while driver.poll() is None:
            assert time.monotonic() < end, f"not done after {PATIENCE:.0f} s; {told}"
            if left and _written(output) > kept + draw.randint(1, 6):
                told.append(_strike(left.pop(0), made, driver, draw))
                if driver.poll() is not None or told[-1] == KILLED:
                    driver.wait()
                    driver = begin(bundle, given, output, made.address)
                kept = _written(output)
            time.sleep(0.05)
        report, errors = driver.communicate()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
    assert driver.returncode == 0, f"status {driver.returncode}: {report}{errors}"
    assert json.loads(report)["complete"], report
    return told


KILLED = "the driver was killed"


def _strike(blow: str, made: Any, driver: "subprocess.Popen[str]", draw: random.Random) -> str:
    if blow == "node":
        return kill_node(made, draw)
    if blow == "worker":
        return kill_worker(made, draw)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    return KILLED


def _written(output: Path) -> int:
    """Pieces that there are; a finished file counts as many."""
    found = list(output.rglob(".*/*")), list(output.rglob(".*.done"))
    return len(found[0]) + 20 * len(found[1])


def main() -> None:
    """Run rounds, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--files", type=int, default=9)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blows", help="Of every round, in order; drawn by default.")
    asked = parser.parse_args()
    texts = asked.texts.read_text().splitlines()
    with cluster(asked.nodes) as made:
        for number in range(asked.seed, asked.seed + asked.rounds):
            with tempfile.TemporaryDirectory() as place:
                given, output = Path(place, "in"), Path(place, "out")
                write_corpus(given, texts, asked.files, asked.rows, number)
                begun = time.monotonic()
                draw = random.Random(number)
                drawn = [draw.choice(BLOWS) for _ in range(draw.randint(2, 4))]
                blows = asked.blows.split() if asked.blows else drawn
                told = run_round(made, asked.bundle, given, output, number, blows)
                seconds = time.monotonic() - begun
                rows = check(asked.bundle, given, output)
            print(
                f"round {number}: {rows:,} rows in {seconds:.0f} s; {'; '.join(told)}", flush=True
            )


if __name__ == "__main__":
    main()
