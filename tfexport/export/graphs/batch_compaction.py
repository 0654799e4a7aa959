"""Batch compaction: rows that have ended leave the batch of a greedy loop.

Taking rows out of a batch copies what is kept of all others, so it is done when a quarter has
ended: an outer loop takes them out, and an inner one decodes until the next quarter has. The rows
that are left know their places in the whole batch.

Axes: B rows of the whole batch, A of them that are left, T tokens so far, E model width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import onnx_ir as ir

from tfexport.export.graphs.greedy_state import GreedyState, row_invariants_spec, state_spec
from tfexport.export.graphs.loops import LoopInputs, add_constant, loop_over, make_loop
from tfexport.export.ir_tools.nodes import append_node
from tfexport.export.ir_tools.operators import PLACEHOLDERS, SEARCH_LOOP, is_operator
from tfexport.export.ir_tools.text_form import parse_graph, prefix_names
from tfexport.graph_io import PAST, CacheShape, TensorSpec

_PREFIX = "rows/"
_TYPES = {"int64": "int64", "float32": "float", "bool": "bool"}

T = TypeVar("T")


@dataclass(frozen=True)
class WholeBatch(Generic[T]):
    """The part of the outer loop's state that is about all rows.

    Attributes:
        remaining: steps that are left.
        order: places (A,) of the rows that are left.
        sequences: (B, T).
        count: (B,).
        states: the decoder's, (B, T, E).
    """

    remaining: T
    order: T
    sequences: T
    count: T
    states: T

    def pack(self) -> tuple[T, ...]:
        """In a row, as the outer loop takes and gives it."""
        return (self.remaining, self.order, self.sequences, self.count, self.states)

    @classmethod
    def unpack_first(cls, values: Iterable[T]) -> "WholeBatch[T]":
        """From a row in which the rows that are left come behind it."""
        remaining, order, sequences, count, states, *_ = values
        return cls(remaining, order, sequences, count, states)


@dataclass(frozen=True)
class CompactionSpec:
    """The sizes that decide the outer loop's body.

    Attributes:
        cache: of the decoder.
        width: E.
        pad_id: stands behind the end of a row.
        opset: of the standard operators.
    """

    cache: CacheShape
    width: int
    pad_id: int
    opset: int


def add_compacting_loop(
    graph: ir.Graph,
    step: ir.Graph,
    invariants: Sequence[ir.Value],
    given: LoopInputs,
    spec: CompactionSpec,
) -> WholeBatch[ir.Value]:
    """Append the outer loop, with the loop over steps in its body; gives the whole batch after it.

    Args:
        graph: the outermost graph.
        step: as for ``make_loop``; its last invariant says with how few rows it ends.
        invariants: the others, a row for each of the batch.
        given: as for ``make_loop``; the state is that of greedy search.
        spec: sizes.
    """
    body = _body(spec)
    (search,) = [node for node in body if is_operator(node, SEARCH_LOOP)]
    remaining, yes, min_active_rows, *searched = _given(search)
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
    left = [state.token, state.ended, state.count, *state.past, *invariants]
    outer = loop_over(body, [given.trips, given.begin, *whole.pack(), *left], "shrinking_loop")
    graph.append(outer)
    return WholeBatch.unpack_first(outer.outputs)


def _given(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _whole_batch(
    graph: ir.Graph, trips: ir.Value, state: GreedyState[ir.Value], width: int
) -> WholeBatch[ir.Value]:
    """Append what makes the whole batch before the first step."""
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

    Its state is the whole batch, and of the rows that are left the greedy state without sequences,
    and the invariants.
    """
    state = state_spec(spec.cache, PAST)
    # The names of caches hold dots, which the text form does not take.
    caches = _numbered("past", state.past)
    fixed = _numbered("fixed", row_invariants_spec(spec.cache))
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
    """Decode until a quarter of the rows has ended."""
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
    """Write what was decoded to the rows' places in the whole batch."""
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
    """Take what is left of tensors with a row for each row."""
    return "\n".join(f"next_{t.name} = Gather <axis = 0> ({prefix}{t.name}, left)" for t in tensors)


def _numbered(name: str, tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    return [TensorSpec(f"{name}_{i}", t.dtype, t.axes) for i, t in enumerate(tensors)]


def _whole_text(width: int, prefix: str = "") -> tuple[str, ...]:
    """Types and names of a whole batch."""
    return WholeBatch(
        remaining=f"int64 {prefix}remaining",
        order=f"int64[{prefix}rows] {prefix}order",
        sequences=f"int64[batch, {prefix}length] {prefix}all_sequences",
        count=f"int64[batch] {prefix}all_counts",
        states=f"float[batch, {prefix}length, {width}] {prefix}all_states",
    ).pack()


def _typed(tensor: TensorSpec, prefix: str, rows: str) -> str:
    axes = [rows, *(str(a) if isinstance(a, int) else f"{prefix}{a}" for a in tensor.axes[1:])]
    return f"{_TYPES[tensor.dtype]}[{', '.join(axes)}] {prefix}{tensor.name}"
