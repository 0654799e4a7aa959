"""Comparison of greedy and beam search graphs with eager PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.export.parity.bundle import OpenBundle, compare_modules
from tfexport.export.parity.compare import ReferenceRun, compare_sequences, compare_values
from tfexport.export.parity.eager_run import (
    THREADS,
    Case,
    Eager,
    EagerRun,
    Floats,
    Ids,
    Shape,
    run_grid,
    start_with,
)
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.report import Comparison, ParityReport
from tfexport.export.rounding import Rounding
from tfexport.graph_io import GraphSpec
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.model.interface import BeamRecord, Generated, Model, Source
from tfexport.runtime.model.session import open_session


def compare_generate(
    path: Path, spec: GraphSpec, checkpoint: Checkpoint, plan: ComparisonPlan | None = None
) -> ParityReport:
    """Compare a generate graph with eager PyTorch's greedy decoding.

    Args:
        path: the path of the self-contained file.
        spec: its inputs and outputs.
        checkpoint: the checkpoint that it was exported from.
        plan: what to compare.
    """
    session = open_session(path, THREADS)
    outputs = [tensor.name for tensor in spec.outputs]

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        run = eager.run(batch)
        feeds = {
            graph_io.INPUT_IDS: run.case.ids.numpy(),
            graph_io.ATTENTION_MASK: run.case.mask.numpy(),
            graph_io.MAX_LENGTH: np.array(run.tokens.shape[1]),
        }
        if eager.runs_own_code:
            yield from compare_modules(eager, run)
        made = Generated(*session.run(outputs, feeds))
        yield from _compare_generated(eager, eager.decode_by_rules(run), made)

    return run_grid(checkpoint, compare, plan)


def compare_generate_in_bundle(
    eager: Eager, run: EagerRun, bundle: OpenBundle
) -> Iterator[Comparison]:
    """Compare ``generate`` of the runtime's model."""
    made = bundle.model.generate(run.case.rows, run.tokens.shape[1])
    yield from _compare_generated(eager, eager.decode_by_rules(run), made)


def _compare_generated(eager: Eager, run: EagerRun, made: Generated) -> Iterator[Comparison]:
    yield from compare_sequences(run, made.sequences, made.scores)
    if made.attention is not None:
        # Transposed to (B, T, L, H, S); weights after the end token are undefined.
        ours = made.attention.transpose(0, 3, 1, 2, 4)
        weights, noise = attention_weights(eager, run, made.sequences)
        theirs = weights.transpose(0, 3, 1, 2, 4)
        ends = made.sequences == run.special_ids.eos
        kept = np.cumsum(ends, axis=1) - ends == 0
        yield compare_values("attention", run.shape, ours[kept], theirs[kept], noise)


def eager_attention(eager: Eager, run: EagerRun) -> tuple[Floats, float]:
    """``attention_weights`` of the tokens of a run."""
    return run.once("attention", run.tokens, lambda: attention_weights(eager, run, run.tokens))


@torch.no_grad()
def attention_weights(eager: Eager, run: EagerRun, sequences: Ids) -> tuple[Floats, float]:
    """The cross-attention weights of decoded rows, (B, T) to (B, L, H, T, S), and their noise.

    They come from the project's own modules, as the originals do not return theirs; the modules are
    compared with the originals in other stages.
    """
    prefix = torch.from_numpy(start_with(run.special_ids.decoder_start, sequences))

    def compute() -> list[torch.Tensor]:
        model, case = eager.model, run.case
        _, cross = model.encode(case.ids, case.mask)
        padding, causal, _ = model.biases(case.mask, torch.ones_like(prefix))
        x = model.target_embedding(prefix, 0)
        past = model.decoder.empty_cache(x)
        _, _, weights = model.decoder(x, causal, past, cross, padding)
        return [torch.stack(weights, dim=1)]

    found: Floats = compute()[0].numpy()
    (noise,) = eager.module_rounding.measure(compute, [found], ())
    return found, noise


# Beam search: every hypothesis of the graph's record is run through eager PyTorch without a cache.
# The log-probability of each candidate is compared and, at each step, the highest summed
# log-probabilities, which shows that no better candidate was missed. Values are compared, not
# tokens, so ties do not matter.
#
# Axes: B sentences, K hypotheses, N = 2 K candidates, T target, V vocabulary.


BEAM_SIZE, STEPS = 3, 8
# From the prefixes of every step, (B * K, T) each, to the logits (B * K, V) that follow them.
Scorer = Callable[[Sequence[torch.Tensor]], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class Search:
    """A beam search of ``steps`` steps over some sentences, in one engine with a beam graph."""

    model: Model
    sources: Sequence[Source]
    steps: int


def compare_beam(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare one search over the rows of a run, unless the vocabulary is too small for it."""
    yield from compare_beams(eager, run, bundle.model)


def compare_beams(eager: Eager, run: EagerRun, model: Model) -> Iterator[Comparison]:
    """``compare_beam`` for any engine."""
    beams = beam_size(model)
    mask = run.case.mask.repeat_interleave(beams, dim=0)

    def score(prefixes: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        memory = eager.reference.encode(run.case.ids, run.case.mask)
        memory = memory.repeat_interleave(beams, dim=0)
        with eager.knowing(memory, mask, prefixes):
            for each in prefixes:
                yield eager.reference.decode(memory, mask, each, last_only=True)[:, -1]

    longest = eager.config.longest
    steps = STEPS if longest is None else min(STEPS, longest)
    search = Search(model, run.case.rows, steps)
    yield from compare_search(search, run, score, eager.rounding)


def beam_size(model: Model) -> int:
    """K of the comparison; less than 2 if the vocabulary is too small for a graph of beams."""
    return min(BEAM_SIZE, model.vocab_size // 2)


def compare_search(
    search: Search, run: ReferenceRun, score: Scorer, rounding: Rounding
) -> Iterator[Comparison]:
    """Compare one search in a graph with eager logits.

    Args:
        search: the search of an engine.
        run: a run of eager PyTorch, for its special ids and shape.
        score: gives the last logits of eager PyTorch.
        rounding: the rounding of the eager code.
    """
    beams = beam_size(search.model)
    if beams < 2:
        return
    # More finished hypotheses than there can be, so that all steps are taken.
    record = search.model.beam(search.sources, beams, beams * search.steps + 1, search.steps)

    prefixes = list(_prefixes(record, run.special_ids, beams))
    flat = [torch.from_numpy(each.reshape(len(search.sources) * beams, -1)) for each in prefixes]

    def compute() -> list[torch.Tensor]:
        return _totals(record, score(flat), run.special_ids.eos, beams)

    def known() -> tuple[list[Floats], list[float]]:
        eager = [each.numpy() for each in compute()]
        return eager, rounding.measure(compute, eager)

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
