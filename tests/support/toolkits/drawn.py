"""Weights far from their initial values, by shape, and batches to compare on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfexport.export.reference import build_reference
from tfexport.export.reference.original import ModuleReference
from tfexport.model_src import Checkpoint

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A checkpoint that was written, and what is to be read in it.

    Attributes:
        path: the file, or the folder.
        config: config values that its options mean.
        vocab: sizes of source and target.
        settings: what the file does not say.
    """

    path: Path
    config: Mapping[str, Any]
    vocab: tuple[int, int]
    settings: list[str] = field(default_factory=list)


def draw(shapes: Sizes, seed: int) -> dict[str, Tensor]:
    """A tensor of each shape; vectors that scale are around 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            drawn[name] = 1.5 * noise / shape[-1] ** 0.5
        else:
            scales = name.endswith(("weight", "_scale", "_scale_pre"))
            drawn[name] = 0.3 * noise + (1.0 if scales else 0.0)
    return drawn


def both(checkpoint: Checkpoint, vocab: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities (3, 7, V) of the model and of its reference, on rows of unequal lengths."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, vocab[0], (3, 9), generator=generator)
    target = torch.randint(4, vocab[1], (3, 7), generator=generator)
    target[:, 0] = checkpoint.config.decoder_start_id or 0
    mask = (torch.arange(9)[None] < torch.tensor([[9], [4], [1]])).long()
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    assert reference.no_original is None
    ours, theirs = (
        each.decode(each.encode(source, mask), mask, target).log_softmax(-1)
        for each in (ModuleReference(model, ""), reference)
    )
    return ours, theirs


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to max(1, |value|)."""
    return float(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max())
