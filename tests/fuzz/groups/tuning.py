"""Files of ``bench --tune``: damaged, foreign, nested."""

import json
import os
from pathlib import Path
from random import Random

from tests.fuzz.bundles import command, warm_up
from tests.fuzz.mutate import dumps, mutate_bytes, mutate_json
from tfexport.cli import tuning
from tfexport.runtime.parallel.cpu import ThreadLayout


def prepare(bundle: Path) -> None:
    """Import what the command imports."""
    warm_up(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Read a tuning file by every command that does."""
    path = scratch / "tuning.json"
    os.environ[tuning.VARIABLE] = str(path)
    tuning.write_layout(bundle, ThreadLayout(1, 1))
    tree = json.loads(path.read_text())
    kind = rng.randrange(10)
    if kind < 6:
        for _ in range(rng.choice([1, 1, 2])):
            if isinstance(tree, dict | list):
                tree = mutate_json(rng, tree)
        path.write_text(dumps(tree))
    elif kind < 8:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    elif kind == 8:
        path.write_text(
            rng.choice(["[", '{"a":', "[{}", "1", '"']) * rng.choice([1, 1000, 100_000])
        )
    else:
        path.unlink()
        path.mkdir()
    tuning.read_layout(bundle)
    if rng.random() < 0.5:
        command("inspect", bundle)
    else:
        (scratch / "in.txt").write_text("w5 w6\n")
        command("translate", bundle, scratch / "in.txt", "--max-length=2")
