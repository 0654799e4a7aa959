"""Eager PyTorch against a generate graph: whole sequences and their scores, over the same grid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfexport import graph_io
from tfexport.export.parity.cases import Case, Progress, eager_greedy, grid, random_case, walk
from tfexport.export.parity.report import Comparison, ParityReport, compare_sequences
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
    yield from compare_sequences(case, sequences, scores, tokens, eager, config.eos_id)
