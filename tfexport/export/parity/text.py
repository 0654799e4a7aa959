"""Eager PyTorch against a graph with text in and text out, on sample text."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from tfexport import graph_io
from tfexport.export.parity.eager_run import Case, Progress, eager_greedy
from tfexport.export.parity.report import ParityReport, compare_texts
from tfexport.export.reference import build_reference
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.export.text.wrap import SAMPLES, TEXTS, TRANSLATIONS, frame, open_text_graph
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.runtime.model.bundle_model import pad
from tfexport.runtime.search import truncate_at_eos

BATCH = 8


def compare_text(
    path: Path,
    tokenizers: TokenizerFiles,
    checkpoint: Checkpoint,
    samples: Iterable[str] = (),
    progress: Progress | None = None,
) -> ParityReport:
    """Tokenizer, eager PyTorch's uncached loop and detokenizer beside one call of the graph.

    Args:
        path: the graph.
        tokenizers: of both sides, read by the libraries that they were made for.
        checkpoint: what it was exported from.
        samples: text, besides ``text_graph.SAMPLES``.
        progress: told after every batch.
    """
    config = checkpoint.config
    reference = build_reference(checkpoint, checkpoint.build())
    source, target = tokenizers.load(config)
    session = open_text_graph(path)
    limit = config.longest
    framed = {text: frame(text, source, config) for text in (*SAMPLES, *samples)}
    texts = [text for text, row in framed.items() if row and (limit is None or len(row) <= limit)]
    report = ParityReport(reference.title)
    for start in range(0, len(texts), BATCH):
        if progress is not None:
            progress("comparing text", start, len(texts))
        chosen = texts[start : start + BATCH]
        rows = [framed[text] for text in chosen]
        ids, mask = pad(rows, config.pad_id or 0)
        case = Case(rows, torch.from_numpy(ids), torch.from_numpy(mask))
        tokens, eager = eager_greedy(case, config, reference, reference.encode(case.ids, case.mask))
        assert config.eos_id is not None
        expected = [target.decode(truncate_at_eos(row, config.eos_id)) for row in tokens.tolist()]
        # A random model may end within a character; such bytes have no text to compare.
        whole = [i for i, text in enumerate(expected) if "\ufffd" not in text]
        feeds = {
            TEXTS: np.array([chosen[i] for i in whole], dtype=object),
            graph_io.MAX_LENGTH: np.array(tokens.shape[1]),
        }
        (found,) = session.run([TRANSLATIONS], feeds)
        differ = [ours != expected[i] for ours, i in zip(found, whole, strict=True)]
        report.comparisons.append(
            compare_texts(case, differ, tokens[whole], eager[whole], config.eos_id)
        )
    return report
