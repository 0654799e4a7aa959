"""Weights in 16 bits beside the same weights in float32: python -m benchmarks.stored_weights.

Checkpoints whose matrices are bfloat16 or float16 are exported. The native engine decodes them with
these matrices as they are and, with TFEXPORT_NATIVE_WEIGHTS=float32, with matrices that it widened.
Tokens and scores have to be equal to the last bit. Runs take turns; each cell is the best of one
and two threads.
"""

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

from benchmarks.compare import LENGTH, SOURCE
from benchmarks.models import SIZES, make_random
from benchmarks.startup import machine
from tfexport.export import export
from tfexport.model_src import save_checkpoint
from tfexport.runtime import Translator

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
VARIABLE = "TFEXPORT_NATIVE_WEIGHTS"
SECONDS = 0.3  # of a turn


def prepare(size: str, name: str, folder: Path) -> Path:
    """The bundle of a model whose matrices are of this type."""
    bundle = folder / size / f"{name}.bundle"
    if not bundle.exists():
        model = make_random(SIZES[size])
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = parameter.data.to(TYPES[name]).float()
        bundle.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(model, bundle.with_suffix(".safetensors"))
        export(bundle.with_suffix(".safetensors"), bundle, verify=False)
    return bundle


def open_bundle(bundle: Path, threads: int, wide: bool) -> Translator:
    """In the native engine, with matrices as they are or in float32."""
    if wide:
        os.environ[VARIABLE] = "float32"
    try:
        return Translator(bundle, threads=threads, engine="native")
    finally:
        os.environ.pop(VARIABLE, None)


def decode(model: Translator, rows: list[list[int]], scores: bool, beam: int) -> list[Any]:
    """Tokens and scores of each row."""
    kept: dict[str, Any] = {"return_scores": scores, "max_length": LENGTH}
    if beam > 1:
        kept["beam_size"] = beam
    found = model.generate(rows, batch_size=len(rows), **kept)
    return [[(h.tokens, h.score if scores else None) for h in each.hypotheses] for each in found]


def rows_of(size: str, batch: int) -> list[list[int]]:
    """Random sources."""
    draw = torch.Generator().manual_seed(batch)
    return torch.randint(4, SIZES[size].vocab_size, (batch, SOURCE), generator=draw).tolist()


@click.command()
@click.option("--folder", type=Path, default=Path("build/bench/stored"), show_default=True)
@click.option("--size", "sizes", multiple=True, default=["base", "opus"], show_default=True)
@click.option("--type", "types", multiple=True, type=click.Choice([*TYPES]), default=[*TYPES])
@click.option("--batch", "batches", multiple=True, default=[1, 8, 32], show_default=True)
@click.option("--beam", default=1, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--prepare-only", is_flag=True, help="Export, and measure nothing.")
def main(
    folder: Path, sizes: list[str], types: list[str], batches: list[int], beam: int, rounds: int,
    prepare_only: bool,
) -> None:  # fmt: skip
    """Measure what weights in 16 bits give the native engine."""
    click.echo(
        f"{machine()}\n\n| tokens a second | float32 | in 16 bits | ratio |\n|---|---|---|---|"
    )
    for size in sizes:
        for name in types:
            bundle = prepare(size, name, folder)
            if prepare_only:
                continue
            ways = [(threads, wide) for threads in (1, 2) for wide in (True, False)]
            opened = {way: open_bundle(bundle, *way) for way in ways}
            for batch in batches:
                rows = rows_of(size, batch)
                results = [decode(model, rows, True, beam) for model in opened.values()]
                assert all(found == results[0] for found in results)
                taken: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
                for _ in range(rounds):
                    for way, model in opened.items():
                        decode(model, rows, False, beam)  # threads are awake, caches its own
                        end = time.perf_counter() + SECONDS
                        while (start := time.perf_counter()) < end:
                            decode(model, rows, False, beam)
                            taken[way].append(time.perf_counter() - start)
                best = [
                    batch * LENGTH / min(median(taken[threads, wide]) for threads in (1, 2))
                    for wide in (True, False)
                ]
                click.echo(f"| {size}, {name}, batch {batch} | {best[0]:,.0f} | {best[1]:,.0f} | "
                           f"{best[1] / best[0]:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
