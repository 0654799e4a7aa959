"""What test_run.py lets a process without torch do: datasets on Ray. Prints JSON."""

import json
import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import ray.data

from tfexport.corpus import translate_dataset
from tfexport.corpus.shipping import ship
from tfexport.errors import BundleError, ConfigError


def main() -> None:
    """``python dataset_script.py BUNDLE ROWS.json``."""
    bundle, given = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    rows = ray.data.from_items(given, override_num_blocks=3)
    refused = []
    wrong: list[dict[str, Any]] = [
        {"beam_size": 0}, {"num_hypotheses": 2, "beam_size": 2}, {"workers": 0},
        {"workers": 2},
    ]  # fmt: skip
    for options in wrong:
        try:
            translate_dataset(rows, bundle, **options)
        except ConfigError as error:
            refused.append(str(error))
    made = translate_dataset(rows, bundle, batch_rows=7)
    sampled = translate_dataset(
        rows, bundle, "text", batch_rows=5, workers=1, sampling=True, temperature=2.0
    )
    other = translate_dataset(rows, bundle, batch_rows=64, sampling=True, temperature=2.0)
    # Workers that do not see the driver's disk: the bundle is gone before anything runs.
    shipped = ship(bundle, shared=False)
    shutil.move(bundle, bundle.with_name("moved"))
    results: dict[str, Any] = {
        "rows": made.take_all(),
        "sampled": [sampled.take_all(), other.take_all()],
        "refused": refused,
        "torch": "torch" in sys.modules,
    }
    # What arrives otherwise than it was sent is refused, and not kept for others.
    parts = {name: [ray.put(b"x")] if "weights" in name else found
             for name, found in shipped.parts.items()}  # fmt: skip
    damaged = replace(shipped, parts=parts, digest=shipped.digest)
    cache = shipped.folder()
    shutil.rmtree(cache)
    try:
        damaged.folder()
    except BundleError as error:
        results["damaged"] = str(error)
    results["left"] = [path.name for path in cache.parent.iterdir()]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
