"""The page of ``verify --report``: a parity report as a heat map, for light and dark screens.

It is one file without scripts, and asks for nothing from anywhere.
"""

import html
import math
from typing import TYPE_CHECKING

from tfexport.atomic import new_file
from tfexport.cli.spelling import spell
from tfexport.cli.tables import cell_text, verdict, worst_of

if TYPE_CHECKING:
    from tfexport.export.parity import Comparison, ParityReport

COLDEST = 1e-8  # what is below counts as equal to the last digit of a float32
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --line: #d0d7de; --hot: #e8590c;
        --wrong: #c92a2a; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171a; --ink: #e6e8ea; --line: #3a4148; --hot: #d9480f; --wrong: #ff8787; }
}
body { margin: 2rem auto; padding: 0 1rem; max-width: 80rem; background: var(--ground);
       color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
.map { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border: 1px solid var(--line); text-align: right;
         white-space: nowrap; }
caption { caption-side: bottom; padding-top: .5rem; text-align: left; }
[style] { background: color-mix(in srgb, var(--hot) calc(var(--heat) * 60%), transparent); }
.wrong { color: var(--wrong); font-weight: bold; outline: 2px solid var(--wrong); }
.scale span { display: inline-block; padding: .1rem .6rem; border: 1px solid var(--line); }
code { font-size: .9em; }
"""


def save_report(report: "ParityReport", name: str, signature: str, path: str) -> None:
    """Write a parity report as a page.

    Args:
        report: of the comparison.
        name: of the artifact.
        signature: of the comparison.
        path: of the page; it is replaced if it exists.
    """
    notes = [report.note, None if report.own_code is None else report.own_code.spelled(spell)]
    title = html.escape(f"{name}: {verdict(report)}")
    lines = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(name)}: parity</title><style>{_STYLE}</style>",
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(note)}</p>" for note in notes if note),
        f'<div class="map">{_table(report)}</div>',
        _scale(),
        f"<p>signature: <code>{html.escape(signature)}</code></p></html>",
    ]
    with new_file(path, force=True) as page:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(report: "ParityReport") -> str:
    from tfexport.export.parity import TOLERANCE

    stages = report.stages()
    head = "".join(f'<th scope="col">{html.escape(stage)}</th>' for stage in stages)
    rows = []
    for batch, length in dict.fromkeys((c.batch, c.source_length) for c in report.comparisons):
        at = [c for c in report.comparisons if (c.batch, c.source_length) == (batch, length)]
        cells = "".join(_cell([c for c in at if c.stage == stage]) for stage in stages)
        rows.append(f'<tr><th scope="row">{batch} × {length}</th>{cells}</tr>')
    caption = f"Largest difference relative to max(1, |value|), allowed {TOLERANCE:g}; for tokens "
    return (
        f"<table><caption>{caption}how many are equal.</caption>"
        f'<thead><tr><th scope="col">batch × source</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(found: "list[Comparison]") -> str:
    if not found:
        return "<td></td>"
    text = html.escape(cell_text(found))
    if not all(c.passed for c in found):
        return f'<td class="wrong">✗ {text}</td>'
    return f'<td style="--heat: {_heat(worst_of(found).difference):.2f}">{text}</td>'


def _heat(difference: float) -> float:
    """0 for what is equal, 1 at the tolerance, in logarithms; token stages that pass have 0."""
    from tfexport.export.parity import TOLERANCE

    if difference <= COLDEST:
        return 0.0
    return min(1.0, math.log(difference / COLDEST) / math.log(TOLERANCE / COLDEST))


def _scale() -> str:
    steps = (0.0, 1e-7, 1e-6, 1e-5, 1e-4)
    cells = "".join(f'<span style="--heat: {_heat(step):.2f}">{step:g}</span>' for step in steps)
    return f'<p class="scale">{cells} <span class="wrong">✗ differs</span></p>'
