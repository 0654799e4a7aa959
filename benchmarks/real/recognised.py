"""Published models, recognised in their unmodified classes, and by their found steps.

PYTHONPATH=build/native python -m benchmarks.real.recognised [MODEL…]

Rows are decoded one at a time with one thread, by all systems in turn. Each row that is printed can
be pasted into docs/recognition.md.
"""

import importlib
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import click
import torch

from benchmarks.real.__main__ import TEXTS
from benchmarks.real.packages import FOLDER
from benchmarks.real.published import Published
from benchmarks.recognition import Decode, measure
from tfexport.export import export
from tfexport.export.artifacts.option_rules import RECOGNISED
from tfexport.runtime import Translator

MODELS = ("annalog", "tg2fa_translit")
LONGEST = 60


def one_by_one(bundle: Any, engine: Any) -> Decode:
    """Greedy search of a bundle, a row at a time."""
    translator = Translator(bundle, threads=1, engine=engine)

    def decode(rows: list[list[int]]) -> list[list[int]]:
        found = (translator.generate([row], max_length=LONGEST)[0] for row in rows)
        return [list(each.hypotheses[0].tokens) for each in found]

    return decode


def row_of(name: str) -> str:
    """Tokens of all systems compared, and their speeds."""
    module = importlib.import_module(f"benchmarks.real.{name}")
    published: Published = module.published()
    by_forward: Callable[[], dict[str, Any]] = module.by_forward
    bundles = {each: FOLDER / f"{name}-{each}.bundle" for each in ("recognised", "found")}
    for each, path in bundles.items():
        arguments = {**by_forward(), "recognise": each == "recognised"}
        made = export(output=path, force=True, **arguments)
        if (made.layout == RECOGNISED) != (each == "recognised"):
            raise click.ClickException(f"{name}: is not recognised: {made.notes}")
    systems = {
        "native": one_by_one(bundles["recognised"], "native"),
        "onnxruntime": one_by_one(bundles["recognised"], "onnxruntime"),
        "found": one_by_one(bundles["found"], "onnxruntime"),
    }
    texts = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    rows = [published.row(text) for text in texts]
    native, *others = (decode(rows) for decode in systems.values())
    speeds = measure(systems, rows)
    ratio = statistics.median(
        one / two for one, two in zip(speeds["native"], speeds["found"], strict=True)
    )
    figures = " | ".join(f"{statistics.median(each):,.0f}" for each in speeds.values())
    same = "equal" if all(each == native for each in others) else "OTHER TOKENS"
    return f"| {name} | {figures} | {ratio:.1f} | {same} of {len(rows)} rows |"


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(MODELS))
def main(models: tuple[str, ...]) -> None:
    """Print a row for each of the named MODELS, or for all."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in models or MODELS:
        click.echo(row_of(name))


if __name__ == "__main__":
    main()
