"""A picture of what ``benchmarks.compare --json`` measured.

python -m benchmarks.plots FIGURES.json -o IMAGE
"""

import json
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

# Systems that are drawn, with their titles and colours.
BARS = {
    "tfexport int8": ("tfexport int8", "#0b6e4f"),
    "CTranslate2 int8": ("CTranslate2 int8", "#d98e04"),
    "tfexport": ("tfexport", "#3fa37c"),
    "CTranslate2": ("CTranslate2", "#efbf5f"),
    "Transformers": ("Transformers", "#8c6bb1"),
    "Optimum-ONNX": ("Optimum-ONNX", "#b9a3d3"),
    "eager, cached": ("eager PyTorch, cached", "#9aa5b1"),
    "eager, uncached": ("eager PyTorch, as in tutorials", "#c9ced6"),
}


@click.command()
@click.argument("figures", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def main(figures: Path, output: Path) -> None:
    """Draw tokens a second of every system's best configuration, a panel for each model."""
    results = json.loads(figures.read_text(encoding="utf-8"))["results"]
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for result in results:
        if result["beam"] == 1:
            cells.setdefault((result["size"], result["batch"]), {}).update(_rates(result))
    bars = [system for system in BARS if any(system in rates for rates in cells.values())]
    sizes = list(dict.fromkeys(size for size, _ in cells))
    batches = sorted({batch for _, batch in cells})
    grid, panels = plt.subplots(
        len(sizes), len(batches), figsize=(4 * len(batches), 2.8 * len(sizes)), squeeze=False
    )
    for (size, batch), rates in cells.items():
        panel = panels[sizes.index(size)][batches.index(batch)]
        _draw(panel, f"{size}, batch {batch}", bars, rates)
    for row in panels:
        row[0].set_yticks(range(len(bars)), [BARS[system][0] for system in bars])
    grid.suptitle("tokens a second, greedy, each in its best configuration (more is better)")
    grid.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    grid.savefig(output, dpi=110)


def _rates(result: dict[str, Any]) -> dict[str, float]:
    return {
        name: found["configurations"][found["best"]]["tokens_per_second"]
        for name, found in result["systems"].items()
    }


def _draw(panel: Any, title: str, bars: list[str], found: dict[str, float]) -> None:
    rates = [found.get(system, 0.0) for system in bars]
    panel.barh(range(len(rates)), rates, color=[BARS[system][1] for system in bars])
    for place, rate in enumerate(rates):
        panel.text(rate, place, f" {rate:,.0f}" if rate else " –", va="center", fontsize=8)
    panel.invert_yaxis()
    panel.set_yticks([])
    panel.set_xlim(0, 1.25 * max(rates))
    panel.set_xticks([])
    panel.set_title(title, fontsize=10)
    panel.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    main()
