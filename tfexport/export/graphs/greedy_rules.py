"""Rules of a model's own that greedy search keeps inside a graph.

They are those of ``generation`` in the manifest that a folder of Hugging Face has as a rule: tokens
that are never chosen, and a forced first and last token. A forced token counts with
log-probability 0.

Axes: B batch, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from tfexport.export.ir_tools.nodes import parse_graph, take_nodes

BANNED = -1e30  # added to a logit: not -inf, of which differences are no numbers


@dataclass(frozen=True)
class GreedyRules:
    """The rules; by default there are none.

    Attributes:
        suppress_tokens: ids that are never chosen.
        first_token: that every row begins with.
        last_token: that ends a row of as many tokens as are allowed.
    """

    suppress_tokens: tuple[int, ...] = ()
    first_token: int | None = None
    last_token: int | None = None

    @classmethod
    def of(cls, defaults: Mapping[str, Any]) -> "GreedyRules":
        """Those among the decoding defaults of a model."""
        return cls(
            tuple(defaults.get("suppress_tokens", ())),
            defaults.get("first_token"),
            defaults.get("last_token"),
        )

    @property
    def forces(self) -> bool:
        """Whether any token is forced."""
        return self.first_token is not None or self.last_token is not None

    def bias(self, size: int) -> Tensor:
        """The bias that is added to the logits of a vocabulary, (V,)."""
        bias = torch.zeros(size)
        bias[list(self.suppress_tokens)] = BANNED
        return bias

    def apply(self, logits: Tensor, step: int, steps: int) -> Tensor:
        """The logits (B, V) of one of ``steps`` steps, of which only allowed tokens are left."""
        forced = self.last_token if step + 1 == steps and self.last_token is not None else None
        forced = self.first_token if forced is None and step == 0 else forced
        if forced is None:
            return logits + self.bias(logits.size(-1))
        only = torch.full_like(logits, BANNED)
        only[:, forced] = 0
        return only


NO_RULES = GreedyRules()


def force_tokens(
    graph: ir.Graph,
    rules: GreedyRules,
    sequences: ir.Value,
    count: ir.Value,
    trips: ir.Value,
    opset: int,
) -> tuple[ir.Value, ir.Value]:
    """Append the last forced token behind a loop.

    Args:
        graph: which ends with the loop.
        rules: of which at least one forces a token.
        sequences: (B, T).
        count: tokens of each row, (B,).
        trips: the largest number of steps, ().
        opset: of the standard operators.

    Returns:
        The sequences with their last forced token, and which tokens were chosen freely; (B, T).
    """
    part = parse_graph(_text(rules), opset)
    nodes, (forced, free) = take_nodes(part, [sequences, count, trips], "forced/")
    graph.extend(nodes)
    return forced, free


def _text(rules: GreedyRules) -> str:
    last, first = rules.last_token, rules.first_token
    columns = "Less (positions, zero)" if first is None else "Equal (positions, zero)"
    return f"""
    forced (int64[batch, length] sequences, int64[batch] count, int64 trips)
        => (int64[batch, length] with_last, bool[batch, length] free)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        last_token = Constant <value = int64 {{{0 if last is None else last}}}> ()
        forces_last = Constant <value = bool {{{int(last is not None)}}}> ()
        width_shape = Shape <start = 1, end = 2> (sequences)
        width = Squeeze (width_shape, first)
        positions = Range (zero, width, one)
        is_full = Equal (count, trips)
        full_rows = And (is_full, forces_last)
        full_columns = Unsqueeze (full_rows, second)
        end = Sub (trips, one)
        at_end = Equal (positions, end)
        is_last = And (full_columns, at_end)
        with_last = Where (is_last, last_token, sequences)
        in_first = {columns}
        is_forced = Or (is_last, in_first)
        free = Not (is_forced)
    }}"""
