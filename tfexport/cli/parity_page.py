"""The page of ``verify --report``: a parity report as a heat map, for light and dark screens.

It is one file without scripts, and asks for nothing from anywhere.
"""

import html
from typing import TYPE_CHECKING

from tfexport.atomic import new_file
from tfexport.cli.spelling import spell
from tfexport.cli.tables import by_shape, cell_text, notes, settings_lines, verdict

if TYPE_CHECKING:
    from tfexport.export.parity import Comparison, ParityReport

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
    said = [
        report.doubt,
        None if report.own_code is None else report.own_code.spelled(spell),
        None if (failure := report.failure()) is None else failure.spelled(spell),
    ]
    title = html.escape(f"{name}: {verdict(report)}")
    lines = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(name)}: parity</title><style>{_STYLE}</style>",
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(note)}</p>" for note in said if note),
        *_settings(report),
        f'<div class="map">{_table(report)}</div>',
        _scale(),
        f"<p>signature: <code>{html.escape(signature)}</code></p></html>",
    ]
    with new_file(path, force=True) as page:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _settings(report: "ParityReport") -> list[str]:
    lines = [f"<li>{html.escape(line)}</li>" for line in settings_lines(report.settings)]
    return ["<p>Settings that the weights do not show:</p><ul>", *lines, "</ul>"] if lines else []


def _table(report: "ParityReport") -> str:
    stages = report.stages()
    head = "".join(f'<th scope="col">{html.escape(stage)}</th>' for stage in stages)
    rows = []
    for (inputs, batch, length), at in by_shape(report).items():
        cells = "".join(_cell([c for c in at if c.stage == stage]) for stage in stages)
        kind = "" if inputs == "drawn" else f", {html.escape(inputs)}"
        rows.append(f'<tr><th scope="row">{batch} × {length}{kind}</th>{cells}</tr>')
    caption = "; ".join(["Largest difference relative to max(1, |value|)", *notes(report)])
    return (
        f"<table><caption>{html.escape(caption)}; for tokens how many are equal.</caption>"
        f'<thead><tr><th scope="col">batch × source</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(found: "list[Comparison]") -> str:
    if not found:
        return "<td></td>"
    text = html.escape(cell_text(found))
    if not all(c.passed for c in found):
        return f'<td class="wrong">✗ {text}</td>'
    return f'<td style="--heat: {_heat(max(c.used for c in found)):.2f}">{text}</td>'


def _heat(used: float) -> float:
    """0 up to half of the allowance, 1 where all of it is taken, linear between."""
    return min(1.0, max(0.0, 2 * used - 1))


def _scale() -> str:
    steps = (0.0, 0.5, 0.75, 1.0)
    cells = "".join(f'<span style="--heat: {_heat(step):.2f}">{step:.0%}</span>' for step in steps)
    wrong = '<span class="wrong">✗ differs</span>'
    return f'<p class="scale">part of the allowance taken: {cells} {wrong}</p>'
