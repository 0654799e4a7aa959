"""Random models whose rows end at different lengths, somewhat as those of a trained one.

A column of the position tables is a ramp, which no sublayer writes to but the first
cross-attention: it takes the mean of the source's ramp away. So the column says how far a row has
come in comparison with its source, and the end token's logit is made of it.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.configurations import REPOSITORY, Size
from benchmarks.models import NEVER, make_random
from tfexport.model_src import Transformer

_GAIN, _STEEPNESS, _RAMP = 1.6, 2.0, 0.1
_MEAN, LONGEST = 13.0, 40  # tokens of a row
_WRITERS = ("out_proj.weight", "out_proj.bias", "down_proj.weight", "down_proj.bias")


def sentences(count: int) -> list[list[int]]:
    """Ids of real text: one to three of the demo's test sentences together, with an end token."""
    from tokenizers import Tokenizer

    folder = REPOSITORY / "examples" / "de-en"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = (folder / "test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[0] for line in lines]
    joined = [
        " ".join(texts[(3 * i + k) % len(texts)] for k in range(1 + i % 3)) for i in range(count)
    ]
    return [[*found.ids, 2] for found in tokenizer.encode_batch(joined, add_special_tokens=False)]


def make_ending(size: Size) -> Transformer:
    """A random model whose rows have 13 tokens on the mean, and 40 at most if asked for that."""
    model: Any = make_random(size)
    for embedding in (model.source_embedding, model.target_embedding):
        table = embedding.positions.table
        embedding.tokens.weight[:, 0] = 0
        table[:, 0] = _RAMP * torch.arange(len(table))
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        for name, parameter in layer.named_parameters():
            if name.endswith(_WRITERS):
                parameter[0] = 0
            elif name.endswith("norm.weight"):
                parameter[0] = _GAIN
    first = model.decoder.layers[0].cross_attn
    first.v_proj.weight[0], first.v_proj.bias[0] = 0, 0
    first.v_proj.weight[0, 0], first.out_proj.weight[0, 0] = 1, -1
    model.output_proj.weight[2] = 0
    model.output_proj.weight[2, 0] = _STEEPNESS
    model.output_proj.bias[2] = _end_bias(model)
    return cast(Transformer, model)


def _end_bias(model: Any) -> float:
    """The bias of the end token with which rows have the wanted mean length."""
    ends, others = _logits(model, sentences(96))

    def mean(bias: float) -> float:
        ended = ends + bias > others
        lengths = torch.where(ended.any(0), ended.int().argmax(0) + 1, LONGEST)
        return float(lengths.float().mean())

    low, high = -200.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) > _MEAN else (low, middle)
    return high


def _logits(model: Any, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, B) each: the logit of the end token without its bias, and the highest other."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    ends, others = [], []
    with torch.inference_mode():
        _, cross = model.encode(ids, mask)
        past = model.decoder.empty_cache(cross[0])
        token = torch.full((len(rows), 1), 1)
        for _ in range(LONGEST):
            logits, past = model.step(token, past, cross, mask)
            newest = logits[:, -1].clone()
            ends.append(newest[:, 2] - NEVER)
            newest[:, 2] = -torch.inf
            others.append(newest.max(-1).values)
            token = newest.argmax(-1, keepdim=True)
    return torch.stack(ends), torch.stack(others)


def prepare_ending(name: str, size: Size, folder: Path) -> None:
    """Write the bundle and CTranslate2's models, unless they are there."""
    from benchmarks.peers import save_ctranslate2
    from tfexport.export import export
    from tfexport.model_src import load_checkpoint, save_checkpoint

    ready = folder / "ready.json"
    if ready.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "model.safetensors"
    save_checkpoint(make_ending(size), checkpoint)
    export(checkpoint, folder / f"{name}.bundle", verify=False, force=True)
    loaded = load_checkpoint(checkpoint)
    save_ctranslate2(loaded, folder / "ctranslate2")
    save_ctranslate2(loaded, folder / "ctranslate2-int8", "int8")
    ready.write_text(json.dumps({"size": name}))
