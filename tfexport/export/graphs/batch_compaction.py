"""A greedy loop whose batch shrinks: rows that have ended leave it.

Taking rows out of a batch copies what is kept of all others, so it is done when a quarter has
ended: an outer loop takes them out, and an inner one decodes until the next quarter has. What is
left of the batch knows its places in the whole one.

Axes: B rows of the whole batch, A of them that are left, T tokens so far, N new ones, E model
width.
"""

import onnx_ir as ir

from tfexport.export.ir_tools.text_form import STAND_INS, parse_graph
from tfexport.graph_io import TensorSpec

SEARCH = "Search"  # stands for the inner loop until that is put in its place
_TYPES = {"int64": "int64", "float32": "float", "bool": "bool"}


def shrinking_body(
    state: tuple[TensorSpec, ...],
    invariants: tuple[TensorSpec, ...],
    pad_id: int,
    width: int,
    opset: int,
) -> ir.Graph:
    """The outer loop's body.

    Its state is the number of turns that are left, the places (A,) of the rows that are left,
    sequences (B, T), counts (B,) and the decoder's states (B, T, E) of the whole batch; then, of
    the rows that are left, ``state`` without sequences, and ``invariants``.

    Args:
        state: of the inner loop: token, ended, count, sequences, and caches. It also stacks the
            decoder's states.
        invariants: of the inner loop that have a row for each of the batch.
        pad_id: what stands behind the end of a row.
        width: E.
        opset: of the standard operators.
    """
    token, ended, count, sequences, *past = state
    # The names of caches hold dots, which the text form does not take.
    caches = [TensorSpec(f"past_{i}", t.dtype, t.axes) for i, t in enumerate(past)]
    fixed = [TensorSpec(f"fixed_{i}", t.dtype, t.axes) for i, t in enumerate(invariants)]
    rows = [token, ended, count, *caches, *fixed]
    searched = [token, ended, count, sequences, *caches]
    gathers = "\n".join(
        f"next_{t.name} = Gather <axis = 0> ({_after(t, searched)}, left)" for t in rows
    )
    before = [*_whole(width), *(_typed(t, "", "rows") for t in rows)]
    after = [*_whole(width, "next_"), *(_typed(t, "next_", "left") for t in rows)]
    text = f"""
    rows_leave (int64 turn, bool going, {", ".join(before)})
        => (bool next_going, {", ".join(after)})
    {{
        zero = Constant <value = int64 {{0}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        three = Constant <value = int64 {{3}}> ()
        four = Constant <value = int64 {{4}}> ()
        yes = Constant <value = bool {{1}}> ()
        size = Size (order)
        threefold = Mul (size, three)
        few = Div (threefold, four)
        nothing = Slice (token, first, first, second)
        {", ".join(f"last_{t.name}" for t in searched)}, stacked = {STAND_INS}.{SEARCH}
            (remaining, yes, few, token, ended, count, nothing,
             {", ".join(t.name for t in caches)})

        places = Unsqueeze (order, second)
        height = Shape (all_counts)
        width = Shape <start = 1, end = 2> (last_{sequences.name})
        area = Concat <axis = 0> (height, width)
        padding = ConstantOfShape <value = int64[1] {{{pad_id}}}> (area)
        written = ScatterND (padding, places, last_{sequences.name})
        next_all_sequences = Concat <axis = 1> (all_sequences, written)
        next_all_counts = ScatterND (all_counts, places, last_{count.name})
        third = Constant <value = int64[1] {{2}}> ()
        states_of_steps = Squeeze (stacked, third)
        states = Transpose <perm = [1, 0, 2]> (states_of_steps)
        state_width = Constant <value = int64[1] {{{width}}}> ()
        state_area = Concat <axis = 0> (area, state_width)
        no_states = ConstantOfShape (state_area)
        written_states = ScatterND (no_states, places, states)
        next_all_states = Concat <axis = 1> (all_states, written_states)

        going_on = Not (last_{ended.name})
        places_left = NonZero (going_on)
        left = Squeeze (places_left, first)
        next_order = Gather <axis = 0> (order, left)
        {gathers}
        turns = Squeeze (width, first)
        next_remaining = Sub (remaining, turns)
        number = Size (left)
        some = Greater (number, zero)
        more = Greater (next_remaining, zero)
        next_going = And (some, more)
    }}"""
    return parse_graph(text, opset, {STAND_INS: 1})


def _after(tensor: TensorSpec, searched: list[TensorSpec]) -> str:
    """What the inner loop made of it, if it did."""
    return f"last_{tensor.name}" if tensor in searched else tensor.name


def _whole(width: int, prefix: str = "") -> list[str]:
    return [
        f"int64 {prefix}remaining",
        f"int64[{prefix}rows] {prefix}order",
        f"int64[batch, {prefix}length] {prefix}all_sequences",
        f"int64[batch] {prefix}all_counts",
        f"float[batch, {prefix}length, {width}] {prefix}all_states",
    ]


def _typed(tensor: TensorSpec, prefix: str, rows: str) -> str:
    axes = [rows, *(str(a) if isinstance(a, int) else f"{prefix}{a}" for a in tensor.axes[1:])]
    return f"{_TYPES[tensor.dtype]}[{', '.join(axes)}] {prefix}{tensor.name}"
