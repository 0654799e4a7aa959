"""Greedy and beam search inside a graph: the whole search of a batch in one call.

No Python runs between steps. ``StepwiseSearch`` and ``BeamSearch`` give the same results.
"""

from collections.abc import Sequence

from tfexport.runtime.model.interface import Model, Source
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.backtrace import Backtrace
from tfexport.runtime.search.ranking import normalize, stopping_count
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions


def truncate_at_eos(row: list[int], eos_id: int) -> list[int]:
    """The tokens before the first end token; all of them if there is none."""
    return row[: row.index(eos_id)] if eos_id in row else row


def greedy_in_one_call(
    model: Model,
    rows: Sequence[Source],
    max_length: int,
    eos_id: int,
    options: DecodingOptions | None = None,
) -> list[Hypothesis]:
    """Decode rows greedily, one hypothesis a row.

    Args:
        model: with a generate graph.
        rows: sources, none of them empty.
        max_length: tokens a row at most.
        eos_id: the model's own end token.
        options: how to score, and whether the end token is kept.
    """
    options = options or DecodingOptions()
    found = model.generate(rows, max_length, options.return_scores)
    hypotheses = []
    for row, mean in zip(found.sequences.tolist(), found.scores.tolist(), strict=True):
        tokens = truncate_at_eos(row, eos_id)
        finished = len(tokens) < len(row)
        length = len(tokens) + finished
        score = normalize(mean * length, length, options.length_penalty)
        if finished and options.return_end_token:
            tokens = [*tokens, eos_id]
        hypotheses.append(Hypothesis(tokens, score, finished=finished))
    return hypotheses


def beam_in_one_call(
    model: Model, requests: Sequence[Request], options: ResolvedOptions
) -> list[list[Hypothesis]]:
    """Decode requests with a beam; for each its hypotheses, best first.

    Args:
        model: with a beam graph.
        requests: without prefixes and candidates.
        options: of which ``fits_beam_graph`` holds.
    """
    rows = [request.source for request in requests]
    num_finished = stopping_count(options)
    record = model.beam(rows, options.beam_size, num_finished, options.max_length)
    backtrace = Backtrace(record, options)
    return [backtrace.hypotheses(sentence) for sentence in range(len(requests))]
