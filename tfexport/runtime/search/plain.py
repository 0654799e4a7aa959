"""Greedy search with no options: in one call of a graph that holds the loop, or step by step."""

from collections.abc import Sequence

from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search.ranking import normalize
from tfexport.runtime.search.request import Request
from tfexport.runtime.search.resolved_options import ResolvedOptions
from tfexport.runtime.search.stepwise import PathSearch


def until(row: list[int], eos_id: int) -> list[int]:
    """A row of tokens up to its end token."""
    return row[: row.index(eos_id)] if eos_id in row else row


def greedy_in_one_call(
    model: Model,
    rows: Sequence[Sequence[int]],
    max_length: int,
    eos_id: int,
    options: DecodingOptions | None = None,
) -> list[Hypothesis]:
    """What ``greedy`` gives, from a model whose graphs hold the loop: no Python runs per step.

    Args:
        model: with a generate graph.
        rows: source ids, none of them empty.
        max_length: tokens a row at most.
        eos_id: the model's own end token.
        options: how to score, and whether the end token is kept.
    """
    options = options or DecodingOptions()
    found = model.generate(rows, max_length, options.return_scores)
    hypotheses = []
    for row, mean in zip(found.sequences.tolist(), found.scores.tolist(), strict=True):
        tokens = until(row, eos_id)
        finished = len(tokens) < len(row)
        length = len(tokens) + finished
        score = normalize(mean * length, length, options.length_penalty)
        if finished and options.return_end_token:
            tokens = [*tokens, eos_id]
        hypotheses.append(Hypothesis(tokens, score, finished=finished))
    return hypotheses


def greedy(
    model: Model, rows: Sequence[Sequence[int]], max_length: int, bos_id: int, eos_id: int
) -> list[Hypothesis]:
    """Decode rows of source ids, none of them empty, taking the best token at every step.

    The best token is the argmax of the logits, the lowest id on a tie. A row ends with ``eos_id``
    or after ``max_length`` tokens, and then leaves the batch.
    """
    options = ResolvedOptions.of(DecodingOptions(), bos_id, (eos_id,), max_length)
    requests = [Request(list(row), number) for number, row in enumerate(rows)]
    search = PathSearch(model, requests, options)
    while search.active:
        search.step()
    return [found[0] for found in search.hypotheses()]
