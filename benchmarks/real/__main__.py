"""Export published models by each way that fits, and compare them with their own code.

Nothing is left out of the comparison: what ``tfexport onnx`` refuses is a result. What it exports
decodes 50 inputs, whose tokens are held against those of the package's own loop.
"""

import importlib
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.real.packages import FOLDER, NotFetchedError
from benchmarks.real.published import BEAM, Published, Way
from tests.support.paths import REPOSITORY
from tfexport.runtime import Translator

MODELS = ("annalog", "tg2fa_translit", "cn2en", "g2p_fa", "whisper")
TEXTS = Path(__file__).with_name("texts")
HEADINGS = (
    "model", "way", "lines", "largest difference", "allowed", "from", "its own rounding",
    "equal texts", "near ties", "tokens a second, the own loop's", "seconds of processor",
)  # fmt: skip
# Two best logits that are nearer than this are a near tie: float32 may choose either.
NEAR = 2e-4


def export(name: str, way: Way, output: Path) -> tuple[str, float]:
    """Run ``tfexport onnx``, and give what it said if it failed, and its seconds of processor."""
    command: list[str | Path] = [sys.executable, "-m", "tfexport", "onnx", *way.arguments]
    command += ["-o", output.relative_to(REPOSITORY), "--force"]
    before = os.times()
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    said = (lines or done.stderr.splitlines() or ["no message"])[-1] if done.returncode else ""
    return said.removeprefix("Error: "), seconds


@dataclass
class Decoded:
    """What came of the texts, a row at a time.

    Attributes:
        equal: texts whose tokens are those of the package's own loop.
        near: of the others, those that part at a near tie.
        of_beam: texts whose tokens by beam search are those of the package's own; None without one.
        tokens: that the bundle gave, and the own loop.
        seconds: that they took.
    """

    equal: int = 0
    near: int = 0
    of_beam: int | None = None
    tokens: tuple[int, int] = (0, 0)
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second of the bundle, end tokens aside, and of the own loop."""
        found, own = (
            count / seconds for count, seconds in zip(self.tokens, self.seconds, strict=True)
        )
        return found, own


def compare(published: Published, bundle: Path, texts: list[str]) -> Decoded:
    """Decode texts with a bundle and with the package's own loop."""
    translator, decoded = Translator(bundle, threads=1), Decoded()
    own_beam = published.own_beam
    for text in texts:
        row, limit = published.row(text), published.limit(text)
        begun = time.perf_counter()
        expected = published.own(text)
        between = time.perf_counter()
        by_name = isinstance(row, dict)
        call: Any = translator.generate_from if by_name else translator.generate
        found = call([row], max_length=limit)[0].hypotheses[0].tokens
        ended = time.perf_counter()
        lengths, took = (len(found), len(expected)), (ended - between, between - begun)
        decoded.tokens = (decoded.tokens[0] + lengths[0], decoded.tokens[1] + lengths[1])
        decoded.seconds = (decoded.seconds[0] + took[0], decoded.seconds[1] + took[1])
        if own_beam is not None:
            beam = call([row], max_length=limit, beam_size=BEAM)[0].hypotheses[0].tokens
            decoded.of_beam = (decoded.of_beam or 0) + (beam == own_beam(text)[:limit])
        if found == expected[:limit]:
            decoded.equal += 1
            continue
        place = next(
            (i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
            min(len(found), len(expected)),
        )
        best = published.logits(text, expected[:place]).double().topk(2).values
        decoded.near += int(best[0] - best[1] < NEAR * max(1.0, float(best.abs().max())))
    return decoded


def lines_written(way: Way) -> int:
    """Lines of code or of settings that a user writes for a way, without blanks and docstrings."""
    count = 0
    for thing in way.wrote:
        if isinstance(thing, Path):
            text = thing.read_text(encoding="utf-8")
        else:
            text = inspect.getsource(thing)
        count += sum(
            1 for line in text.splitlines() if line.strip() and not line.strip().startswith('"""')
        )
    return count


def rows(name: str) -> Iterator[tuple[str, ...]]:
    """The rows of one model in the table."""
    texts = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    try:
        published: Published = importlib.import_module(f"benchmarks.real.{name}").published()
    except NotFetchedError as error:
        yield (name, f"not to be had: {error}", *[""] * (len(HEADINGS) - 2))
        return
    for number, way in enumerate(published.ways):
        output = FOLDER / f"{name}-{number}.bundle"
        said, seconds = export(name, way, output)
        written = str(lines_written(way)) if way.wrote else "–"
        first = (published.requirement.replace("==", " "), way.name, written)
        if said:
            click.echo(f"{name}, {way.name}: {said}", err=True)
            said = f"refused: {said.replace('|', '/')}"
            yield (*first, said, *[""] * 6, f"{seconds:.0f}")
            continue
        decoded = compare(published, output, texts)
        parity = json.loads((output / "manifest.json").read_text(encoding="utf-8"))["parity"]
        count = f"{decoded.equal} of {len(texts)}"
        if decoded.of_beam is not None:
            count += f", a beam of {BEAM}: {decoded.of_beam}"
        if published.judge is not None:
            click.echo(f"{name}, {way.name}: {published.judge()}", err=True)
        rates = "{:,.0f}, {:,.0f}".format(*decoded.rates)
        yield (*first, *figures(parity), count, str(decoded.near), rates, f"{seconds:.0f}")


def figures(parity: dict[str, Any]) -> tuple[str, ...]:
    """Of the stage nearest to its tolerance: found, allowed; the original, and its own rounding."""
    allowed, found = parity["allowed"], parity["largest_difference"]
    stage = max(allowed, key=lambda each: found[each] / allowed[each])
    noise = f"{parity['rounding']['noise']:.1e}"
    return f"{found[stage]:.1e} ({stage})", f"{allowed[stage]:.1e}", parity["reference"], noise


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(MODELS))
def main(models: tuple[str, ...]) -> None:
    """Print the table of the named models, or of all, as Markdown."""
    torch.set_num_threads(1)  # single rows gain nothing by more
    click.echo(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for name in models or MODELS:
        for row in rows(name):
            click.echo(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
