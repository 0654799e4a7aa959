"""Scores of the sequences of a greedy loop, computed after it and only if ``return_scores``.

A score needs the logits of the whole vocabulary at every step, which the loop does not compute.
After the loop they are computed for many positions at a time, so that the projection is read once
for all of these.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.graphs.step_model import Decoded
from tfexport.export.ir_tools.roles import mark_whole_reader
from tfexport.export.ir_tools.text_form import parse_graph, take_nodes

_MAX_LOGITS = 1 << 22  # computed at a time: 16 MB


def add_scores(
    graph: ir.Graph,
    decoded: Decoded,
    weights: Sequence[ir.Value],
    opset: int,
    spec: graph_io.GraphSpec,
) -> ir.Value:
    """Append the computation of the scores (B,).

    Args:
        graph: the outer graph, which ends with the loop.
        decoded: the results of the loop.
        weights: of the output projection: (V, E) and (V,).
        opset: of the standard operators.
        spec: of the whole graph; ``return_scores`` becomes an input if it is one there.
    """
    asked = ir.val(
        graph_io.RETURN_SCORES, const_value=ir.tensor(np.bool_(True), name=graph_io.RETURN_SCORES)
    )
    graph.register_initializer(asked)
    if any(tensor.name == asked.name for tensor in spec.optional_inputs):
        graph.inputs.append(asked)
    _table, bias = weights
    assert bias.const_value is not None
    rows = max(1, _MAX_LOGITS // bias.const_value.size)
    part = parse_graph(_text(rows, decoded.free is not None), opset)
    for node in ir.traversal.RecursiveGraphIterator(part):
        if node.outputs[0].name == "whole_table":
            mark_whole_reader(node)
    read = [value for value in decoded if value is not None]
    nodes, (scores,) = take_nodes(part, [asked, *read, *weights], "scores/")
    graph.extend(nodes)
    return scores


def _text(rows: int, some_forced: bool) -> str:
    """The scores as a graph, with the logits of ``rows`` positions at a time."""
    free = "bool[batch, length] free," if some_forced else ""
    return f"""
    score (bool asked, int64[batch, length] sequences, int64[batch] count,
           float[batch, length, width] states, {free} float[vocabulary, width] table,
           float[vocabulary] bias)
        => (float[batch] scores)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        scores = If (asked) <
            then_branch = computed () => (float[batch] mean)
            {{
                whole_table = Identity (table)
                {_COUNTED_POSITIONS}
                {_log_probs_text(rows)}
                {_mean(some_forced)}
            }},
            else_branch = not_asked () => (float[batch] nan)
            {{
                height = Shape (count)
                nan = ConstantOfShape <value = float[1] {{nan}}> (height)
            }}
        >
    }}"""


# The decoder's states and the tokens at the positions that count, without padding.
_COUNTED_POSITIONS = """
                width_shape = Shape <start = 1, end = 2> (sequences)
                width = Squeeze (width_shape, first)
                positions = Range (zero, width, one)
                columns = Unsqueeze (count, second)
                counts_in = Less (positions, columns)
                left = NonZero (counts_in)
                places = Transpose <perm = [1, 0]> (left)
                x = GatherND (states, places)
                tokens = GatherND (sequences, places)"""


def _log_probs_text(rows: int) -> str:
    """The log-probabilities of these tokens, ``rows`` of them in each iteration of a Loop."""
    return f"""
                number = Size (tokens)
                rows = Constant <value = int64 {{{rows}}}> ()
                rows_less_one = Constant <value = int64 {{{rows - 1}}}> ()
                number_up = Add (number, rows_less_one)
                trips = Div (number_up, rows)
                yes = Constant <value = bool {{1}}> ()
                nothing = ConstantOfShape <value = float[1] {{0.0}}> (first)
                log_probs = Loop (trips, yes, nothing) <
                    body = some (int64 trip, bool going, float[done] before)
                        => (bool still_going, float[more] after)
                    {{
                        still_going = Identity (going)
                        start = Mul (trip, rows)
                        end = Add (start, rows)
                        starts = Unsqueeze (start, first)
                        ends = Unsqueeze (end, first)
                        some_x = Slice (x, starts, ends, first)
                        some_tokens = Slice (tokens, starts, ends, first)
                        logits = Gemm <transB = 1> (some_x, whole_table, bias)
                        of_all = LogSoftmax <axis = 1> (logits)
                        token_columns = Unsqueeze (some_tokens, second)
                        chosen = GatherElements <axis = 1> (of_all, token_columns)
                        some_log_probs = Squeeze (chosen, second)
                        after = Concat <axis = 0> (before, some_log_probs)
                    }}
                >"""


def _mean(some_forced: bool) -> str:
    """The mean log-probability of each row, 0 for a row without tokens; forced ones count as 0."""
    summed = "counted" if some_forced else "written"
    counted = "counted = Where (free, written, zeros)" if some_forced else ""
    return f"""
                area = Shape (sequences)
                zeros = ConstantOfShape <value = float[1] {{0.0}}> (area)
                written = ScatterND (zeros, places, log_probs)
                {counted}
                total = ReduceSum <keepdims = 0> ({summed}, second)
                lengths = Max (count, one)
                float_lengths = Cast <to = 1> (lengths)
                mean = Div (total, float_lengths)"""
