"""The tables of docs/performance.md and README.md, of what benchmarks.compare measured.

python -m benchmarks.tables FIGURES.json
"""

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.choice import (
    best_peer,
    geometric_mean,
    one_thread_ratio,
    onnxruntime_ratio,
    ratio,
)
from benchmarks.configurations import CTRANSLATE2, OURS

NONE = "–"
Result = dict[str, Any]


def report(result: Result) -> str:
    """One cell as lines of text: systems in their best configurations, the fastest first."""
    title = (
        f"{result['size']}, batch {result['batch']}, {_search(result['beam'])}, "
        f"{result['weights']}"
    )  # fmt: skip
    lines = []
    for system, figures in sorted(_best(result).items(), key=lambda pair: pair[1]["seconds"]):
        agreement = figures["agreement"]
        same = NONE if agreement is None else f"{agreement:.1%}"
        lines.append(
            f"  {system:<18}{figures['tokens_per_second']:9,.0f} tokens/s"
            f"  tfexport is {_number(ratio(result, system)):>5} x"
            f"  {result['systems'][system]['best']:<36}"
            f" same tokens {same:>6}  peak {figures['peak_mb']:5.0f} MB"
            f"  of memory {figures['of_bandwidth']:4.0%}"
            f"  of matrix units {figures['of_matrix_peak']:4.0%}"
            f"  of the bound {figures['of_bound']:4.0%}"
        )
    return "\n".join([title, *lines])


def speeds(results: list[Result]) -> str:
    """Tokens a second and the configuration that gave them, and how tfexport compares.

    All results are of one kind of weights.
    """
    systems = list(dict.fromkeys(name for result in results for name in result["systems"]))
    lines = _head("tokens a second", results)
    for system in systems:
        cells = [
            f"{figures['tokens_per_second']:,.0f} ({result['systems'][system]['best']}"
            f"{_same(figures['agreement'])})"
            if (figures := _best(result).get(system))
            else NONE
            for result in results
        ]
        bold = "**" if system in OURS.values() else ""
        lines.append(_row(f"{bold}{system}{bold}", cells))
    return "\n".join([*lines, *comparisons(results)])


def comparisons(results: list[Result]) -> list[str]:
    """Rows of ratios: to CTranslate2, also of a thread each, and to the fastest peer by name."""
    weights = results[0]["weights"]
    ours, rival = OURS[weights], CTRANSLATE2[weights]
    ratios = [ratio(result, rival) for result in results]
    mean = _number(geometric_mean(ratios))
    lines = [_row(f"{ours} ÷ {rival} (geometric mean {mean})", list(map(_number, ratios)))]
    alone = [one_thread_ratio(result, rival) for result in results]
    mean = _number(geometric_mean(alone))
    name = f"the same, 1 thread each, fastest runs when choosing (geometric mean {mean})"
    lines.append(_row(name, list(map(_number, alone))))
    peers = [best_peer(result) for result in results]
    if set(peers) - {rival, None}:
        ratios = [ratio(result, peer) for result, peer in zip(results, peers, strict=True)]
        mean = _number(geometric_mean(ratios))
        cells = [f"{_number(value)} ({peer})" for value, peer in zip(ratios, peers, strict=True)]
        lines.append(_row(f"{ours} ÷ the fastest peer (geometric mean {mean})", cells))
    return lines


def all_configurations(results: list[Result], system: str) -> str:
    """Tokens a second of every configuration of one system, by its fastest run when choosing."""
    of_system = [result for result in results if system in result["systems"]]
    names = dict.fromkeys(
        name for result in of_system for name in result["systems"][system]["configurations"]
    )
    lines = _head(system, of_system)
    for name in names:
        cells = []
        for result in of_system:
            found = result["systems"][system]
            figures = found["configurations"].get(name)
            if figures is None:
                cells.append(NONE)
                continue
            rate = result["batch"] * result["length"] / figures["least_when_choosing"]
            bold = "**" if found["best"] == name else ""
            cells.append(f"{bold}{rate:,.0f}{bold}")
        lines.append(_row(name, cells))
    return "\n".join(lines)


def summary(results: list[Result]) -> str:
    """For the README: tfexport compared with CTranslate2, a row for each search and weights.

    The native engine is in the final round; onnxruntime alone by its fastest run when choosing.
    """
    batches = sorted({result["batch"] for result in results})
    columns = [f"batch {batches[0]}", *map(str, batches[1:]), "mean"]
    lines = [_row("tfexport ÷ CTranslate2", columns), "|" + "---|" * (len(columns) + 1)]
    rows: dict[tuple[str, int, str], dict[int, Result]] = {}
    for result in results:
        key = (result["size"], result["beam"], result["weights"])
        rows.setdefault(key, {})[result["batch"]] = result
    for title, compare in (("", ratio), (", onnxruntime alone", onnxruntime_ratio)):
        for (size, beam, weights), cells in rows.items():
            ratios = [
                compare(cells[batch], CTRANSLATE2[weights]) if batch in cells else None
                for batch in batches
            ]
            numbers = [_number(value) for value in (*ratios, geometric_mean(ratios))]
            lines.append(_row(f"{size}, {_search(beam)}, {weights}{title}", numbers))
    return "\n".join(lines)


