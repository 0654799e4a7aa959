"""Export T5 v1.1, mT5 and umT5 folders whose weights are as large as trained ones.

Nothing of them is fetched: weights are drawn with a deviation of 1.6/sqrt(width), at which the
families' own float32 code is further from float64 than 1e-4. Each draw is exported by each way that
fits, always with the comparison.

    python -m benchmarks.real.t5_folders --draws 20
    python -m benchmarks.real.t5_folders --save build/real/t5_folders
    python -m benchmarks.planted_faults build/real/t5_folders/t5 --reference <this module>:t5
"""

import math
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from tfexport.errors import TfexportError
from tfexport.export import Input, export
from tfexport.export.report import ParityReport

FAMILIES = {"t5": ("T5 v1.1", "T5"), "mt5": ("mT5", "MT5"), "umt5": ("umT5", "UMT5")}
SIZES = {
    "vocab_size": 131, "d_model": 40, "d_kv": 12, "d_ff": 72, "num_layers": 3,
    "num_decoder_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
PAD, END = 0, 1
HEADINGS = (
    "model", "way", "draws", "passed", "largest difference", "allowed there",
    "largest part of the tolerance", "its own rounding", "seconds a draw",
)  # fmt: skip


def draw(family: str, seed: int) -> Any:
    """A model of transformers; odd draws have a separate output projection."""
    import transformers

    torch.manual_seed(100 * [*FAMILIES].index(family) + seed)
    name = FAMILIES[family][1]
    config = getattr(transformers, f"{name}Config")(
        **SIZES, dropout_rate=0.0, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    if seed % 2:
        model.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(values * (1.6 / math.sqrt(parameter.shape[-1])))
            else:
                parameter.copy_(1 + values * 0.1)
    return model


def code_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """What a user passes as the reference: the model's own forward."""

    def reference(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        mask = torch.ones_like(input_ids)
        logits: Tensor = model(input_ids, mask, decoder_input_ids, use_cache=False).logits
        return logits

    return reference


@cache
def _first(family: str) -> Callable[[Tensor, Tensor], Tensor]:
    return code_of(draw(family, 0))


def t5(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
    """For ``--reference``: the own forward of the folder of ``--save``."""
    return _first("t5")(input_ids, decoder_input_ids)


def mt5(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
    """For ``--reference``."""
    return _first("mt5")(input_ids, decoder_input_ids)


def umt5(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
    """For ``--reference``."""
    return _first("umt5")(input_ids, decoder_input_ids)


class Prefix(nn.Module):
    """The whole prefix for every token."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.own.encoder(input_ids, attention_mask)[0], attention_mask

    def decode(self, tokens: Tensor, source: Tensor, mask: Tensor) -> Any:
        return self.own(
            encoder_outputs=(source,), attention_mask=mask, decoder_input_ids=tokens,
            use_cache=False,
        ).logits  # fmt: skip


class Steps(Prefix):
    """The state holds what each layer has seen; compared with ``decode`` too."""

    def start(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        nothing = source.new_zeros(source.size(0), 0, source.size(2))
        return tuple(nothing for _ in self.own.decoder.block)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        (source, mask), decoder, after = memory, self.own.decoder, []
        hidden = (mask == 0)[:, None, None] * torch.finfo(torch.float32).min
        x, bias = decoder.embed_tokens(token), None
        for block, past in zip(decoder.block, state, strict=True):
            own, cross, feed_forward = block.layer
            y = own.layer_norm(x)
            seen = torch.cat([past, y], 1)
            if own.SelfAttention.has_relative_attention_bias:
                bias = _distances(own.SelfAttention, position, seen.size(1))
            x = x + _attend(own.SelfAttention, y, seen, bias)
            x = x + _attend(cross.EncDecAttention, cross.layer_norm(x), source, hidden)
            x = feed_forward(x)
            after.append(seen)
        x = decoder.final_layer_norm(x)
        if type(self.own).__name__.startswith("UMT5"):
            x = x * self.own.model_dim**-0.5
        return self.own.lm_head(x)[:, 0], tuple(after)


def _distances(attention: Any, position: Tensor, keys: int) -> Any:
    """The bias of each distance from one position, (1, H, 1, keys)."""
    distances = torch.arange(keys)[None] - position
    if type(attention).__name__.startswith("UMT5"):
        buckets = attention._relative_position_bucket(distances)
    else:
        count = attention.relative_attention_num_buckets
        furthest = attention.relative_attention_max_distance
        buckets = attention._relative_position_bucket(distances, False, count, furthest)
    return attention.relative_attention_bias(buckets).permute(2, 0, 1)[None]


def _attend(attention: Any, x: Tensor, source: Tensor, bias: Any) -> Any:
    def heads(values: Tensor) -> Any:
        return values.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)

    queries, keys, values = attention.q(x), attention.k(source), attention.v(source)
    scores = heads(queries) @ heads(keys).transpose(2, 3) + bias
    return attention.o((scores.softmax(-1) @ heads(values)).transpose(1, 2).flatten(2))


def _module(module: nn.Module, output: Path) -> ParityReport | None:
    axes = ("batch", "length")
    return export(
        module, output, inputs=[Input("input_ids", "int64", axes),
        Input("attention_mask", "int64", axes)], pad_id=PAD, bos_id=PAD, eos_id=END, max_length=64,
        force=True,
    ).report  # fmt: skip


def _folder(model: Any, output: Path) -> ParityReport | None:
    folder = output.with_name("folder")
    model.save_pretrained(folder)
    return export(folder, output, force=True).report


def _folder_with_code(model: Any, output: Path) -> ParityReport | None:
    folder = output.with_name("folder")
    model.save_pretrained(folder)
    return export(folder, output, reference=code_of(model), force=True).report


WAYS: dict[str, Callable[[Any, Path], ParityReport | None]] = {
    "`--checkpoint`": _folder,
    "`--checkpoint`, `--reference`": _folder_with_code,
    "the live module": lambda model, out: export(model, out, force=True).report,
    "`encode`, `decode`": lambda model, out: _module(Prefix(model), out),
    "the same, `start`, `step`": lambda model, out: _module(Steps(model), out),
}


@dataclass
class Tally:
    """What came of the draws of one family by one way."""

    draws: int = 0
    passed: int = 0
    difference: float = 0.0
    allowed: float = 0.0
    stage: str = ""
    part: float = 0.0
    noise: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, report: ParityReport) -> None:
        """Count a draw that passed."""
        self.passed += 1
        nearest = max(report.comparisons, key=lambda each: each.used)
        self.noise.append(max(each.noise for each in report.comparisons))
        if nearest.used > self.part:
            self.part, self.stage = nearest.used, nearest.stage
            self.difference, self.allowed = nearest.difference, nearest.allowed

    def row(self, family: str, way: str) -> str:
        """A row of the table."""
        noise = f"{min(self.noise):.1e} to {max(self.noise):.1e}" if self.noise else ""
        cells = (
            FAMILIES[family][0], way, str(self.draws), str(self.passed),
            f"{self.difference:.1e} ({self.stage})", f"{self.allowed:.1e}", f"{self.part:.2f}",
            noise, f"{self.seconds / max(1, self.draws):.0f}",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def measure(family: str, way: str, seed: int, tally: Tally) -> None:
    """Export a draw by one way; what came of it is said on stderr too."""
    before = time.process_time()
    tally.draws += 1
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = WAYS[way](draw(family, seed), Path(folder, "t5.bundle"))
            assert report is not None
            tally.add(report)
            said = f"passes, {max(each.used for each in report.comparisons):.2f} of the tolerance"
        except TfexportError as error:
            said = str(error)
    tally.seconds += time.process_time() - before
    click.echo(f"{family}, {way}, draw {seed}: {said}", err=True)


@click.command()
@click.option("--draws", default=20, show_default=True, help="Of each family.")
@click.option("--others", default=5, show_default=True, help="By ways but the first.")
@click.option("--family", "families", multiple=True, type=click.Choice(tuple(FAMILIES)))
@click.option("--way", "ways", multiple=True, type=click.Choice(tuple(WAYS)))
@click.option("--save", metavar="FOLDER", type=Path, help="Save the first draws, export nothing.")
def main(
    draws: int,
    others: int,
    families: tuple[str, ...],
    ways: tuple[str, ...],
    save: Path | None,
) -> None:
    """Print what came of the draws, as Markdown."""
    from transformers.utils import logging

    quiet: Any = logging  # its functions have no types
    warnings.simplefilter("ignore")
    quiet.disable_progress_bar()
    torch.set_num_threads(1)  # such small models gain nothing by more
    if save is not None:
        for family in families or tuple(FAMILIES):
            draw(family, 0).save_pretrained(save / family)
        return
    click.echo(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for way in ways or tuple(WAYS):
        tallies = {family: Tally() for family in families or FAMILIES}
        for seed in range(draws if way == next(iter(WAYS)) else others):
            for family, tally in tallies.items():
                measure(family, way, seed, tally)
        for family, tally in tallies.items():
            if tally.draws:
                click.echo(tally.row(family, way))


if __name__ == "__main__":
    main()
