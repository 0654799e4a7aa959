"""The search over a table of logits, as tests call it, and the table's own log-probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.table_model import TableModel
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.search import Request, ResolvedOptions, decode

BOS, EOS = 0, 1


def search(
    model: TableModel,
    requests: Sequence[Request],
    end_tokens: tuple[int, ...] = (EOS,),
    suppress: tuple[int, ...] = (),
    sequences: tuple[tuple[int, ...], ...] = (),
    **options: Any,
) -> list[list[Hypothesis]]:
    chosen = DecodingOptions(**options)
    resolved = ResolvedOptions.of(
        chosen, BOS, end_tokens, chosen.max_length, suppress, sequences,
        eos_id=EOS, seed=chosen.seed or 0,
    )  # fmt: skip
    return decode(model, requests, resolved)  # type: ignore[arg-type]


def log_probs(model: TableModel, row: Request, tokens: Sequence[int]) -> list[float]:
    logits = [float(v) for v in model.logits(row.ids, [BOS, *tokens])]
    whole = math.log(sum(math.exp(v) for v in logits))
    return [v - whole for v in logits]


def facts(made: Hypothesis) -> tuple[Any, ...]:
    """What two hypotheses have in common if they are equal but for rounding."""
    return (made.tokens, pytest.approx(made.score, abs=1e-5), made.finished, made.token_scores)
