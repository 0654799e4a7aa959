"""Modules that see the padding of a batch: rows of unequal length are kept apart."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.combinations import few_of
from tests.support.eager_search import Rules, greedy
from tests.support.user_files import RECOMPUTING, Methods, UserFile
from tfexport.export import Input, export
from tfexport.runtime import Translator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_beam_graph", "few_shapes")]
INPUTS = [
    Input("input_ids", "int64", ("batch", "source_length")),
    Input("attention_mask", "int64", ("batch", "source_length")),
]
# A running sum from the right, which begins with the padding.
SEEING = """
def encode(self, input_ids, attention_mask):
    x = self.embedding(input_ids).flip(1).cumsum(1).flip(1)
    return torch.tanh(x)
"""
MASKED = """
def encode(self, input_ids, attention_mask):
    x = self.embedding(input_ids) * attention_mask[..., None]
    return torch.cat([x, x.flip(1).cumsum(1).flip(1)[:, :1]], 1).sum(1, keepdim=True)
"""
# Without a mask among the inputs: of the ids themselves.
OF_IDS = """
def encode(self, input_ids):
    x = self.embedding(input_ids) * (input_ids != 0)[..., None]
    return torch.cat([x, x.flip(1).cumsum(1).flip(1)[:, :1]], 1).sum(1, keepdim=True)
"""
OF_ALL_IDS = OF_IDS.replace("!= 0", ">= 0")
# Padding changes what comes late only: the first step reads the first column.
LATE = """
def encode(self, input_ids):
    return torch.tanh(self.embedding(input_ids))
"""
READS_BEHIND = """
def decode(self, tokens, memory):
    x = self.embedding(tokens).cumsum(1)
    columns = torch.arange(tokens.size(1)).clamp(max=memory.size(1) - 1)
    return self.output(torch.tanh(x + memory[:, columns]))
"""
ROWS = [[5, 6, 7, 8, 9, 10, 2], [4, 2], [9, 11, 3, 2], [7, 7, 2]]


@pytest.mark.parametrize(
    ("methods", "inputs", "padded"),
    few_of(
        FORMS := (
            ({"encode": SEEING}, INPUTS, False),
            ({"encode": MASKED}, INPUTS, True),
            ({"encode": OF_IDS}, INPUTS[:1], True),
            ({"encode": OF_ALL_IDS}, INPUTS[:1], False),
            ({"encode": LATE, "decode": READS_BEHIND}, INPUTS[:1], False),
        ),
        FORMS[0],
        FORMS[2],
        FORMS[4],
    ),
    ids=["seen", "masked", "masked by ids", "ids without a mask", "seen late"],
)
def test_rows_of_unequal_length_give_together_what_each_gives_alone(
    tmp_path: Path, methods: Methods, inputs: list[Input], padded: bool
) -> None:
    model = UserFile(tmp_path, {**RECOMPUTING, **methods}).build()
    export(model, tmp_path / "a.bundle", inputs=inputs, pad_id=0, bos_id=1, eos_id=2,
                  max_length=12)  # fmt: skip
    expected = []
    for ids in ROWS:
        row = {"input_ids": np.array(ids), "attention_mask": np.ones(len(ids), np.int64)}
        row = {each.name: row[each.name] for each in inputs}
        expected.append(greedy(model, row, Rules(max_length=12)).tokens)
    assert len({tuple(tokens) for tokens in expected}) > 1
    with Translator(tmp_path / "a.bundle") as translator:
        results = translator.generate(ROWS, max_length=12)
        module = translator.manifest.module
    assert [result.hypotheses[0].tokens for result in results] == expected
    assert module is not None
    assert module["padded"] is padded
