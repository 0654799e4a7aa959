"""Eager PyTorch against a generate graph: whole sequences and their scores, over the same grid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport import graph_io
from tfexport.export.parity import (
    Case,
    Comparison,
    Floats,
    ParityReport,
    Progress,
    compare_tokens,
    compare_values,
    eager_greedy,
    grid,
    random_case,
    walk,
)
from tfexport.export.reference import Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.session import open_session


def compare_generate(
    path: Path, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch's uncached loop beside a generate graph.

    Args:
        path: the graph, self-contained.
        checkpoint: what it was exported from.
        progress: told after every shape.
    """
    reference = build_reference(checkpoint, checkpoint.build())
    session = open_session(path, threads=0)
    report = ParityReport(reference.title)
    for shape in walk(grid(checkpoint.config), progress):
        case = random_case(checkpoint.config, *shape)
        report.comparisons.extend(_compare_case(case, checkpoint.config, reference, session))
    return report


def _compare_case(
    case: Case, config: TransformerConfig, reference: Reference, session: Any
) -> Iterator[Comparison]:
    assert config.eos_id is not None
    hidden = reference.encode(case.ids, case.mask)
    tokens, eager = eager_greedy(case, config, reference, hidden)
    feeds = {
        graph_io.INPUT_IDS: case.ids.numpy(),
        graph_io.ATTENTION_MASK: case.mask.numpy(),
        graph_io.MAX_LENGTH: np.array(tokens.shape[1]),
    }
    sequences, scores = session.run([graph_io.SEQUENCES, graph_io.SCORES], feeds)
    rows = [_until(row, config.eos_id) for row in sequences.tolist()]
    yield compare_tokens(case, rows, tokens, eager, config.eos_id, stage="generate graph")
    expected = _scores(tokens, eager, config.eos_id)
    # A row that went another way at a near tie has a score of its own.
    same = [
        ours == _until(theirs, config.eos_id)
        for ours, theirs in zip(rows, tokens.tolist(), strict=True)
    ]
    if any(same):
        yield compare_values("scores", case.shape, scores[same], expected[same])


def _until(row: list[int], eos_id: int) -> list[int]:
    return row[: row.index(eos_id)] if eos_id in row else row


def _scores(tokens: NDArray[np.int64], logits: Floats, eos_id: int) -> Floats:
    """(B, T) and (B, T, V) to (B,): mean log-probability, the end token included."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, tokens[:, :, None], -1)[:, :, 0]
    counts = [len(_until(row, eos_id)) + (eos_id in row) for row in tokens.tolist()]
    means = [row[:count].mean() for row, count in zip(chosen, counts, strict=True)]
    return np.array(means, np.float32)
