"""A picture of what ``tfexport bench --json`` measured, for light and dark pages.

python -m benchmarks.bench_plot docs/images/bench.json -o docs/images/bench.svg
"""

import json
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

# Readable on white and on black; the ground is the page's.
INK = "#7d8894"
LINES = (("#0c8599", "o"), ("#e8590c", "s"), ("#9c36b5", "^"), ("#2f9e44", "D"))
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",  # the same picture of the same figures
    "font.family": "sans-serif",
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
    "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip


@click.command()
@click.argument("figures", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def main(figures: Path, output: Path) -> None:
    """Draw sentences a second, and how long a batch takes, over the size of a batch."""
    timings = json.loads(figures.read_text(encoding="utf-8"))["timings"]
    with mpl.rc_context(STYLE):
        grid, (throughput, latency) = plt.subplots(1, 2, figsize=(8, 3.2))
        for place, layout in enumerate(sorted({_layout(timing) for timing in timings})):
            own = [timing for timing in timings if _layout(timing) == layout]
            own.sort(key=lambda timing: int(timing["batch_size"]))
            _draw(throughput, latency, own, LINES[place % len(LINES)])
        _label(throughput, "sentences a second")
        _label(latency, "milliseconds of a batch: median, and 95 % within")
        throughput.legend(frameon=False, labelcolor=INK)
        grid.tight_layout()
        grid.savefig(output, transparent=True, metadata={"Date": None})


def _layout(timing: dict[str, Any]) -> tuple[int, int]:
    return timing["workers"], timing["threads"]


def _draw(throughput: Any, latency: Any, own: list[dict[str, Any]], line: tuple[str, str]) -> None:
    workers, threads = _layout(own[0])
    title = f"{threads} thread{'s' if threads > 1 else ''}"
    title += f", {workers} workers" if workers > 1 else ""
    sizes = [timing["batch_size"] for timing in own]
    look = {"color": line[0], "marker": line[1], "label": title}
    throughput.plot(sizes, [timing["sentences_per_second"] for timing in own], **look)
    waits = [timing["batch_milliseconds"] for timing in own if "batch_milliseconds" in timing]
    if waits:
        medians, most = ([wait[name] for wait in waits] for name in ("median", "95%"))
        latency.plot(sizes, medians, **look)
        latency.fill_between(sizes, medians, most, color=line[0], alpha=0.25)


def _label(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    panel.set_xlabel("sentences in a batch")
    panel.set_ylim(bottom=0)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
