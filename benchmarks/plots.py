"""A picture of what ``benchmarks.compare --json`` measured.

python -m benchmarks.plots FIGURES.json... -o IMAGE
"""

import json
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

# What is drawn, and the best of which systems stands for it.
BARS = {
    "tfexport int8": ["tfexport int8"],
    "CTranslate2 int8": ["CTranslate2 int8", "CTranslate2 int8 MKL"],
    "tfexport": ["tfexport"],
    "CTranslate2": ["CTranslate2", "CTranslate2 MKL"],
    "Transformers": ["Transformers"],
    "eager PyTorch, cached": ["eager, cached"],
    "eager PyTorch, as in tutorials": ["eager, uncached"],
}
COLOURS = ["#0b6e4f", "#d98e04", "#3fa37c", "#efbf5f", "#8c6bb1", "#9aa5b1", "#c9ced6"]


@click.command()
@click.argument("figures", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
@click.option("--threads", default=2, show_default=True)
def main(figures: tuple[Path, ...], output: Path, threads: int) -> None:
    """Draw tokens a second of every system, a panel for each size and batch."""
    results: list[dict[str, Any]] = []
    for path in figures:
        results += json.loads(path.read_text(encoding="utf-8"))["results"]
    results = [r for r in results if r["threads"] == threads and r["beam"] == 1]
    sizes = list(dict.fromkeys(result["size"] for result in results))
    batches = sorted({result["batch"] for result in results})
    grid, panels = plt.subplots(
        len(sizes), len(batches), figsize=(4 * len(batches), 2.4 * len(sizes)), squeeze=False
    )
    for result in results:
        panel = panels[sizes.index(result["size"])][batches.index(result["batch"])]
        _draw(panel, result)
    for row in panels:
        row[0].set_yticks(range(len(BARS)), list(BARS))
    grid.suptitle(f"tokens a second, greedy, {threads} threads (more is better)")
    grid.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    grid.savefig(output, dpi=110)


def _draw(panel: Any, result: dict[str, Any]) -> None:
    rates = []
    for systems in BARS.values():
        cells = [result["cells"][name] for name in systems if name in result["cells"]]
        rates.append(max((cell["tokens_per_second"] for cell in cells), default=0))
    panel.barh(range(len(rates)), rates, color=COLOURS)
    for place, rate in enumerate(rates):
        panel.text(rate, place, f" {rate:,.0f}" if rate else " –", va="center", fontsize=8)
    panel.invert_yaxis()
    panel.set_yticks([])
    panel.set_xlim(0, 1.25 * max(rates))
    panel.set_xticks([])
    panel.set_title(f"{result['size']}, batch {result['batch']}", fontsize=10)
    panel.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    main()
