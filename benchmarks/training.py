"""A small model that is trained for a minute, so that its sentences end where real ones do."""

import json
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.configurations import Size
from benchmarks.models import DEMO, SIZES, config_of
from benchmarks.systems import SPECIAL_IDS
from tfexport.model_src import Transformer
from tfexport.model_src.build import build_transformer

UNK, PAD, BOS, EOS = range(4)  # ids of the demo's tokenizer
_BATCH, _PEAK_RATE, _WARM_UP = 48, 1e-3, 60  # of the learning rate, in steps


def pairs() -> list[tuple[list[int], list[int]]]:
    """The demo's test set as ids: German with the end token, English without."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    lines = (DEMO / "test.tsv").read_text(encoding="utf-8").splitlines()

    def ids(column: int) -> list[list[int]]:
        texts = [line.split("\t")[column] for line in lines]
        return [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return [([*source, EOS], target) for source, target in zip(ids(0), ids(1), strict=True)]


def train(seconds: float) -> Transformer:
    """A model of the size "small", but for its vocabulary, after so many seconds of training."""
    torch.manual_seed(0)
    data = pairs()
    vocabulary = 1 + max(max(source + target) for source, target in data)
    small = SIZES["small"]
    model = build_transformer(
        config_of(Size(small.d_model, small.layers, small.d_ff, vocabulary), PAD, BOS, EOS, UNK)
    )
    for name, parameter in model.named_parameters():
        if name.endswith("embedding.tokens.weight"):
            torch.nn.init.normal_(parameter, std=small.d_model**-0.5)
        elif parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / _WARM_UP))
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = [data[int(i)] for i in torch.randint(len(data), (_BATCH,))]
        source = _padded([source for source, _ in chosen])
        target = _padded([[BOS, *target, EOS] for _, target in chosen])
        logits = model(source, source != PAD, target[:, :-1], target[:, :-1] != PAD)
        loss = loss_of(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval().requires_grad_(False)


def prepare_trained(folder: Path, seconds: float) -> Path:
    """Write what the systems load, unless it is there; the checkpoint's path."""
    from benchmarks.peers import save_ctranslate2
    from tfexport.export import export, quantize
    from tfexport.model_src import load_checkpoint, save_checkpoint

    checkpoint, ready = folder / "model.safetensors", folder / SPECIAL_IDS
    if ready.exists():
        return checkpoint
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(train(seconds), checkpoint, force=True)
    export(checkpoint, folder / "a.bundle", force=True)
    quantize(folder / "a.bundle", folder / "int8.bundle", force=True)
    loaded = load_checkpoint(checkpoint)
    save_ctranslate2(loaded, folder / "ctranslate2")
    save_ctranslate2(loaded, folder / "ctranslate2-int8", "int8")
    ready.write_text(json.dumps({"start": BOS, "eos": EOS, "pad": PAD}))
    return checkpoint


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