def memory(results: list[Result]) -> str:
    """Peak resident memory in MB of tfexport and CTranslate2 in their best configurations."""
    lines = _head("MB", results)
    for weights in OURS:
        for system in (OURS[weights], CTRANSLATE2[weights]):
            cells = [
                f"{figures['peak_mb']:.0f}" if (figures := _best(result).get(system)) else NONE
                for result in results
            ]
            lines.append(_row(system, cells))
    return "\n".join(lines)


def bounds(results: list[Result]) -> str:
    """Shares of what the machine can do at most, of the best configurations' fastest runs."""
    lines = _head("of memory, of matrix units, of the bound", results)
    for weights in OURS:
        for system in (OURS[weights], CTRANSLATE2[weights]):
            cells = [
                f"{figures['of_bandwidth']:.0%}, {figures['of_matrix_peak']:.0%}, "
                f"{figures['of_bound']:.0%}"
                if (figures := _best(result).get(system))
                else NONE
                for result in results
            ]
            lines.append(_row(system, cells))
    return "\n".join(lines)


def peaks(results: list[Result]) -> str:
    """How fast the machine itself was, over the run."""
    lines = []
    for cores in (1, 2):
        found = [
            figures["machine"]
            for result in results
            for system in result["systems"].values()
            for figures in system["configurations"].values()
            if "machine" in figures and figures["cores"] == cores
        ]
        if not found:
            continue
        ranges = [
            f"{title} {min(of) / 1e9:,.0f} to {max(of) / 1e9:,.0f} {unit}"
            for title, unit, of in (
                ("memory and caches", "GB/s", [peak["bandwidth"] for peak in found]),
                ("float32", "GFLOP/s", [peak["float32"] for peak in found]),
                ("int8", "GOP/s", [peak["int8"] for peak in found]),
            )
        ]
        lines.append(f"{cores} thread{'s' * (cores != 1)}: {', '.join(ranges)}")
    return "\n".join(lines)


def _best(result: Result) -> dict[str, dict[str, Any]]:
    """Each system's figures in its best configuration."""
    return {
        name: found["configurations"][found["best"]] for name, found in result["systems"].items()
    }


def _merged(results: list[Result]) -> list[Result]:
    """Cells of both kinds of weights as one, for tables that show both."""
    cells: dict[tuple[str, int, int], Result] = {}
    for result in results:
        key = (result["size"], result["batch"], result["beam"])
        cell = cells.setdefault(key, {**result, "systems": {}})
        cell["systems"] = {**cell["systems"], **result["systems"]}
    return list(cells.values())


def _same(agreement: float | None) -> str:
    """How many tokens are float32's, where that is not all: int8 rounds, and may saturate."""
    return "" if agreement in (None, 1.0) else f"; {agreement:.0%} same tokens"


def _search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beams of {beam}"


def _head(title: str, results: list[Result]) -> list[str]:
    columns = [f"{result['size']}, batch {result['batch']}" for result in results]
    return [_row(title, columns), "|" + "---|" * (len(columns) + 1)]


def _row(title: str, cells: list[str]) -> str:
    return f"| {' | '.join([title, *cells])} |"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


@click.command()
@click.argument("figures", type=click.Path(exists=True, path_type=Path))
def main(figures: Path) -> None:
    """Print every table in Markdown."""
    written = json.loads(figures.read_text(encoding="utf-8"))
    results: list[Result] = [
        {**result, "length": written["length"]} for result in written["results"]
    ]
    print(f"{written['machine']}; {', '.join(map(' '.join, written['versions'].items()))}")
    print(peaks(results))
    print(f"\n## README\n\n{summary(results)}")
    for beam in dict.fromkeys(result["beam"] for result in results):
        of_beam = [result for result in results if result["beam"] == beam]
        for weights in OURS:
            chosen = [result for result in of_beam if result["weights"] == weights]
            if chosen:
                print(f"\n## {_search(beam)}, {weights}\n\n{speeds(chosen)}")
        merged = _merged(of_beam)
        print(f"\n## {_search(beam)}: peak memory\n\n{memory(merged)}")
        print(f"\n## {_search(beam)}: what bounds it\n\n{bounds(merged)}")
        for system in dict.fromkeys(name for result in of_beam for name in result["systems"]):
            print(f"\n## {_search(beam)}: configurations\n\n{all_configurations(of_beam, system)}")


if __name__ == "__main__":
    main()
