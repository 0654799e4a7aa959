"""The comparison of a text-to-text graph with tokenizers and eager PyTorch, on sample text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tfexport import graph_io
from tfexport.export.parity.compare import compare_texts
from tfexport.export.parity.eager_run import Eager, make_case, run_batches
from tfexport.export.parity.report import Comparison, ParityReport
from tfexport.export.text.tokenizer_files import TokenizerFiles, encode_source
from tfexport.export.text.wrap import SAMPLES, TEXTS, TRANSLATIONS, open_text_graph
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.search import truncate_at_eos
from tfexport.typing import Progress

BATCH = 8


def compare_text(
    path: Path,
    tokenizers: TokenizerFiles,
    checkpoint: Checkpoint,
    samples: Iterable[str] = (),
    progress: Progress | None = None,
) -> ParityReport:
    """Compare one call of the graph with tokenizer, eager greedy decoding and detokenizer.

    Args:
        path: of the graph.
        tokenizers: of both sides, loaded with their own libraries.
        checkpoint: from which it was exported.
        samples: text, besides ``text.wrap.SAMPLES``.
        progress: called after every batch.
    """
    config = checkpoint.config
    source, target = tokenizers.load(config)
    session = open_text_graph(path)
    limit = config.longest
    input_ids = {text: encode_source(text, source, config) for text in (*SAMPLES, *samples)}
    texts = [
        text for text, row in input_ids.items() if row and (limit is None or len(row) <= limit)
    ]

    def compare(eager: Eager, chosen: list[str]) -> Iterator[Comparison]:
        case = make_case([input_ids[text] for text in chosen], config)
        run = eager.decode(case, eager.rules)
        expected = [
            target.decode(truncate_at_eos(row, run.special_ids.eos)) for row in run.tokens.tolist()
        ]
        # A random model may end within a UTF-8 character, which decodes to no comparable text.
        whole = [i for i, text in enumerate(expected) if "\ufffd" not in text]
        feeds = {
            TEXTS: np.array([chosen[i] for i in whole], dtype=object),
            graph_io.MAX_LENGTH: np.array(run.tokens.shape[1]),
        }
        (found,) = session.run([TRANSLATIONS], feeds)
        yield compare_texts(
            run, {i: ours != expected[i] for ours, i in zip(found, whole, strict=True)}
        )

    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return run_batches(checkpoint, batches, compare, progress, "comparing text")
