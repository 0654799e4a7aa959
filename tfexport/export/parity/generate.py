"""The comparison of a generate graph with eager PyTorch: sequences, scores and attention."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tfexport import graph_io
from tfexport.export.parity.bundle import OpenBundle, compare_modules
from tfexport.export.parity.compare import compare_sequences, compare_values
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
from tfexport.export.parity.plan import Plan
from tfexport.export.parity.report import Comparison, ParityReport
from tfexport.graph_io import GraphSpec
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.model.interface import Generated
from tfexport.runtime.model.session import open_session


def compare_generate(
    path: Path, spec: GraphSpec, checkpoint: Checkpoint, plan: Plan | None = None
) -> ParityReport:
    """Compare a generate graph with eager PyTorch's greedy decoding.

    Args:
        path: of the self-contained file.
        spec: its inputs and outputs.
        checkpoint: from which it was exported.
        plan: of what is compared.
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
