"""From process start to the first translation, with torch and without, and what each installs.

    python -m benchmarks.startup --runtime-python .venv-runtime/bin/python

Whole processes, run in turn so that a busy machine slows both alike; medians are what to quote.
"""

import argparse
import json
import os
import platform
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime-python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
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
