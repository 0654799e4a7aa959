"""Modules in the styles of public code: only `forward`, as their users wrote them."""

from tests.export.incremental.attention_modules import ATTENTION_CASES
from tests.export.incremental.input_modules import INPUT_CASES
from tests.export.incremental.own_case import (
    BOS,
    EOS,
    PAD,
    Case,
    draw_inputs,
    draw_target,
    greedy,
    logits,
    perturb,
)
from tests.export.incremental.position_modules import POSITION_CASES
from tests.export.incremental.running_modules import RUNNING_CASES
from tests.export.incremental.tutorial_modules import TUTORIAL_CASES

__all__ = [
    "BOS",
    "CASES",
    "EOS",
    "PAD",
    "Case",
    "draw_inputs",
    "draw_target",
    "greedy",
    "logits",
    "perturb",
]

CASES: tuple[Case, ...] = (
    *TUTORIAL_CASES,
    *ATTENTION_CASES,
    *POSITION_CASES,
    *RUNNING_CASES,
    *INPUT_CASES,
)
