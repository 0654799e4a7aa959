"""The comparison of a beam graph's record with eager PyTorch.

Every hypothesis of the record is run through eager PyTorch without a cache. Compared are the
log-probability of each candidate and, at each step, the highest summed log-probabilities, which
shows that no better candidate was missed. Values are compared, not tokens, so ties do not matter.

Axes: B sentences, K hypotheses, N = 2 K candidates, T target, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from tfexport.export.parity.bundle import OpenBundle
from tfexport.export.parity.compare import Run, compare_values
from tfexport.export.parity.eager_run import Eager, EagerRun, Floats, Ids
from tfexport.export.parity.report import Comparison
from tfexport.runtime.model.interface import Model, Source

BEAM_SIZE, STEPS = 3, 8


def compare_beam(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare one search over the rows of a run; nothing if the vocabulary is too small for it."""
    yield from compare_beams(eager, run, bundle.model)


def compare_beams(eager: Eager, run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_beam`` in any engine."""
    memory, beams = eager.reference.encode(run.case.ids, run.case.mask), beam_size(model)
    memory = memory.repeat_interleave(beams, dim=0)
    mask = run.case.mask.repeat_interleave(beams, dim=0)

    def last_logits(prefixes: torch.Tensor) -> torch.Tensor:
        def compute() -> torch.Tensor:
            return eager.reference.decode(memory, mask, prefixes, last_only=True)[:, -1]

        return run.once(f"beams of {prefixes.shape[1]}", prefixes.numpy(), compute)

    longest = eager.config.longest
    steps = STEPS if longest is None else min(STEPS, longest)
    yield from compare_search(model, run.case.rows, run, steps, last_logits)


def beam_size(model: Model) -> int:
    """K of the comparison; less than 2 if the vocabulary is too small for a graph of beams."""
    return min(BEAM_SIZE, model.vocab_size // 2)


def compare_search(
    model: Model,
    sources: Sequence[Source],
    run: Run,
    steps: int,
    last_logits: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[Comparison]:
    """Compare one search in a graph with eager logits.

    Args:
        model: with a beam graph.
        sources: of the sentences.
        run: for the special ids, and the shape that is reported.
        steps: of the search.
        last_logits: of eager PyTorch, prefixes (B * K, T) to (B * K, V).
    """
    beams = beam_size(model)
    if beams < 2:
        return
    batch, ids = len(sources), run.special_ids
    # More finished hypotheses than there can be, so that all steps are taken.
    record = model.beam(sources, beams, beams * steps + 1, steps)
    prefixes = np.full((batch, beams, 1), ids.decoder_start)
    sums = np.where(np.arange(beams) == 0, 0.0, -np.inf)[None].repeat(batch, axis=0)
    log_probs, best_sums, eager_sums = [], [], []
    for tokens, parents, own in zip(*record, strict=True):
        flat = torch.from_numpy(prefixes.reshape(batch * beams, -1))
        scored = last_logits(flat).log_softmax(-1).numpy().reshape(batch, beams, -1)
        expected = scored[np.arange(batch)[:, None], parents, tokens]
        log_probs.append((own, expected))
        every = (sums[:, :, None] + scored).reshape(batch, -1)
        eager_sums.append(-np.sort(-every, axis=-1)[:, : tokens.shape[-1]])
        totals = np.take_along_axis(sums, parents, -1) + expected
        best_sums.append(totals)
        kept = np.argsort(tokens == ids.eos, axis=-1, kind="stable")[:, :beams]
        sums = np.take_along_axis(totals, kept, -1)
        prefixes = _continue(prefixes, tokens, parents, kept)
    ours, theirs = (np.stack(values) for values in zip(*log_probs, strict=True))
    yield compare_values("beam", run.shape, ours, theirs)
    yield compare_values("beam", run.shape, _floats(best_sums), _floats(eager_sums))


def _continue(prefixes: Ids, tokens: Ids, parents: Ids, kept: Ids) -> Ids:
    """The prefixes (B, K, T) of one step to those of the next, (B, K, T + 1)."""
    before = np.take_along_axis(parents, kept, -1)
    newest = np.take_along_axis(tokens, kept, -1)
    moved = np.take_along_axis(prefixes, before[:, :, None], 1)
    return np.concatenate([moved, newest[:, :, None]], axis=-1)


def _floats(values: list[Floats]) -> Floats:
    return np.stack(values).astype(np.float32)
