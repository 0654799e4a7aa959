"""Steps that were found in a forward, compared with a layout of the same weights and no cache.

python -m benchmarks.found_steps [small|base]

The model is the one of PyTorch's tutorial, an ``nn.Transformer`` that is batch second, with random
weights. All bundles decode with onnxruntime and one thread, in turn.
"""

import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.models import SIZES
from tfexport.export import Input, export
from tfexport.runtime import Translator

BATCHES = (1, 8, 32)
ROUNDS, LENGTH, SOURCE = 9, 60, 20
HEADS = {"small": 4, "base": 8}
WORDS = {"small": 8_000, "base": 16_000}
IDS = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
NEVER = -1e4  # added to the logit of the end token
# A decode without a cache takes this many rows at most.
MOST_WITHOUT_CACHE = 8


class Tokens(nn.Module):
    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return found


class Positions(nn.Module):
    pos_embedding: Tensor

    def __init__(self, size: int, length: int = 128) -> None:
        super().__init__()
        rate = torch.exp(-math.log(10000) * torch.arange(0, size, 2) / size)
        angles = torch.arange(length).unsqueeze(1) * rate
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("pos_embedding", table.unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_embedding[: x.size(0)]


class Tutorial(nn.Module):
    """(B, S) and (B, T) ids to logits (B, T, V); all inside is batch second."""

    def __init__(self, name: str) -> None:
        super().__init__()
        size, words = SIZES[name], WORDS[name]
        self.transformer = nn.Transformer(
            size.d_model, HEADS[name], size.layers, size.layers, size.d_ff
        )
        self.generator = nn.Linear(size.d_model, words)
        self.src_tok_emb, self.tgt_tok_emb = (Tokens(words, size.d_model) for _ in range(2))
        self.positional_encoding = Positions(size.d_model)
        with torch.no_grad():
            self.generator.bias[IDS["eos_id"]] = NEVER

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == IDS["pad_id"]
        x = self.positional_encoding(self.src_tok_emb(source.t()))
        y = self.positional_encoding(self.tgt_tok_emb(target.t()))
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        hidden = self.transformer(
            x, y, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        logits: Tensor = self.generator(hidden).transpose(0, 1)
        return logits


class WithoutCache(nn.Module):
    """``encode`` and ``decode`` of docs/modules.md, which compute all again for every token."""

    def __init__(self, model: Tutorial) -> None:
        super().__init__()
        self.model = model

    def encode(self, ids: Tensor) -> Tensor:
        return ids

    def decode(self, tokens: Tensor, ids: Tensor) -> Any:
        return self.model(ids, tokens)


def write_bundles(name: str, folder: Path) -> dict[str, Translator]:
    """The bundles of one size, open."""
    torch.manual_seed(0)
    model = Tutorial(name).eval()
    torch.save(model.state_dict(), folder / "m.pt")
    settings = [f"num_heads={HEADS[name]}", *(f"{key}={value}" for key, value in IDS.items())]
    export(folder / "m.pt", folder / "layout.bundle", verify=False, settings=settings)
    ids = Input("input_ids", "int64", ("batch", "source_length"), below=WORDS[name])
    given: dict[str, Any] = {
        "inputs": [ids],
        "max_length": 100,
        "verify": False,
        "recognise": False,
        **IDS,
    }
    export(model, folder / "found.bundle", **given)
    export(WithoutCache(model), folder / "without a cache.bundle", **given)
    return {
        path.stem: Translator(path, threads=1, engine="onnxruntime")
        for path in sorted(folder.glob("*.bundle"))
    }


def measure(translators: dict[str, Translator], rows: list[list[int]]) -> dict[str, list[float]]:
    """Tokens a second of each bundle, in rounds; the first of which does not count."""
    speeds: dict[str, list[float]] = {name: [] for name in translators}
    tokens: dict[str, list[list[int]]] = {}
    for done in range(ROUNDS + 1):
        for name, translator in translators.items():
            begun = time.perf_counter()
            found = translator.generate(rows, max_length=LENGTH)
            taken = time.perf_counter() - begun
            tokens[name] = [list(each.hypotheses[0].tokens) for each in found]
            if done:
                speeds[name].append(sum(map(len, tokens[name])) / taken)
    unlike = [name for name, found in tokens.items() if found != tokens["found"]]
    if unlike:
        click.echo(f"  other tokens: {', '.join(unlike)}")
    return speeds


@click.command()
@click.argument("sizes", nargs=-1, type=click.Choice(tuple(HEADS)))
def main(sizes: tuple[str, ...]) -> None:
    """Print tokens a second of models of the named SIZES, or of all."""
    warnings.simplefilter("ignore")
    for name in sizes or HEADS:
        with tempfile.TemporaryDirectory() as folder:
            translators = write_bundles(name, Path(folder))
            generator = torch.Generator().manual_seed(1)
            for batch in BATCHES:
                drawn = torch.randint(3, WORDS[name], (batch, SOURCE), generator=generator)
                measured = {
                    kind: translator
                    for kind, translator in translators.items()
                    if kind in ("found", "layout") or batch <= MOST_WITHOUT_CACHE
                }
                speeds = measure(measured, drawn.tolist())
                figures = []
                for kind, of_kind in speeds.items():
                    pairs = zip(speeds["found"], of_kind, strict=True)
                    ratio = statistics.median(found / other for found, other in pairs)
                    speed = statistics.median(of_kind)
                    figures.append(
                        f"{kind} {speed:,.0f}" + ("" if kind == "found" else f" ({ratio:.2f})")
                    )
                click.echo(f"{name}, batch {batch}, tokens a second: {', '.join(figures)}")
            for translator in translators.values():
                translator.close()


if __name__ == "__main__":
    main()
