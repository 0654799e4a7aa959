"""What is compared at: a grid of shapes, random rows for each, and eager's answer to them.

Axes: B batch, S source, T target, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tfexport.export.reference import Reference
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.model.bundle_model import pad

BATCHES = (1, 2, 8)
SOURCE_LENGTHS = (1, 7, 33)
LONGEST_SOURCE = 512
NEW_TOKENS = 32
# Of onnxruntime. More would wait for work while eager PyTorch runs, and take its cores by that.
THREADS = 1

Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Case:
    """One batch: its rows, and the same padded, ids (B, S) and mask (B, S)."""

    rows: list[list[int]]
    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(B, S)."""
        return self.ids.shape[0], self.ids.shape[1]


def walk(shapes: Iterable[tuple[int, int]], progress: Progress | None) -> Iterator[tuple[int, int]]:
    """The shapes one by one, with word of each to ``progress``."""
    todo = list(shapes)
    for done, shape in enumerate(todo):
        if progress is not None:
            progress("comparing with eager PyTorch", done, len(todo))
        yield shape
    if progress is not None:
        progress("comparing with eager PyTorch", len(todo), len(todo))


def grid(config: TransformerConfig) -> Iterator[tuple[int, int]]:
    """The shapes to compare at: (B, S)."""
    limit = LONGEST_SOURCE if config.longest is None else min(LONGEST_SOURCE, config.longest)
    lengths = sorted({min(length, limit) for length in SOURCE_LENGTHS})
    yield from ((batch, length) for length in lengths for batch in BATCHES)
    if limit not in lengths:
        yield 1, limit


def random_case(config: TransformerConfig, batch: int, length: int) -> Case:
    """Random rows of different lengths, the first of them full."""
    generator = np.random.default_rng([batch, length])
    special = {config.pad_id, config.bos_id, config.eos_id}
    assert config.source_vocab_size is not None
    ordinary = [i for i in range(config.source_vocab_size) if i not in special] or [0]
    lengths = [length, *generator.integers(1, length + 1, size=batch - 1)]
    rows = [generator.choice(ordinary, size=size).tolist() for size in lengths]
    ids, mask = pad(rows, config.pad_id or 0)
    return Case(rows, torch.from_numpy(ids), torch.from_numpy(mask))


def eager_greedy(
    case: Case, config: TransformerConfig, reference: Reference, hidden: torch.Tensor
) -> tuple[NDArray[np.int64], Floats]:
    """The tutorial's uncached loop: the whole prefix again for every token, past the end token.

    Returns:
        tokens: (B, T).
        logits: (B, T, V), each from its own run over its own prefix.
    """
    assert config.bos_id is not None
    count = NEW_TOKENS if config.longest is None else min(NEW_TOKENS, config.longest)
    prefix = torch.full((len(case.rows), 1), config.bos_id)
    logits = []
    for _ in range(count):
        last = reference.decode(hidden, case.mask, prefix, last_only=True)[:, -1]
        logits.append(last)
        prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
    return prefix[:, 1:].numpy(), torch.stack(logits, dim=1).numpy()
