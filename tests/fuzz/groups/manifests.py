"""Manifests with a right digest and wrong values."""

from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bundles import command, copy_bundle, rewrite, use, warm_up
from tests.fuzz.mutate import allowed, mutate_bytes, mutate_json
from tfexport.bundle import MANIFEST


def prepare(bundle: Path) -> None:
    """Load what every case needs, so that its time is its own."""
    warm_up(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Open a bundle, decode with it, inspect it."""
    folder = copy_bundle(rng, bundle, scratch)

    def change(values: dict[str, Any]) -> Any:
        changed: Any = values
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            if isinstance(changed, dict | list):
                changed = mutate_json(rng, changed)
        return changed

    if rng.random() < 0.9:
        rewrite(folder, change)
    else:
        path = folder / MANIFEST
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    with allowed():
        use(rng, folder)
    command("inspect", folder, *(["--json"] if rng.random() < 0.5 else []))
    if rng.random() < 0.2:
        (scratch / "in.txt").write_text("w5 w6\n")
        command("translate", folder, scratch / "in.txt", "--max-length=4")
