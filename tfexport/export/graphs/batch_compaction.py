"""Batch compaction: finished rows are removed from the batch of a greedy loop.

Removing rows copies the caches of all others, so it is done once a quarter of them has finished.
There are two loops: the inner one decodes until a quarter of its rows has finished; the outer one
writes their tokens to the whole batch and gathers the active rows for the next inner loop.

Axes: B rows of the whole batch, A active rows, T tokens so far, E width of the records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import onnx_ir as ir

from tfexport.export.graphs.greedy_state import GreedyState, state_spec
from tfexport.export.graphs.loops import LoopInputs, add_constant, loop_over, make_loop
from tfexport.export.graphs.step_model import StepModel
from tfexport.export.ir_tools.nodes import append_node
from tfexport.export.ir_tools.operators import PLACEHOLDERS, SEARCH_LOOP, is_operator
from tfexport.export.ir_tools.text_form import parse_graph, prefix_names
from tfexport.graph_io import PAST, TensorSpec

_PREFIX = "rows/"
_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64", "int32": "int32",
    "int16": "int16", "int8": "int8", "uint8": "uint8", "bool": "bool",
}  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True)
class WholeBatch(Generic[T]):
    """The part of the outer loop's state with a row for every sentence of the batch.

    Attributes:
        remaining: number of steps that may still be taken.
        order: (A,) indices of the active rows in the batch.
        sequences: (B, T) decoded tokens.
        count: (B,) tokens of each row, the end token included.
        states: (B, T, E) records of the steps.
    """

    remaining: T
    order: T
    sequences: T
    count: T
    states: T

    def pack(self) -> tuple[T, ...]:
        """The values in the order of the outer loop's inputs and outputs."""
        return (self.remaining, self.order, self.sequences, self.count, self.states)

    @classmethod
    def unpack_first(cls, values: Iterable[T]) -> "WholeBatch[T]":
        """From the outer loop's values; those after the first five belong to the active rows."""
        remaining, order, sequences, count, states, *_ = values
        return cls(remaining, order, sequences, count, states)


@dataclass(frozen=True)
class CompactionSpec:
    """The tensors and sizes that decide the outer loop's body.

    Attributes:
        state: of the active rows.
        memory: of the active rows.
        width: E.
        pad_id: fills a row after its end token.
        opset: of the standard operators.
    """

    state: GreedyState[TensorSpec]
    memory: tuple[TensorSpec, ...]
    width: int
    pad_id: int
    opset: int

    @classmethod
    def of(cls, steps: StepModel, opset: int) -> "CompactionSpec":
        """For the steps of a model."""
        state, memory = state_spec(steps, PAST), steps.memory.tensors
        return cls(state, memory, steps.record_width, steps.special_ids.pad, opset)


def add_compacting_loop(
    graph: ir.Graph,
    step: ir.Graph,
    invariants: Sequence[ir.Value],
    given: LoopInputs,
    spec: CompactionSpec,
) -> WholeBatch[ir.Value]:
    """Append the outer loop, with the inner loop in its body.

    Args:
        graph: the outermost graph.
        step: the body of the inner loop, as for ``make_loop``; its last invariant is
            ``min_active_rows``, the number of active rows at which the loop ends.
        invariants: the other invariants, each with one row per row of the batch.
        given: as for ``make_loop``; the state is a ``GreedyState``.
        spec: sizes.

    Returns:
        The whole batch after the last step.
    """
    body = _body(spec)
    (search,) = [node for node in body if is_operator(node, SEARCH_LOOP)]
    remaining, yes, min_active_rows, *searched = _present_inputs(search)
    rows = body.inputs[-len(invariants) :]
    inner = make_loop(
        graph, step, [*rows, min_active_rows], LoopInputs(remaining, yes, searched)
    ).node
    prefix_names(body, _PREFIX)
    ir.convenience.replace_nodes_and_values(
        body, search, [search], [inner], search.outputs, inner.outputs
    )
    for value in body.inputs:
        value.name = f"{_PREFIX}{value.name}"

    state = GreedyState.unpack(given.state)
    whole = _whole_batch(graph, given.trips, state, spec.width)
    active = [state.token, state.ended, state.count, *state.past, *invariants]
    outer = loop_over(body, [given.trips, given.begin, *whole.pack(), *active], "shrinking_loop")
    graph.append(outer)
    return WholeBatch.unpack_first(outer.outputs)


def _present_inputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _whole_batch(
    graph: ir.Graph, trips: ir.Value, state: GreedyState[ir.Value], width: int
) -> WholeBatch[ir.Value]:
    """Append the nodes that compute the whole batch before the first step."""
    height = append_node(graph, "Shape", [state.count], "height")
    size = append_node(graph, "Squeeze", [height], "size")
    zero, one = add_constant(graph, "zero", 0), add_constant(graph, "one", 1)
    order = append_node(graph, "Range", [zero, size, one], "order")
    area = add_constant(graph, "no_steps", [0, width])
    shape = append_node(graph, "Concat", [height, area], "state_shape", {"axis": 0})
    states = append_node(graph, "ConstantOfShape", [shape], "no_states")
    return WholeBatch(trips, order, state.sequences, state.count, states)


