"""The exact argmax of the logits of each row, with int8 pre-selection.

Every logit is first computed in int8, which reads a quarter of the memory, together with a bound of
its error. Tokens that may still have the highest logit are computed again in float32, and the
argmax of those is the argmax of all. With h a row's hidden state, w a token's row of the
projection, and H and W their values after quantisation, the Cauchy-Schwarz inequality gives

    |h w - H W| = |h (w - W) + (h - H) W| <= ||h|| max ||w - W|| + ||h - H|| max ||W||

where the maxima are those of a block of tokens, so that a few long rows of the table do not loosen
the bound of all others. A token whose approximate logit plus its bound is lower than any other's
minus its own is not the argmax. If too many tokens remain, all logits are computed in float32.

Axes: R rows, E model width, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tfexport.export.ir_tools.nodes import (
    BEST_TOKEN,
    PROJECTION,
    Role,
    is_operator,
    new_node,
    parse_graph,
    read_role,
    share_initializer,
    take_nodes,
    write_role,
)
from tfexport.export.ir_tools.quantization import Floats, quantize_per_row

# Names in the ONNX text, which are part of exported files: ``coarse`` is quantized, ``step`` the
# scale of quantized states relative to their maximum, ``middle`` their zero point, ``words`` are
# tokens, ``about`` are approximate logits, and ``left`` are the tokens or blocks that remain.
#
# Axes: R rows, E model width, V vocabulary, V' padded to full blocks, C remaining tokens.


CHOICE = "exactly_or_all"  # the If whose then_branch holds the full float32 projection
BLOCK = 64  # tokens whose maximum is computed first, with vector instructions
LEVELS, _FEWER_LEVELS = 127, 63  # quantized states go from -LEVELS to LEVELS
_MOST = 4  # at most a quarter of the tokens is computed again
_ROUNDING = 1e-5  # of float32 sums, relative to the product of the lengths; far above it
LOWEST = float(np.finfo(np.float32).min)


def prepare_text(size: int, width: int, missing: int) -> str:
    """Table and scales (V,) to int8 (E, V'), and the scale and zero point of quantised states.

    onnxruntime folds all of it to constants when it loads the graph. Processors without int8 dot
    products add pairs of products in 16 bits, which saturate. The graph tests for that with one
    product, and on such a processor quantises states to 7 bits, whose pairs fit.
    """
    return f"""
    prepare (float[{size}, {width}] table, float[{size}] scale)
        => (int8[{width}, {size + missing}] coarse, float step, uint8 middle)
    {{
        zeros = Constant <value = int8[1] {{0}}> ()
        sizes = Shape (scale)
        zero_points = Expand (zeros, sizes)
        words = QuantizeLinear <axis = 0> (table, scale, zero_points)
        pads = Constant <value = int64[4] {{0, 0, {missing}, 0}}> ()
        zero = Constant <value = int8 {{0}}> ()
        in_blocks = Pad (words, pads, zero)
        coarse = Transpose <perm = [1, 0]> (in_blocks)

        largest = Constant <value = uint8[1, 4] {{255, 255, 255, 255}}> ()
        largest_too = Constant <value = int8[4, 1] {{127, 127, 127, 127}}> ()
        total = MatMulInteger (largest, largest_too)
        expected = Constant <value = int32[1, 1] {{{4 * 255 * 127}}}> ()
        equal = Equal (total, expected)
        fits = Squeeze (equal)
        fine = Constant <value = float {{{1 / LEVELS!r}}}> ()
        rough = Constant <value = float {{{1 / _FEWER_LEVELS!r}}}> ()
        step = Where (fits, fine, rough)
        fine_middle = Constant <value = uint8 {{{LEVELS + 1}}}> ()
        rough_middle = Constant <value = uint8 {{{_FEWER_LEVELS + 1}}}> ()
        middle = Where (fits, fine_middle, rough_middle)
    }}"""


def argmax_text(size: int, width: int, bias: Floats, missing: int) -> str:
    """States (R, 1, E) to the tokens (R, 1) of the highest logits, as a graph.

    Args:
        size: V.
        width: E.
        bias: (V,).
        missing: V' - V.
    """
    padded = size + missing
    return f"""
    screen (float[rows, 1, {width}] states, float[{size}, {width}] table, float[{size}] bias,
            float[{padded}] bias_in_blocks, float[{padded}] scale,
            float[{padded // BLOCK}] longest, float[{padded // BLOCK}] furthest,
            int8[{width}, {padded}] coarse, float step, uint8 middle)
        => (int64[rows, 1] best)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        third = Constant <value = int64[1] {{2}}> ()
        flat = Constant <value = int64[2] {{-1, {width}}}> ()
        blocks = Constant <value = int64[3] {{0, -1, {BLOCK}}}> ()
        x = Reshape (states, flat)
        {_APPROXIMATE_LOGITS}
        {_bounds_text(bias)}
        {_PRESELECT}
        most = Constant <value = int64 {{{2 * max(BLOCK, size // _MOST)}}}> ()
        too_many = Greater (left_size, most)
        {CHOICE} = If (too_many) <
            then_branch = all () => (int64[rows] best_of_all)
            {{
                {_best_of_all_text(missing)}
            }},
            else_branch = exactly () => (int64[rows] best_of_left)
            {{
                {_best_of_left_text(size)}
            }}
        >
        best = Unsqueeze ({CHOICE}, second)
    }}"""


# Approximate logits, and the highest of each block, (R, V' / block). States are quantised with one
# scale for all rows.
_APPROXIMATE_LOGITS = """
        sizes = Abs (x)
        largest = ReduceMax <keepdims = 0> (sizes)
        in_steps = Mul (largest, step)
        tiny = Constant <value = float {1e-30}> ()
        x_scale = Max (in_steps, tiny)
        x_coarse = QuantizeLinear (x, x_scale, middle)
        sums = MatMulInteger (x_coarse, coarse, middle)
        as_float = Cast <to = 1> (sums)
        scales = Mul (x_scale, scale)
        scaled = Mul (as_float, scales)
        about = Add (scaled, bias_in_blocks)
        in_blocks = Reshape (about, blocks)
        highest_in_block = ReduceMax <keepdims = 0> (in_blocks, third)"""


def _bounds_text(bias: Floats) -> str:
    """By how much approximate logits of a block may be wrong, (R, V' / block), and what is sure.

    That is a value for each row, (R, 1), which its highest logit is not below.
    """
    # Rounding errors grow with the bias. Negative biases do not matter: their logits are low.
    largest_bias = float(bias.max(initial=0.0))
    return f"""
        x_again = DequantizeLinear (x_coarse, x_scale, middle)
        lost = Sub (x, x_again)
        length_lost = ReduceL2 (lost, second)
        length = ReduceL2 (x, second)
        of_states = Mul (length_lost, longest)
        of_words = Mul (length, furthest)
        of_bias = Constant <value = float {{{largest_bias * 2**-21!r}}}> ()
        of_both = Add (of_states, of_words)
        bound = Add (of_both, of_bias)
        least_in_block = Sub (highest_in_block, bound)
        sure = ReduceMax (least_in_block, second)"""


# The remaining tokens: first full blocks, then tokens within these. left_size is twice their
# number, as NonZero gives two indices each. Not(Less) is used so that NaN remains.
_PRESELECT = """
        most_in_block = Add (highest_in_block, bound)
        block_is_out = Less (most_in_block, sure)
        block_is_in = Not (block_is_out)
        left_blocks = NonZero (block_is_in)
        block_places = Transpose <perm = [1, 0]> (left_blocks)
        candidates = GatherND (in_blocks, block_places)
        block_row = Gather <axis = 0> (left_blocks, zero)
        block_number = Gather <axis = 0> (left_blocks, one)
        own_bounds = GatherND (bound, block_places)
        own_bound = Unsqueeze (own_bounds, second)
        at_most = Add (candidates, own_bound)
        own_sure = Gather <axis = 0> (sure, block_row)
        is_out = Less (at_most, own_sure)
        is_in = Not (is_out)
        left = NonZero (is_in)
        left_size = Size (left)"""


def _best_of_all_text(missing: int) -> str:
    """The argmax of all logits in float32, by blocks first."""
    pad = (
        f"""pads = Constant <value = int64[4] {{0, 0, 0, {missing}}}> ()
                lowest = Constant <value = float {{{LOWEST!r}}}> ()
                logits = Pad (own_logits, pads, lowest)"""
        if missing
        else "logits = Identity (own_logits)"
    )
    return f"""
                own_logits = Gemm <transB = 1> (x, table, bias)
                {pad}
                logits_in_blocks = Reshape (logits, blocks)
                block_best = ReduceMax <keepdims = 0> (logits_in_blocks, third)
                chosen = ArgMax <axis = 1> (block_best)
                inside = GatherND <batch_dims = 1> (logits_in_blocks, chosen)
                inside_best = ArgMax <axis = 1, keepdims = 0> (inside)
                chosen_block = Squeeze (chosen, second)
                chosen_size = Constant <value = int64 {{{BLOCK}}}> ()
                chosen_first = Mul (chosen_block, chosen_size)
                best_of_all = Add (chosen_first, inside_best)"""


def _best_of_left_text(size: int) -> str:
    """The best of the float32 logits of the C tokens that are left; of equal ones the first.

    Products have one shape and are computed one by one, so that equal rows of the table get equal
    sums, wherever they are.
    """
    return f"""
                block = Gather <axis = 0> (left, zero)
                place = Gather <axis = 0> (left, one)
                row = Gather <axis = 0> (block_row, block)
                number = Gather <axis = 0> (block_number, block)
                block_size = Constant <value = int64 {{{BLOCK}}}> ()
                first = Mul (number, block_size)
                word = Add (first, place)
                its_weights = Gather <axis = 0> (table, word)
                its_states = Gather <axis = 0> (x, row)
                in_columns = Unsqueeze (its_weights, third)
                in_rows = Unsqueeze (its_states, second)
                products = MatMul (in_rows, in_columns)
                every = Constant <value = int64[1] {{-1}}> ()
                product = Reshape (products, every)
                its_bias = Gather <axis = 0> (bias_in_blocks, word)
                logit = Add (product, its_bias)
                height = Shape <start = 0, end = 1> (x)
                column = Unsqueeze (row, second)
                lowest_logits = ConstantOfShape <value = float[1] {{{LOWEST!r}}}> (height)
                best_logits = ScatterND <reduction = "max"> (lowest_logits, column, logit)
                best_logit = Gather <axis = 0> (best_logits, row)
                is_best = Equal (logit, best_logit)
                none = Constant <value = int64 {{{size}}}> ()
                best_word = Where (is_best, word, none)
                last_words = ConstantOfShape <value = int64[1] {{{size}}}> (height)
                best_of_left = ScatterND <reduction = "min"> (last_words, column, best_word)"""


_PREFIX, _PREPARED = "best/", "coarse/"


def insert_argmax(
    graph: ir.Graph, body: ir.Graph, table: Floats, bias: Floats | None, opset: int
) -> list[ir.Value]:
    """Replace the placeholder ``BEST_TOKEN`` in a loop's body.

    Args:
        graph: the outer graph, which gets the weights.
        body: the body, with a ``BEST_TOKEN`` from states (R, 1, E) to tokens (R, 1).
        table: (V, E), the output projection.
        bias: (V,) of the output projection.
        opset: the opset version of the standard operators.

    Returns:
        Table and bias in the graph; a bias of 0 if there is none.
    """
    size, width = table.shape
    bias = np.zeros(size, np.float32) if bias is None else bias
    missing = -size % BLOCK
    quantized, scale = quantize_per_row(table, LEVELS)
    dequantized = quantized * scale[:, None]
    weights = _add_weights(graph, table, dequantized, bias, scale)
    prepared = parse_graph(prepare_text(size, width, missing), opset)
    nodes, made = take_nodes(prepared, [weights["weight"], weights["scale"]], _PREPARED)
    graph.extend(nodes)

    (place,) = [node for node in body if is_operator(node, BEST_TOKEN)]
    (states,) = place.inputs
    assert states is not None
    argmax = parse_graph(argmax_text(size, width, bias, missing), opset)
    given = [states, *(value for name, value in weights.items() if name != "scale"), *made]
    nodes, (best,) = take_nodes(argmax, given, _PREFIX)
    body.insert_before(place, nodes)
    ir.convenience.replace_all_uses_with(place.outputs[0], best, replace_graph_outputs=True)
    body.remove(place, safe=True)
    return [weights["weight"], weights["bias"]]


def _add_weights(
    graph: ir.Graph, table: Floats, dequantized: Floats, bias: Floats, scale: Floats
) -> dict[str, ir.Value]:
    """Add table, bias and scales, the last two padded so that padding is never the argmax.

    And of each block of tokens the length of its longest row, and how far quantisation moves any.
    """
    missing = -len(table) % BLOCK
    lengths = np.linalg.norm(dequantized, axis=-1)
    errors = np.linalg.norm(table - dequantized, axis=-1) + _ROUNDING * lengths
    longest, furthest = (
        np.pad(values, (0, missing)).reshape(-1, BLOCK).max(-1).astype(np.float32)
        for values in (lengths, errors)
    )
    arrays = {
        "weight": table,
        "bias": bias,
        "scale": scale,
        "bias_in_blocks": np.pad(bias, (0, missing), constant_values=LOWEST),
        "scale_in_blocks": np.pad(scale, (0, missing), constant_values=1),
        "longest_in_blocks": longest,
        "furthest_in_blocks": furthest,
    }
    weights = {
        name: share_initializer(graph, f"output_proj.{name}", array)
        for name, array in arrays.items()
    }
    if read_role(weights["weight"]) is None:
        write_role(weights["weight"], Role("output_proj.weight", PROJECTION))
    return weights


def remove_preselection(model: ir.Model, keeps: Callable[[ir.Value], bool]) -> None:
    """Replace pre-selection by the full projection and an argmax of all logits.

    Quantising needs this: afterwards the projection's own weights are quantised.

    Args:
        model: a graph of a bundle.
        keeps: returns whether the pre-selection of a projection's table stays.
    """
    for choice in [node for node in model.graph.all_nodes() if _is_choice(node)]:
        branch = choice.attributes["then_branch"].as_graph()
        (product,) = [node for node in branch if node.op_type == "Gemm"]
        _, table, _ = product.inputs
        assert table is not None
        if keeps(table):
            continue
        body = choice.graph
        assert body is not None
        assert isinstance(body, ir.Graph)
        nodes, (best,) = take_nodes(branch, [], "")
        body.insert_before(choice, nodes)
        ir.convenience.replace_all_uses_with(choice.outputs[0], best)
        # Otherwise the removed branch would still count as a user of outer values.
        rest = choice.attributes["else_branch"].as_graph()
        rest.outputs.clear()
        rest.remove(list(rest), safe=True)
        body.remove(choice, safe=True)
        _write_as_matmul(model.graph, product)


def _is_choice(node: ir.Node) -> bool:
    return node.op_type == "If" and (node.name or "").endswith(CHOICE)


def _write_as_matmul(graph: ir.Graph, node: ir.Node) -> None:
    """Write a Gemm as Transpose, MatMul and Add, with the Transpose in the outermost graph."""
    x, table, bias = node.inputs
    transposed = new_node("Transpose", [table], f"{node.name}/turned", {"perm": [1, 0]})
    product = new_node("MatMul", [x, transposed.outputs[0]], f"{node.name}/product")
    total = new_node("Add", [product.outputs[0], bias], f"{node.name}/logits")
    graph.insert_before(graph[0], transposed)
    assert node.graph is not None
    node.graph.insert_before(node, [product, total])
    ir.convenience.replace_all_uses_with(node.outputs[0], total.outputs[0])
    node.graph.remove(node, safe=True)
