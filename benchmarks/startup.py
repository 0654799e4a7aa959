"""From process start to the first translation: with torch and without; by part, and CTranslate2.

    python -m benchmarks.startup --runtime-python .venv-runtime/bin/python
    python -m benchmarks.startup --parts base --parts opus

Whole processes, run in turn so that a busy machine slows all alike; medians are what to quote.
``--parts`` tells where the time goes, of a model of this size from folders that
``benchmarks.compare`` has prepared: of a bundle with what an export (or ``tfexport optimize``)
writes next to it, of a copy without that, and of CTranslate2's model, each with two threads.
Digests, weights and tokenizers are parts of opening; digests are computed while weights are opened.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfexport.export import export
from tfexport.runtime.parallel.cpu import processor

REPOSITORY = Path(__file__).parents[1]
MODEL = REPOSITORY / "examples" / "de-en"
LINE = "Ich sollte Tom begleiten.\n"
EAGER = "import sys; from tfexport.cli.demo_command import print_eager; print_eager(*sys.argv[1:])"


def seconds(command: list[str], stdin: str = "") -> float:
    start = time.perf_counter()
    subprocess.run(command, input=stdin, text=True, check=True, capture_output=True)
    return time.perf_counter() - start


def machine() -> str:
    return (
        f"{os.cpu_count()} x {processor()}, {platform.system()}, Python {platform.python_version()}"
    )


COLUMNS = (
    "interpreter", "numpy", "imports", "digests", "weights", "tokenizers", "open",
    "first sentence", "to the first sentence",
)  # fmt: skip


def measure_parts(name: str, folder: Path, runs: int) -> dict[str, dict[str, float]]:
    """Medians of every part in seconds, by system."""
    from benchmarks.models import prepare
    from tfexport.bundle import note_file
    from tfexport.runtime.model.native_engine import pack_new

    prepare(name, folder)
    starts: dict[str, tuple[str, Path]] = {}
    for weights, bundle, peer in (
        ("float32", "a.bundle", "ctranslate2"),
        ("int8", "int8.bundle", "ctranslate2-int8"),
    ):
        copied = folder / "copied" / bundle
        if not copied.exists():
            shutil.copytree(folder / bundle, copied)
        pack_new(folder / bundle)  # as the export has done, with what was the engine then
        assert note_file(folder / bundle).exists()
        assert not note_file(copied).exists()
        starts[f"tfexport {weights}, as exported"] = ("tfexport", folder / bundle)
        starts[f"tfexport {weights}, copied"] = ("tfexport", copied)
        starts[f"CTranslate2 {weights}"] = ("ctranslate2", folder / peer)
    found: dict[str, list[dict[str, float]]] = {start: [] for start in starts}
    # As installed packages are: their modules are not compiled at every start.
    unset = "PYTHONDONTWRITEBYTECODE"
    compiled = {name: value for name, value in os.environ.items() if name != unset}
    for run in range(runs + 1):
        for start, (system, path) in starts.items():
            begun = time.time()
            command = [sys.executable, "-m", "benchmarks.first_sentence", system, str(path), "2"]
            output = subprocess.run(
                [*command, repr(begun)], check=True, capture_output=True, text=True,
                cwd=REPOSITORY, env=compiled,
            ).stdout  # fmt: skip
            if run:  # the first warms the disk cache
                found[start].append(json.loads(output))
    return {
        start: {part: statistics.median(run.get(part, 0.0) for run in measured) for part in COLUMNS}
        for start, measured in found.items()
    }


def parts_table(name: str, found: dict[str, dict[str, float]]) -> str:
    """Milliseconds as Markdown."""
    lines = [f"| {name}, ms | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [
        f"| {start} | " + " | ".join(f"{1000 * parts[part]:.0f}" for part in COLUMNS) + " |"
        for start, parts in found.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime-python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--parts", action="append", choices=["small", "base", "opus"])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "bench")
    args = parser.parse_args()
    if args.parts:
        print(machine())
        for name in args.parts:
            print(parts_table(name, measure_parts(name, args.folder / name, args.runs)), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "de-en.bundle"
        start = time.perf_counter()
        export(MODEL, bundle)
        exporting = time.perf_counter() - start
        commands = {
            "eager PyTorch": ([sys.executable, "-c", EAGER, str(MODEL), LINE.strip()], ""),
            "tfexport translate": (
                [args.runtime_python, "-m", "tfexport", "translate", str(bundle)],
                LINE,
            ),
            "Python alone": ([args.runtime_python, "-c", "pass"], ""),
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(args.runs + 1):
            for name, (command, stdin) in commands.items():
                duration = seconds(command, stdin)
                if run:  # the first warms the disk cache
                    found[name].append(duration)
    medians = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    if args.json:
        print(json.dumps({"machine": machine(), "export": exporting, "runs": found}, indent=2))
        return
    print(machine())
    print(f"export and comparison with eager PyTorch: {exporting:.1f} s")
    print(f"process start to first translation, {args.runs} runs: median (min to max)")
    for name, values in found.items():
        print(f"  {name:<20}{medians[name]:6.2f} s  ({min(values):.2f} to {max(values):.2f})")
    ratio = medians["eager PyTorch"] / medians["tfexport translate"]
    print(f"  tfexport starts {ratio:.1f} times as fast as eager PyTorch")


if __name__ == "__main__":
    main()
