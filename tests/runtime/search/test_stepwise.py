"""Greedy search over a table of logits that is written down here, and callbacks."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.table_model import TableModel
from tests.support.table_search import BOS, EOS, search
from tfexport.runtime.model.interface import Floats, Ids
from tfexport.runtime.options import Step
from tfexport.runtime.search import Request, greedy

pytestmark = pytest.mark.no_model

# What follows each token: logits over five tokens. Two of them tie after token 3.
AFTER = {
    BOS: [0.0, 0.0, 3.0, 0.0, 0.0],
    2: [0.0, 0.0, 0.0, 2.0, 0.0],
    3: [0.0, 1.0, 0.5, 0.0, 1.0],
    4: [0.0, 0.0, 0.0, 0.0, 9.0],
}


class State:
    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.rows = [list(row) for row in rows]
        self.sources = np.arange(len(rows))
        self.sizes = [len(rows)]

    def select(self, rows: np.ndarray) -> None:
        self.rows = [self.rows[i] for i in rows]
        self.sources = self.sources[rows]
        self.sizes.append(len(rows))


class FixedTable:
    """Row [n] follows the table n steps long and then ends."""

    def __init__(self) -> None:
        self.state = State([])
        self.steps = 0

    def encode(self, rows: Sequence[Sequence[int]]) -> State:
        self.state, self.steps = State(rows), 0
        return self.state

    def step(self, input_ids: Ids, state: State, candidates: None = None) -> Floats:
        assert input_ids.shape == (len(state.rows), 1), "rows that ended have left the batch"
        self.steps += 1
        logits = [list(AFTER[int(token)]) for token in input_ids[:, 0]]
        for row, values in zip(state.rows, logits, strict=True):
            if self.steps > row[0]:
                values[EOS] = 50.0
        return np.array(logits, np.float32)[:, None]


def decode(rows: list[list[int]], limit: int = 10) -> list[tuple[list[int], float]]:
    found = greedy(FixedTable(), rows, limit, BOS, EOS)  # type: ignore[arg-type]
    return [(h.tokens, h.score) for h in found]


def log_softmax(logits: list[float], chosen: int) -> float:
    return logits[chosen] - math.log(sum(math.exp(value) for value in logits))


def test_takes_the_best_and_the_lowest_id_on_a_tie() -> None:
    tokens, score = decode([[9]])[0]
    assert tokens == [2, 3], "after 3, ids 1 (the end) and 4 tie"
    expected = [log_softmax(AFTER[BOS], 2), log_softmax(AFTER[2], 3), log_softmax(AFTER[3], EOS)]
    assert score == pytest.approx(sum(expected) / 3)


def test_rows_that_end_leave_the_batch_and_results_keep_their_order() -> None:
    assert [tokens for tokens, _ in decode([[1], [0], [9], [0]])] == [[2], [], [2, 3], []]
    model = FixedTable()
    greedy(model, [[1], [0], [9], [0]], 10, BOS, EOS)  # type: ignore[arg-type]
    assert model.state.sizes == [4, 2, 1]
    assert model.steps == 3, "it stops with the last row"


def test_result_does_not_depend_on_the_batch() -> None:
    rows = [[1], [0], [9], [2]]
    assert decode(rows) == [decode([row])[0] for row in rows]


def test_limit_cuts_and_scores_what_there_is() -> None:
    tokens, score = decode([[9]], limit=1)[0]
    assert tokens == [2]
    assert score == pytest.approx(log_softmax(AFTER[BOS], 2))
    assert decode([[9]], limit=0) == [([], 0.0)]


def test_callback_sees_every_token_and_ends_a_row() -> None:
    seen: list[Step] = []

    def call(step: Step) -> bool:
        seen.append(step)
        return step.row == 1 and step.position == 2

    rows = [Request([9], number=0), Request([8], number=1)]
    found = search(TableModel(6, 11), rows, max_length=5, suppress=(EOS,), callback=call)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [5, 3]
    assert not found[1][0].finished
    for row in (0, 1):
        steps = [step for step in seen if step.row == row]
        assert [step.token for step in steps] == found[row][0].tokens
        assert [step.position for step in steps] == list(range(len(steps)))
    assert [step.last for step in seen if step.row == 0] == [False] * 4 + [True]
