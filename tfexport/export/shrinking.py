"""A greedy loop whose batch shrinks: rows that have ended leave it.

Taking rows out of a batch copies what is kept of all others, so it is done when a quarter has
ended: an outer loop takes them out, and an inner one decodes until the next quarter has. What is
left of the batch knows its places in the whole one.

Axes: B rows of the whole batch, A of them that are left, T tokens so far, N new ones.
"""

import onnx
import onnx_ir as ir
from onnx import parser

from tfexport.graph_io import TensorSpec

SEARCH = "Search"  # stands for the inner loop until that is put in its place
DOMAIN = "tfexport"
_TYPES = {"int64": "int64", "float32": "float", "bool": "bool"}


def shrinking_body(
    state: tuple[TensorSpec, ...], invariants: tuple[TensorSpec, ...], pad_id: int, opset: int
) -> ir.Graph:
    """The outer loop's body.

    Its state is the number of turns that are left, the places (A,) of the rows that are left,
    sequences (B, T), scores (B,) and counts (B,) of the whole batch; then, of the rows that are
    left, ``state`` without sequences, and ``invariants``.

    Args:
        state: of the inner loop: token, ended, score, count, sequences, and caches.
        invariants: of the inner loop that have a row for each of the batch.
        pad_id: what stands behind the end of a row.
        opset: of the standard operators.
    """
    token, ended, score, count, sequences, *past = state
    # The names of caches hold dots, which the text form does not take.
    caches = [TensorSpec(f"past_{i}", t.dtype, t.axes) for i, t in enumerate(past)]
    fixed = [TensorSpec(f"fixed_{i}", t.dtype, t.axes) for i, t in enumerate(invariants)]
    rows = [token, ended, score, count, *caches, *fixed]
    searched = [token, ended, score, count, sequences, *caches]
    gathers = "\n".join(
        f"next_{t.name} = Gather <axis = 0> ({_after(t, searched)}, left)" for t in rows
    )
    inputs = ["int64 turn", "bool going", *_whole(), *(_typed(t, "", "rows") for t in rows)]
    outputs = ["bool next_going", *_whole("next_"), *(_typed(t, "next_", "left") for t in rows)]
    text = f"""
    <ir_version: 10, opset_import: ["" : {opset}, "{DOMAIN}" : 1]>
    rows_leave ({", ".join(inputs)}) => ({", ".join(outputs)}) {{
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
        {", ".join(f"last_{t.name}" for t in searched)} = {DOMAIN}.{SEARCH}
            (remaining, yes, few, token, ended, score, count, nothing,
             {", ".join(t.name for t in caches)})

        places = Unsqueeze (order, second)
        height = Shape (all_scores)
        width = Shape <start = 1, end = 2> (last_{sequences.name})
        area = Concat <axis = 0> (height, width)
        padding = ConstantOfShape <value = int64[1] {{{pad_id}}}> (area)
        written = ScatterND (padding, places, last_{sequences.name})
        next_all_sequences = Concat <axis = 1> (all_sequences, written)
        next_all_scores = ScatterND (all_scores, places, last_{score.name})
        next_all_counts = ScatterND (all_counts, places, last_{count.name})

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
    model: onnx.ModelProto = parser.parse_model(text)
    return ir.from_proto(model).graph


def _after(tensor: TensorSpec, searched: list[TensorSpec]) -> str:
    """What the inner loop made of it, if it did."""
    return f"last_{tensor.name}" if tensor in searched else tensor.name


def _whole(prefix: str = "") -> list[str]:
    return [
        f"int64 {prefix}remaining",
        f"int64[{prefix}rows] {prefix}order",
        f"int64[batch, {prefix}length] {prefix}all_sequences",
        f"float[batch] {prefix}all_scores",
        f"float[batch] {prefix}all_counts",
    ]


def _typed(tensor: TensorSpec, prefix: str, rows: str) -> str:
    axes = [rows, *(str(a) if isinstance(a, int) else f"{prefix}{a}" for a in tensor.axes[1:])]
    return f"{_TYPES[tensor.dtype]}[{', '.join(axes)}] {prefix}{tensor.name}"
