"""The model interface of search graphs: memory, state, step, and rules of greedy search.

The rules are those that most Hugging Face folders set, from ``generation`` in the manifest: tokens
that are never chosen, and a forced first and last token. A forced token has log-probability 0.

Axes: B batch, T tokens, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.export.ir_tools.nodes import parse_graph, take_nodes
from tfexport.graph_io import GraphSpec, TensorSpec

BANNED = -1e30  # added to a logit; not -inf, because differences of -inf are NaN


@dataclass(frozen=True)
class GreedyRules:
    """Rules of greedy search; by default there are none.

    Attributes:
        suppress_tokens: ids that are never chosen.
        first_token: the id that every row starts with; None for none.
        last_token: the id that ends a row of maximum length; None for none.
    """

    suppress_tokens: tuple[int, ...] = ()
    first_token: int | None = None
    last_token: int | None = None

    @classmethod
    def of(cls, defaults: Mapping[str, Any]) -> "GreedyRules":
        """Read the rules from the decoding defaults of a model."""
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
        """Mask forbidden tokens in the logits (B, V) of step number ``step`` of ``steps``."""
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
    """Append the last forced token after a loop.

    Args:
        graph: the graph, which ends with the loop.
        rules: rules, at least one of which forces a token.
        sequences: (B, T).
        count: the number of tokens of each row, (B,).
        trips: the largest number of steps, ().
        opset: the opset version of the standard operators.

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


# Greedy and beam search are written against ``StepModel``. ``transformer_steps`` makes one of a
# ``Transformer``, ``module_graphs`` one of a user's module.
#
# Axes: B batch, K beams, R = B * K rows, T target, V vocabulary.


@dataclass(frozen=True)
class Memory:
    """The tensors that every step reads and none changes.

    Attributes:
        kept: outputs of the encoder graph, which come first.
        made: tensors that ``make_memory`` computes before the first step.
    """

    kept: tuple[TensorSpec, ...]
    made: tuple[TensorSpec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All of them, in the order of a step's inputs."""
        return (*self.kept, *self.made)


class GreedyOutputs(NamedTuple):
    """The results of a greedy loop.

    Attributes:
        sequences: (B, T).
        counts: the number of tokens of each row, including the end token, (B,).
        records: the records of all steps (see ``StepModel.choose``), (B, T, W).
        free: whether a token was chosen, and not forced, (B, T); None if none is forced.
    """

    sequences: ir.Value
    counts: ir.Value
    records: ir.Value
    free: ir.Value | None = None


class StepModel(Protocol):
    """A model as search graphs use it.

    Attributes:
        module: the module with the weights.
        special_ids: the special ids of the vocabularies.
        longest: the maximum number of tokens of a row; None for no limit.
        vocab_size: V of the target.
        inputs: the inputs of the encoder graph.
        read_by_start: inputs and outputs of the encoder graph that are passed as ``values`` to
            the methods before the first step.
        memory: the memory of a greedy step.
        beam_memory: the memory of a beam search step.
        record_width: W of the records of ``choose``.
        sizes: sizes of the axes of example inputs, the first of which is traced; None for the
            defaults.
        rules: the rules of greedy search.
    """

    module: nn.Module
    special_ids: SpecialIds
    longest: int | None
    vocab_size: int
    inputs: tuple[TensorSpec, ...]
    read_by_start: tuple[TensorSpec, ...]
    memory: Memory
    beam_memory: Memory
    record_width: int
    sizes: Sequence[Mapping[str, int]] | None
    rules: GreedyRules

    def state(self, past: str, prefix: str = "") -> tuple[TensorSpec, ...]:
        """The model's state; ``past`` names its growing axis, or "0" before the first step."""

    def encoder_values(self, graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Value]]:
        """Find the values of ``memory.kept`` and of ``read_by_start`` in an encoder graph."""

    def source_mask(self, values: Sequence[Tensor]) -> Tensor:
        """The mask of the source, (B, S), 1 = keep; a row without a kept position has ended."""

    def make_memory(
        self, values: Sequence[Tensor], beams: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The tensors of ``Memory.made``; with ``beams`` (K,) those of ``beam_memory``."""

    def first_past(
        self, values: Sequence[Tensor], made: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The state before the first step; with ``rows``, a float (B, K), it has R rows."""

    def step(
        self, token: Tensor, count: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """One step.

        Args:
            token: (B, 1).
            count: steps that the rows have taken, (B,); lower for rows that have ended.
            past: the model's state.
            memory: the model's memory.

        Returns:
            x: the input of ``choose``.
            present: the next state.
            weights: cross-attention weights of each layer, (B, H, 1, S); empty if there are none.
        """

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The best token of every row (B, 1), and a record (B, 1, W) to score it by."""

    def step_beams(
        self, token: Tensor, position: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One step of beams: tokens (B, K) and a state of R rows to logits (B, K, V) and state.

        ``position`` is the number of steps taken, ().
        """

    def finish_step(self, graph: ir.Graph, step: ir.Graph, opset: int) -> None:
        """Replace placeholders of ``choose`` in a step; ``graph`` is the outer one."""

    def add_scores(
        self, graph: ir.Graph, decoded: GreedyOutputs, opset: int, spec: GraphSpec
    ) -> ir.Value:
        """Append the mean log-probability of each row's tokens, (B,), to the outer graph."""
