"""Eager PyTorch over a grid of shapes: the side that every artifact is compared with.

Axes: B batch, S source, T target, V vocabulary, E model width.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tfexport.bundle import SpecialIds
from tfexport.export.parity.report import Comparison, ParityReport
from tfexport.export.reference import Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.progress import Progress, silent
from tfexport.runtime.model.bundle_model import pad

BATCHES = (1, 2, 8)
SOURCE_LENGTHS = (1, 7, 33)
LONGEST_SOURCE = 512
NEW_TOKENS = 32
# Of onnxruntime. More would wait for work while eager PyTorch runs, and take its cores by that.
THREADS = 1

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Shape = tuple[int, int]
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Case:
    """One batch: its rows, and the same padded, ids (B, S) and mask (B, S)."""

    rows: list[list[int]]
    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def shape(self) -> Shape:
        """(B, S)."""
        return self.ids.shape[0], self.ids.shape[1]


@dataclass(frozen=True)
class EagerRun:
    """Eager PyTorch's greedy decoding of one batch, without a cache.

    Attributes:
        case: the B rows.
        hidden: encoder states (B, S, E).
        tokens: (B, T), decoded past the end token, so that every row has T of them.
        logits: (B, T, V), those of each position from a run of their own over its whole prefix.
        special_ids: of the vocabularies.
    """

    case: Case
    hidden: torch.Tensor
    tokens: Ids
    logits: Floats
    special_ids: SpecialIds

    @property
    def shape(self) -> Shape:
        """(B, S)."""
        return self.case.shape

    @property
    def prefix(self) -> Ids:
        """The decoder's inputs that give ``logits``: the start token, then all tokens but one."""
        return start_with(self.special_ids.bos, self.tokens)


@dataclass(frozen=True)
class Eager:
    """Eager PyTorch of one checkpoint, to compare artifacts with.

    Attributes:
        config: of the checkpoint.
        model: the project's modules with the checkpoint's weights.
        reference: the original mathematics; see ``build_reference``.
    """

    config: TransformerConfig
    model: Transformer
    reference: Reference

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Eager":
        """Build both from a checkpoint."""
        model = checkpoint.build()
        return cls(checkpoint.config, model, build_reference(checkpoint, model))

    def decode(self, case: Case) -> EagerRun:
        """Decode greedily as tutorials do: the whole prefix again for every token."""
        config, special_ids = self.config, self.config.special_ids
        hidden = self.reference.encode(case.ids, case.mask)
        count = NEW_TOKENS if config.longest is None else min(NEW_TOKENS, config.longest)
        prefix = torch.full((len(case.rows), 1), special_ids.bos)
        logits = []
        for _ in range(count):
            last = self.reference.decode(hidden, case.mask, prefix, last_only=True)[:, -1]
            logits.append(last)
            prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
        tokens = prefix[:, 1:].numpy()
        return EagerRun(case, hidden, tokens, torch.stack(logits, dim=1).numpy(), special_ids)

    def decode_random(self, shape: Shape) -> EagerRun:
        """``decode`` random rows of a shape (B, S)."""
        return self.decode(random_case(self.config, *shape))


def run_grid(
    checkpoint: Checkpoint,
    compare: Callable[[Eager, Shape], Iterable[Comparison]],
    progress: Progress | None = None,
) -> ParityReport:
    """Compare at every shape of the grid.

    Args:
        checkpoint: of which eager PyTorch is built.
        compare: gives the comparisons at one shape (B, S); runs without gradients.
        progress: told after every shape.
    """
    return run_batches(checkpoint, grid(checkpoint.config), compare, progress)


def run_batches(
    checkpoint: Checkpoint,
    batches: Iterable[Batch],
    compare: Callable[[Eager, Batch], Iterable[Comparison]],
    progress: Progress | None = None,
    step: str = "comparing with eager PyTorch",
) -> ParityReport:
    """Compare batch by batch; ``run_grid`` for batches of any kind.

    Args:
        checkpoint: of which eager PyTorch is built.
        batches: what to compare at.
        compare: gives the comparisons of one batch; runs without gradients.
        progress: told after every batch.
        step: what it is told is being done.
    """
    eager = Eager.of(checkpoint)
    report = ParityReport(eager.reference.title, no_original=eager.reference.no_original)
    tell = progress or silent
    todo = list(batches)
    for done, batch in enumerate(todo):
        tell(step, done, len(todo))
        with torch.no_grad():
            report.comparisons.extend(compare(eager, batch))
    tell(step, len(todo), len(todo))
    return report


def grid(config: TransformerConfig) -> Iterator[Shape]:
    """The shapes to compare at: (B, S)."""
    limit = LONGEST_SOURCE if config.longest is None else min(LONGEST_SOURCE, config.longest)
    lengths = sorted({min(length, limit) for length in SOURCE_LENGTHS})
    yield from ((batch, length) for length in lengths for batch in BATCHES)
    if limit not in lengths:
        yield 1, limit


def random_case(config: TransformerConfig, batch: int, length: int) -> Case:
    """Random rows of different lengths, the first of them full."""
    generator = np.random.default_rng([batch, length])
    special_ids = config.special_ids
    special = {special_ids.pad, special_ids.bos, special_ids.eos}
    assert config.source_vocab_size is not None
    ordinary = [i for i in range(config.source_vocab_size) if i not in special] or [0]
    lengths = [length, *generator.integers(1, length + 1, size=batch - 1)]
    return make_case([generator.choice(ordinary, size=size).tolist() for size in lengths], config)


def make_case(rows: list[list[int]], config: TransformerConfig) -> Case:
    """Rows of source ids, padded to a batch."""
    ids, mask = pad(rows, config.special_ids.pad)
    return Case(rows, torch.from_numpy(ids), torch.from_numpy(mask))


def start_with(bos_id: int, tokens: Ids) -> Ids:
    """Decoded tokens (B, T) to the decoder inputs (B, T) that they were decoded from."""
    start = np.full((len(tokens), 1), bos_id)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
