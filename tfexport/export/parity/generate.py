"""Eager PyTorch against a generate graph: whole sequences and their scores, over the same grid."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from tfexport import graph_io
from tfexport.export.parity.eager_run import (
    THREADS,
    Case,
    Floats,
    Progress,
    eager_greedy,
    grid,
    random_case,
    walk,
)
from tfexport.export.parity.report import (
    Comparison,
    ParityReport,
    compare_sequences,
    compare_values,
)
from tfexport.export.reference import Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.bundle_model import Generated
from tfexport.runtime.model.session import open_session


def compare_generate(
    path: Path, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch's uncached loop beside a generate graph.

    Args:
        path: the graph, self-contained.
        checkpoint: what it was exported from.
        progress: told after every shape.
    """
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    session = open_session(path, THREADS)
    report = ParityReport(reference.title)
    for shape in walk(grid(checkpoint.config), progress):
        case = random_case(checkpoint.config, *shape)
        report.comparisons.extend(_compare_case(case, model, reference, session))
    return report


def _compare_case(
    case: Case, model: Transformer, reference: Reference, session: InferenceSession
) -> Iterator[Comparison]:
    hidden = reference.encode(case.ids, case.mask)
    tokens, eager = eager_greedy(case, model.config, reference, hidden)
    feeds = {
        graph_io.INPUT_IDS: case.ids.numpy(),
        graph_io.ATTENTION_MASK: case.mask.numpy(),
        graph_io.MAX_LENGTH: np.array(tokens.shape[1]),
    }
    yield from compare_generated(case, model, Generated(*session.run(None, feeds)), tokens, eager)


def compare_generated(
    case: Case, model: Transformer, made: Generated, tokens: NDArray[np.int64], eager: Floats
) -> Iterator[Comparison]:
    """Compare what a generate graph gave with eager's tokens (B, T) and logits (B, T, V)."""
    eos_id = model.config.eos_id
    assert eos_id is not None
    yield from compare_sequences(case, made.sequences, made.scores, tokens, eager, eos_id)
    if made.attention is not None:
        # Turned to (B, T, L, H, S): what follows the end token means nothing.
        ours = made.attention.transpose(0, 3, 1, 2, 4)
        theirs = attention_weights(case, model, made.sequences).transpose(0, 3, 1, 2, 4)
        ends = made.sequences == eos_id
        kept = np.cumsum(ends, axis=1) - ends == 0
        yield compare_values("attention", case.shape, ours[kept], theirs[kept])


@torch.no_grad()
def attention_weights(case: Case, model: Transformer, sequences: NDArray[np.int64]) -> Floats:
    """The modules' cross-attention weights over the decoded rows: (B, T) to (B, L, H, T, S).

    The originals keep theirs to themselves; that the modules equal them is compared elsewhere.
    """
    start = np.full((len(case.rows), 1), model.config.bos_id)
    prefix = torch.from_numpy(np.concatenate([start, sequences[:, :-1]], axis=1))
    _, cross = model.encode(case.ids, case.mask)
    padding, causal, _ = model.biases(case.mask, torch.ones_like(prefix))
    x = model.target_embedding(prefix, 0)
    past = model.decoder.empty_cache(x)
    _, _, weights = model.decoder(x, causal, past, cross, padding)
    stacked: Floats = torch.stack(weights, dim=1).numpy()
    return stacked
