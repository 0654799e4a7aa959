"""Rows of each kind of module with what its own eager loops find for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from tests.support import eager_search
from tests.support.eager_search import Closest, Found, Rules
from tests.support.modules.kind import PAD, Kind, Row

ROWS = 8
DRAWN = 14
# Log-probabilities of two candidates of which one is preferred. Torch and onnxruntime differ by
# about a hundredth of it.
GAP = 1e-4


@dataclass(frozen=True)
class ProvenRow:
    """A row, and what eager search finds for it."""

    row: Row
    greedy: Found
    beams: tuple[Found, ...]


@cache
def module_of(kind: Kind) -> nn.Module:
    return kind.build()


def rules_of(kind: Kind, **options: Any) -> Rules:
    return Rules(max_length=kind.max_length, **options)


def beam_rules(kind: Kind) -> Rules:
    return rules_of(kind, beam_size=3, num_hypotheses=3)


@cache
def proven_rows(kind: Kind) -> tuple[ProvenRow, ...]:
    """Rows of different sizes for which no two candidates are nearly equal."""
    found = []
    for row in kind.rows(1, DRAWN):
        closest = Closest()
        greedy = eager_search.greedy(module_of(kind), row, rules_of(kind), closest)
        beams = eager_search.beam(module_of(kind), row, beam_rules(kind), closest)
        if closest.gap > GAP:
            found.append(ProvenRow(row, greedy, tuple(beams)))
    assert len(found) >= ROWS, "too many near ties: choose other weights"
    return tuple(found[:ROWS])


def batches_of(rows: Sequence[Row]) -> list[tuple[list[int], dict[str, Any]]]:
    """Numbers of rows that can be a batch, and its arrays; text is padded on the right."""
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        padded = row.keys() >= {"input_ids", "attention_mask"}
        free = ("input_ids", "attention_mask") if padded else ()
        key = tuple(array.shape for name, array in row.items() if name not in free)
        shapes.setdefault(key, []).append(number)
    return [
        (numbers, {name: _stacked([rows[i][name] for i in numbers]) for name in rows[0]})
        for numbers in shapes.values()
    ]


def _stacked(arrays: list[Any]) -> Any:
    longest = max(len(array) for array in arrays)
    padding = [[(0, longest - len(array)), *[(0, 0)] * (array.ndim - 1)] for array in arrays]
    pairs = zip(arrays, padding, strict=True)
    return np.stack([np.pad(array, pad, constant_values=PAD) for array, pad in pairs])
