"""Comparison of greedy and beam search graphs with eager PyTorch."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from tfexport.bundle import SpecialIds
from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.parity.compare import compare_sequences, compare_values
from tfexport.export.parity.eager_run import EagerRun, Floats, Ids, start_with
from tfexport.export.parity.opened import OpenBundle, OpenFile
from tfexport.export.report import Comparison
from tfexport.runtime.model.interface import BeamRecord, Model


def compare_generate(run: EagerRun, artifact: OpenBundle | OpenFile) -> Iterator[Comparison]:
    """Compare tokens and scores of a greedy search by the model's own rules, and its attention."""
    made = artifact.generate(run)
    run = run.by_rules
    yield from compare_sequences(run, made.sequences, made.scores)
    if made.attention is not None:
        # Transposed to (B, T, L, H, S); weights after the end token are undefined.
        ours = made.attention.transpose(0, 3, 1, 2, 4)
        weights, noise = attention_weights(run, made.sequences)
        theirs = weights.transpose(0, 3, 1, 2, 4)
        ends = made.sequences == run.special_ids.eos
        kept = np.cumsum(ends, axis=1) - ends == 0
        yield compare_values("attention", run.shape, ours[kept], theirs[kept], noise)


def eager_attention(run: EagerRun) -> tuple[Floats, float]:
    """``attention_weights`` of the tokens of a run."""
    return run.once("attention", run.tokens, lambda: attention_weights(run, run.tokens))


@torch.no_grad()
def attention_weights(run: EagerRun, sequences: Ids) -> tuple[Floats, float]:
    """The cross-attention weights of decoded rows, (B, T) to (B, L, H, T, S), and their noise.

    They come from the project's own modules, as the originals do not return theirs; the modules are
    compared with the originals in other stages.
    """
    eager = run.eager
    assert isinstance(eager, EagerCheckpoint)
    prefix = torch.from_numpy(start_with(run.special_ids.decoder_start, sequences))
    ids, mask = eager.padded(run.rows)

    def compute() -> list[torch.Tensor]:
        model = eager.model
        _, cross = model.encode(ids, mask)
        padding, causal, _ = model.biases(mask, torch.ones_like(prefix))
        x = model.target_embedding(prefix, 0)
        past = model.decoder.empty_cache(x)
        _, _, weights = model.decoder(x, causal, past, cross, padding)
        return [torch.stack(weights, dim=1)]

    values: Floats = compute()[0].numpy()
    (noise,) = eager.module_rounding.measure(compute, [values], ())
    return values, noise


# Beam search: every hypothesis of the graph's record is run through eager PyTorch without a cache.
# The log-probability of each candidate is compared and, at each step, the highest summed
# log-probabilities, which shows that no better candidate was missed. Values are compared, not
# tokens, so ties do not matter.
#
# Axes: B sentences, K hypotheses, N = 2 K candidates, T target, V vocabulary.


BEAM_SIZE, STEPS = 3, 8


def compare_beam(run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare one search over the rows of a run, unless the vocabulary is too small for it."""
    yield from compare_beams(run, bundle.model)


def compare_beams(run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_beam`` for any engine."""
    eager, beams = run.eager, min(BEAM_SIZE, model.vocab_size // 2)
    if beams < 2:
        return
    steps = min(STEPS, eager.steps)
    # More finished hypotheses than there can be, so that all steps are taken.
    record = model.beam(run.rows, beams, beams * steps + 1, steps)

    prefixes = list(_prefixes(record, run.special_ids, beams))
    flat = [torch.from_numpy(each.reshape(len(run.rows) * beams, -1)) for each in prefixes]

    def compute() -> list[torch.Tensor]:
        return _totals(record, eager.score(run, beams, flat), run.special_ids.eos, beams)

    def known() -> tuple[list[Floats], list[float]]:
        values = [each.numpy() for each in compute()]
        return values, eager.rounding.measure(compute, values)

    made = np.stack([record.tokens, record.parents])
    (log_probs, totals, best), noise = run.once("beam", made, known)
    ours = record.log_probs
    # The search was measured by few draws, the logits that it sums by many.
    of_each, of_sums = (max(it, run.noise.log_probs) for it in (noise[0], max(noise[1:])))
    yield compare_values("beam", run.shape, ours, log_probs, of_each)
    yield compare_values("beam", run.shape, totals, best, of_sums)


def _prefixes(record: BeamRecord, ids: SpecialIds, beams: int) -> Iterator[Ids]:
    """The prefixes (B, K, T) from which a search chose the candidates of each step."""
    found = np.full((record.tokens.shape[1], beams, 1), ids.decoder_start)
    for tokens, parents in zip(record.tokens, record.parents, strict=True):
        yield found
        found = _continue(found, tokens, parents, _kept(tokens, ids.eos, beams))


def _kept(tokens: Ids, eos: int, beams: int) -> Ids:
    """The candidates (B, N) of a step that the next one continues, (B, K)."""
    found: Ids = np.argsort(tokens == eos, axis=-1, kind="stable")[:, :beams]
    return found


def _totals(
    record: BeamRecord, logits: Iterable[torch.Tensor], eos: int, beams: int
) -> list[torch.Tensor]:
    """From the logits (B * K, V) of every step what a record is compared with.

    Returns:
        Log-probabilities of the candidates, their sums, and the highest sums; (T, B, N) each.
    """
    batch = record.tokens.shape[1]
    sums = torch.full((batch, beams), -torch.inf)
    sums[:, 0] = 0.0
    rows, made = torch.arange(batch)[:, None], list[tuple[torch.Tensor, ...]]()
    for tokens, parents, last in zip(record.tokens, record.parents, logits, strict=True):
        scored = last.log_softmax(-1).reshape(batch, beams, -1)
        places = torch.from_numpy(parents)
        expected = scored[rows, places, torch.from_numpy(tokens)]
        every = (sums[:, :, None] + scored).reshape(batch, -1)
        totals = sums.gather(-1, places) + expected
        made.append((expected, totals, every.topk(tokens.shape[-1], dim=-1).values))
        sums = totals.gather(-1, torch.from_numpy(_kept(tokens, eos, beams)))
    return [torch.stack(each) for each in zip(*made, strict=True)]


def _continue(prefixes: Ids, tokens: Ids, parents: Ids, kept: Ids) -> Ids:
    """The prefixes (B, K, T) of one step to those of the next, (B, K, T + 1)."""
    before = np.take_along_axis(parents, kept, -1)
    newest = np.take_along_axis(tokens, kept, -1)
    moved = np.take_along_axis(prefixes, before[:, :, None], 1)
    return np.concatenate([moved, newest[:, :, None]], axis=-1)
