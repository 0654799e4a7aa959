"""Results of comparisons: lines, tables as wide as the terminal, the page of ``--report``."""

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfexport.atomic import new_file
from tfexport.cli.console import human_size, spell
from tfexport.errors import Option, shown
from tfexport.manifest import TRANSFORMERS
from tfexport.typing import PathLike

if TYPE_CHECKING:
    from tfexport.export.parity import Comparison, ParityReport


NOT_OWN = "not compared with your code"
# Origins of settings that nobody said: defaults, and what an earlier export took.
_GUESSED = ("assumed", "bundle", TRANSFORMERS)


def parity_table(report: "ParityReport", name: str) -> Table:
    """A table with a row for each shape and a column for each stage."""
    present = report.stages()
    table = Table(
        title=f"{name} against {report.reference}",
        caption="\n".join(["largest difference relative to max(1, |value|)", *notes(report)]),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("batch", justify="right")
    table.add_column("source", justify="right")
    for stage in present:
        # No word is broken, and no number.
        longest = max(map(len, [*stage.split(), f"{0:.1e}"]))
        table.add_column(stage, justify="right", min_width=longest)
    for (inputs, batch, length), at in by_shape(report).items():
        cells = [_cell([c for c in at if c.stage == stage]) for stage in present]
        where = str(length) if inputs == "drawn" else f"{length}, {inputs}"
        table.add_row(str(batch), where, *cells)
    return table


def by_shape(report: "ParityReport") -> "dict[tuple[str, int, int], list[Comparison]]":
    """The comparisons at each kind of inputs, batch and source length."""
    found: dict[tuple[str, int, int], list[Comparison]] = {}
    for each in report.comparisons:
        found.setdefault((each.inputs, each.batch, each.source_length), []).append(each)
    return found


def notes(report: "ParityReport") -> list[str]:
    """The lines below a report's table: the allowed differences and why, and what was not run."""
    from tfexport.export.report import LEAST_ALLOWED, MOST_ALLOWED, MULTIPLE

    allowed = [c.allowed for c in report.comparisons if c.allowed]
    least, most = min(allowed, default=LEAST_ALLOWED), max(allowed, default=LEAST_ALLOWED)
    said = f"allowed {least:.2g}" + (f" to {most:.2g}" if most > least else "")
    if report.measured_by is not None:
        worst = max((c.noise for c in report.comparisons), default=0.0)
        said += (
            f": {MULTIPLE} times what {report.reference} itself rounds by, {worst:.2g} at most (by "
            f"{report.measured_by}), but {LEAST_ALLOWED:g} at least and {MOST_ALLOWED:g} at most"
        )
    return [said, *(note for note in (report.note, report.ill_conditioned) if note)]


def _cell(found: "list[Comparison]") -> Text:
    """The cell of one stage at one shape: no, one or (for text) several comparisons."""
    if not found:
        return Text()
    text = cell_text(found)
    return Text(text) if all(c.passed for c in found) else Text(f"✗ {text}", "bold red")


def worst_of(found: "list[Comparison]") -> "Comparison":
    """The comparison that a cell shows: one that failed, else the largest difference."""
    return max(found, key=lambda c: (not c.passed, c.difference))


def cell_text(found: "list[Comparison]") -> str:
    """The comparisons of one stage at one shape, in a few words."""
    from tfexport.export.parity import TOKEN_STAGES

    worst = worst_of(found)
    text = f"{worst.difference:.1e}"
    if worst.stage in TOKEN_STAGES:
        wrong, ties = sum(c.difference for c in found), sum(c.near_ties for c in found)
        text = f"{wrong:.0f} rows differ" if wrong else f"{sum(c.compared for c in found)} equal"
        text += f", {ties} near ties" if ties else ""
    return text


def verdict(report: "ParityReport") -> str:
    """Summarise a report in one sentence, which begins with what was not compared."""
    own = "" if report.own_code is None else f"{NOT_OWN}; "
    return f"{own}{outcome(report)}: {figures(report)}"


def outcome(report: "ParityReport") -> str:
    """Whether the artifact is equal to its reference, in a few words."""
    if report.passed:
        return f"equal to {report.reference}"
    return f"{'NOT equal to' if report.comparisons else 'not compared with'} {report.reference}"


def figures(report: "ParityReport") -> str:
    """The numbers of an ``outcome``: what was compared, and what differs."""
    from tfexport.export.parity import TOKEN_STAGES

    summary = report.summary()
    if (failure := report.first_failure()) is not None:
        wrong = sum(not c.passed for c in report.comparisons)
        of_all = f"{wrong} of {len(report.comparisons)} comparisons differ"
        return f"first difference in {failure.stage}; {of_all}"
    if not report.comparisons:
        return "nothing of it could be compared"
    differences = summary["largest_difference"].items()
    largest = max((v for k, v in differences if k not in TOKEN_STAGES), default=0.0)
    ties = f", {summary['near_ties']} near ties" if summary["near_ties"] else ""
    tokens = f"{summary['tokens']} greedy tokens over " if summary["tokens"] else ""
    quick = "" if report.level == "full" else f"a {report.level} comparison of "
    texts = summary.get("expected")
    equal = "" if texts is None else f", {texts['equal']} of {texts['lines']} expected texts equal"
    return (
        f"{quick}{tokens}{summary['shapes']} shapes{ties}, largest difference {largest:.1e}{equal}"
    )


def settings_lines(settings: "Mapping[str, tuple[Any, str]]") -> list[str]:
    """Settings that weights do not show, a line for each origin; nothing if there are none."""
    by_origin: dict[str, list[str]] = {}
    for key, (value, origin) in settings.items():
        name = {
            "assumed": "assumed: the layout's default",
            "settings": spell(Option("settings")),
            TRANSFORMERS: "transformers' default: the model's files set no value",
        }.get(origin, origin)
        by_origin.setdefault(name, []).append(f"{key}={shown(value)}")
    return [f"{name}: {', '.join(found)}" for name, found in by_origin.items()]


def print_parity(report: "ParityReport", name: str, stderr: bool = False) -> None:
    """Print a report: the table of all shapes, or where that is too wide, its stages only."""
    table = parity_table(report, name)
    console = _console(stderr=stderr)
    unbounded = console.options.update(width=10_000)  # else the terminal's width
    if console.is_terminal and console.measure(table, options=unbounded).minimum > console.width:
        table = stage_table(report, name)
    print_table(table, stderr)


def print_result(output: str, size: int | None, report: "ParityReport | None") -> None:
    """Print an output's path, its size unless None, and the result of the comparison."""
    proof = "not compared with eager PyTorch (--no-verify)"
    if report is not None:
        print_parity(report, output, stderr=True)
        print_remarks(report, stderr=True)
        proof = verdict(report)
    click.echo(f"{output}: {'' if size is None else human_size(size) + ', '}{proof}")


def print_remarks(report: "ParityReport", stderr: bool = False) -> None:
    """Print the warnings, and the settings that only an option or a default decides."""
    if report.doubt is not None:
        click.echo(f"warning: {report.doubt}", err=stderr)
    if report.own_code is None:
        return
    click.echo(report.own_code.spelled(spell), err=stderr)
    guessed = {key: it for key, it in report.settings.items() if it[1] in _GUESSED}
    known = {key: it for key, it in report.settings.items() if key not in guessed}
    for title, settings in (
        ("The weights do not show these settings, which your files and options do:", known),
        ("Neither weights nor files show these settings; check each of them:", guessed),
    ):
        if settings:
            click.echo(title, err=stderr)
        for line in settings_lines(settings):
            click.echo(f"  {line}", err=stderr)


def stage_table(report: "ParityReport", name: str) -> Table:
    """A narrow table of a report, with a row for each stage."""
    table = Table(title=f"{name} against {report.reference}", title_justify="left")
    table.add_column("stage")
    table.add_column("worst of all shapes", justify="right")
    for stage in report.stages():
        table.add_row(stage, _cell([c for c in report.comparisons if c.stage == stage]))
    return table


def print_table(table: Table, stderr: bool = False) -> None:
    """Print a table to stdout or stderr; 160 columns wide if that is not a terminal."""
    console = _console(stderr=stderr)
    if not console.is_terminal:
        console = _console(stderr=stderr, width=160)
    console.print(table)


def _console(**options: Any) -> Console:
    """A console that does not interpret brackets and colons in names as markup or emoji."""
    return Console(markup=False, emoji=False, **options)


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
.texts td, .texts th { text-align: left; vertical-align: top; }
.texts td { white-space: pre-wrap; }
caption { caption-side: bottom; padding-top: .5rem; text-align: left; }
[style] { background: color-mix(in srgb, var(--hot) calc(var(--heat) * 60%), transparent); }
.wrong { color: var(--wrong); font-weight: bold; outline: 2px solid var(--wrong); }
.scale span { display: inline-block; padding: .1rem .6rem; border: 1px solid var(--line); }
code { font-size: .9em; }
"""


def save_report(report: "ParityReport", name: str, signature: str, path: str) -> None:
    """Write a parity report as a page of one file, without scripts and external resources.

    Args:
        report: the report of the comparison.
        name: the name of the artifact.
        signature: the signature of the comparison.
        path: the path of the page; it is replaced if it exists.
    """
    said = [
        report.doubt,
        None if report.own_code is None else report.own_code.spelled(spell),
        None if (failure := report.failure()) is None else failure.spelled(spell),
    ]
    lines = [
        *(f"<p>{html.escape(note)}</p>" for note in said if note),
        *_settings(report),
        f'<div class="map">{_table(report)}</div>',
        _scale(all(c.passed for c in report.comparisons)),
        f"<p>signature: <code>{html.escape(signature)}</code></p>",
    ]
    title, numbers = f"{name}: {outcome(report)}", figures(report)
    first = f"<p><strong>{html.escape(numbers[0].upper() + numbers[1:])}.</strong></p>"
    save_page(path, title, title, [first, *lines])


def save_page(path: PathLike, title: str, heading: str, lines: Iterable[str]) -> None:
    """Write a page of one file, without scripts and external resources.

    Args:
        path: of the page; it is replaced if it exists.
        title: as plain text.
        heading: as plain text.
        lines: of HTML, below the heading.
    """
    page = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(heading)}</h1>",
        *lines,
        "</html>",
    ]
    with new_file(path, force=True) as place:
        place.write_text("\n".join(page) + "\n", encoding="utf-8", errors="replace")


def _settings(report: "ParityReport") -> list[str]:
    lines = [f"<li>{html.escape(line)}</li>" for line in settings_lines(report.settings)]
    return ["<p>Settings that the weights do not show:</p><ul>", *lines, "</ul>"] if lines else []


def _table(report: "ParityReport") -> str:
    stages = report.stages()
    head = "".join(f'<th scope="col">{html.escape(stage)}</th>' for stage in stages)
    rows = []
    for (inputs, batch, length), at in by_shape(report).items():
        cells = "".join(_page_cell([c for c in at if c.stage == stage]) for stage in stages)
        kind = "" if inputs == "drawn" else f", {html.escape(inputs)}"
        rows.append(f'<tr><th scope="row">{batch} × {length}{kind}</th>{cells}</tr>')
    caption = "; ".join(["Largest difference relative to max(1, |value|)", *notes(report)])
    return (
        f"<table><caption>{html.escape(caption)}; for tokens how many are equal.</caption>"
        f'<thead><tr><th scope="col">batch × source</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _page_cell(found: "list[Comparison]") -> str:
    if not found:
        return "<td></td>"
    text = html.escape(cell_text(found))
    if not all(c.passed for c in found):
        return f'<td class="wrong">✗ {text}</td>'
    return f'<td style="--heat: {_heat(max(c.used for c in found)):.2f}">{text}</td>'


def _heat(used: float) -> float:
    """0 up to half of the tolerance, 1 at the tolerance, linear in between."""
    return min(1.0, max(0.0, 2 * used - 1))


def _scale(passed: bool) -> str:
    steps = (0.0, 0.5, 0.75, 1.0)
    cells = "".join(f'<span style="--heat: {_heat(step):.2f}">{step:.0%}</span>' for step in steps)
    wrong = "" if passed else ' <span class="wrong">✗ differs</span>'
    return f'<p class="scale">part of the tolerance taken: {cells}{wrong}</p>'