def _body(spec: CompactionSpec) -> ir.Graph:
    """The outer loop's body, with a placeholder for the inner loop.

    Its state is the whole batch, then for the active rows the greedy state without sequences and
    the invariants. In the text, ``few`` is ``min_active_rows`` and ``turn`` is the iteration.
    """
    state = spec.state
    # The names of caches hold dots, which the text form does not take.
    caches = _numbered("past", state.past)
    fixed = _numbered("fixed", spec.memory)
    kept = [state.token, state.ended, state.count, *caches]
    rows = [*kept, *fixed]
    before = [*_whole_text(spec.width), *(_typed(t, "", "rows") for t in rows)]
    after = [*_whole_text(spec.width, "next_"), *(_typed(t, "next_", "left") for t in rows)]
    text = f"""
    rows_leave (int64 turn, bool going, {", ".join(before)})
        => (bool next_going, {", ".join(after)})
    {{
        zero = Constant <value = int64 {{0}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        {_search_text(state, caches)}
        {_write_text(state, spec)}
        going_on = Not (last_{state.ended.name})
        places_left = NonZero (going_on)
        left = Squeeze (places_left, first)
        next_order = Gather <axis = 0> (order, left)
        {_gather_text(kept, "last_")}
        {_gather_text(fixed, "")}
        turns = Squeeze (width, first)
        next_remaining = Sub (remaining, turns)
        number = Size (left)
        some = Greater (number, zero)
        more = Greater (next_remaining, zero)
        next_going = And (some, more)
    }}"""
    return parse_graph(text, spec.opset, {PLACEHOLDERS: 1})


def _search_text(state: GreedyState[TensorSpec], caches: Sequence[TensorSpec]) -> str:
    """Decode until a quarter of the rows has finished."""
    searched = [state.token, state.ended, state.count, state.sequences, *caches]
    return f"""
        three = Constant <value = int64 {{3}}> ()
        four = Constant <value = int64 {{4}}> ()
        yes = Constant <value = bool {{1}}> ()
        size = Size (order)
        threefold = Mul (size, three)
        few = Div (threefold, four)
        nothing = Slice (token, first, first, second)
        {", ".join(f"last_{t.name}" for t in searched)}, stacked =
            {SEARCH_LOOP.replace("::", ".")}
            (remaining, yes, few, token, ended, count, nothing,
             {", ".join(t.name for t in caches)})"""


def _write_text(state: GreedyState[TensorSpec], spec: CompactionSpec) -> str:
    """Write the new tokens and hidden states to their rows in the whole batch."""
    return f"""
        places = Unsqueeze (order, second)
        height = Shape (all_counts)
        width = Shape <start = 1, end = 2> (last_{state.sequences.name})
        area = Concat <axis = 0> (height, width)
        padding = ConstantOfShape <value = int64[1] {{{spec.pad_id}}}> (area)
        written = ScatterND (padding, places, last_{state.sequences.name})
        next_all_sequences = Concat <axis = 1> (all_sequences, written)
        next_all_counts = ScatterND (all_counts, places, last_{state.count.name})
        third = Constant <value = int64[1] {{2}}> ()
        states_of_steps = Squeeze (stacked, third)
        states = Transpose <perm = [1, 0, 2]> (states_of_steps)
        state_width = Constant <value = int64[1] {{{spec.width}}}> ()
        state_area = Concat <axis = 0> (area, state_width)
        no_states = ConstantOfShape (state_area)
        written_states = ScatterND (no_states, places, states)
        next_all_states = Concat <axis = 1> (all_states, written_states)"""


def _gather_text(tensors: Iterable[TensorSpec], prefix: str) -> str:
    """Gather the active rows of tensors."""
    return "\n".join(f"next_{t.name} = Gather <axis = 0> ({prefix}{t.name}, left)" for t in tensors)


def _numbered(name: str, tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    return [TensorSpec(f"{name}_{i}", t.dtype, t.axes) for i, t in enumerate(tensors)]


def _whole_text(width: int, prefix: str = "") -> tuple[str, ...]:
    """The declarations (type and name) of a whole batch in ONNX text."""
    return WholeBatch(
        remaining=f"int64 {prefix}remaining",
        order=f"int64[{prefix}rows] {prefix}order",
        sequences=f"int64[batch, {prefix}length] {prefix}all_sequences",
        count=f"int64[batch] {prefix}all_counts",
        states=f"float[batch, {prefix}length, {width}] {prefix}all_states",
    ).pack()


def _typed(tensor: TensorSpec, prefix: str, rows: str) -> str:
    """The declaration of one tensor in ONNX text."""
    axes = [rows, *(str(a) if isinstance(a, int) else f"{prefix}{a}" for a in tensor.axes[1:])]
    return f"{_TYPES[tensor.dtype]}[{', '.join(axes)}] {prefix}{tensor.name}"
