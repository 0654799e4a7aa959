"""Models of many styles: recognised, by the steps that are found in their forward, and CTranslate2.

python -m benchmarks.recognition [STYLE…]

The models are those of docs/recognition.md: about 32 values wide, two layers. At this size a step
costs as much as the calls around its products. All decode the same rows in turn, in float32 with
one thread. Each row that is printed can be pasted into the page.
"""

import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.peers import save_ctranslate2
from tests.export.incremental.own_case import draw_inputs, greedy
from tests.export.recognition.styles import STYLES, Style
from tests.export.recognition.test_recognition import KNOWN, LONGEST, bundle_of, recognise
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime import Translator

BATCH, SOURCE, ROUNDS = 8, 6, 25
Decode = Callable[[list[list[int]]], list[list[int]]]


def ctranslate2_expresses(config: Any) -> bool:
    """Whether CTranslate2 has a form of this model that ``save_ctranslate2`` writes."""
    finals = {config.encoder_final_norm, config.decoder_final_norm}
    return (
        config.norm == "layer" and config.norm_bias and config.positions == "learned"
        and config.norm_placement in ("pre", "post") and config.decoder_norm_placement == "same"
        and finals == {config.norm_placement == "pre"} and not config.gated_feed_forward
        and config.relative_positions == "none" and not config.decoder_num_heads
        and {config.source_embedding_norm, config.target_embedding_norm} == {"none"}
        and config.scale_embeddings == (config.scale_embeddings and config.scale_target_embeddings)
        and config.residual_scale == 1 and config.head_dim * config.num_heads == config.d_model
        and config.activation == "relu"
    )  # fmt: skip


def open_ctranslate2(checkpoint: Checkpoint, folder: Path) -> Decode:
    """Greedy search of CTranslate2 on a model's weights."""
    import ctranslate2

    save_ctranslate2(checkpoint, folder)
    opened = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1)

    def decode(rows: list[list[int]]) -> list[list[int]]:
        words = [[f"t{i}" for i in row] for row in rows]
        found = opened.translate_batch(
            words, beam_size=1, max_decoding_length=LONGEST, min_decoding_length=0,
            max_batch_size=BATCH,
        )  # fmt: skip
        return [[int(token[1:]) for token in each.hypotheses[0]] for each in found]

    return decode


def open_bundle(path: Path, engine: Any) -> Decode:
    """Greedy search of a bundle."""
    translator = Translator(path, threads=1, engine=engine)

    def decode(rows: list[list[int]]) -> list[list[int]]:
        found = translator.generate(rows, max_length=LONGEST)
        return [list(each.hypotheses[0].tokens) for each in found]

    return decode


def measure(systems: dict[str, Decode], rows: list[list[int]]) -> dict[str, list[float]]:
    """Tokens a second of each system, in rounds; the first two do not count."""
    speeds: dict[str, list[float]] = {name: [] for name in systems}
    for done, (name, decode) in itertools.product(range(ROUNDS + 2), systems.items()):
        begun = time.perf_counter()
        count = sum(map(len, decode(rows)))
        if done >= 2:
            speeds[name].append(count / (time.perf_counter() - begun))
    return speeds


def until_padding(rows: list[list[int]], style: Style) -> list[list[int]]:
    """Rows up to the end token or a padding token, to which some styles attend and some do not."""
    ends = (style.pad_id, style.eos_id)
    return [list(itertools.takewhile(lambda i: i not in ends, row)) for row in rows]


def row_of(style: Style, folder: Path) -> str:
    """Tokens compared with the style's own loop, and speeds compared with each other."""
    checkpoint = recognise(style)
    bundle_of(style, folder / "recognised.bundle")
    bundle_of(style, folder / "found.bundle", recognise=False)
    systems = {
        "native": open_bundle(folder / "recognised.bundle", "native"),
        "onnxruntime": open_bundle(folder / "recognised.bundle", "onnxruntime"),
        "found": open_bundle(folder / "found.bundle", "onnxruntime"),
    }
    if ctranslate2_expresses(checkpoint.config):
        systems["CTranslate2"] = open_ctranslate2(checkpoint, folder / "ctranslate2")
    inputs = draw_inputs(style.case, BATCH, {"source_length": SOURCE}, 3)
    wanted = until_padding(greedy(style.case, style.build(), inputs, LONGEST).tolist(), style)
    rows = inputs[0].movedim(style.inputs[0].axes.index("batch"), 0).tolist()
    unlike = [
        name for name, decode in systems.items() if until_padding(decode(rows), style) != wanted
    ]
    speeds = measure(systems, rows)

    def ratio(other: str) -> str:
        if other not in speeds:
            return "–"
        pairs = zip(speeds["native"], speeds[other], strict=True)
        return f"{statistics.median(one / two for one, two in pairs):.1f}"

    same = "equal" if not unlike else f"other tokens: {', '.join(unlike)}"
    native = statistics.median(speeds["native"])
    return (
        f"{style.name:26} {same}; native {native:,.0f} tokens/s; native / onnxruntime "
        f"{ratio('onnxruntime')}, / found {ratio('found')}, / CTranslate2 {ratio('CTranslate2')}"
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(KNOWN))
def main(names: tuple[str, ...]) -> None:
    """Print a row for each of the named STYLES, or for all that are recognised."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for style in STYLES:
        if style.name in (names or KNOWN):
            with tempfile.TemporaryDirectory() as folder:
                click.echo(row_of(style, Path(folder)))


if __name__ == "__main__":
    main()
