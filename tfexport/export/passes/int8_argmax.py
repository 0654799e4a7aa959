"""The best token of each row, exactly, without most of the projection onto the vocabulary.

Every word's logit is first computed in int8, which reads a quarter of the memory and takes a
fraction of the time, together with how far it can be off. What could still be the best is then
computed again in float32, and the best of those is the best of all. With h a row's state, w a
word's weights, and H and W what int8 made of them, Cauchy and Schwarz bound

    |h w - H W| = |h (w - W) + (h - H) W| <= ||h|| max ||w - W|| + ||h - H|| max ||W||

so a word whose approximate logit lies further than twice that below the highest one is not the
best. Should too many be left, all are computed in float32.

Axes: R rows, E model width, V vocabulary, V' the same in whole blocks, C words that are left.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tfexport.export.ir_tools.initializers import share_initializer
from tfexport.export.ir_tools.operators import BEST_TOKEN, is_operator
from tfexport.export.ir_tools.roles import PROJECTION, Role, read_role, write_role
from tfexport.export.ir_tools.rounding import Floats, by_rows
from tfexport.export.ir_tools.text_form import parse_graph, take_nodes

CHOICE = "exactly_or_all"  # the node that has the float32 projection as its first branch
_PREFIX, _PREPARED = "best/", "coarse/"
_BLOCK = 64  # words looked at together: a maximum is read with vector instructions
_LEVELS, _FEWER_LEVELS = 127, 63  # of a state's bytes on either side of zero
_MOST = 4  # one in so many words at most is computed again
_ROUNDING = 1e-5  # of float32 sums, relative to the product of the lengths; far above it
_LOWEST = float(np.finfo(np.float32).min)


def insert_argmax(
    graph: ir.Graph, body: ir.Graph, table: Floats, bias: Floats | None, opset: int
) -> list[ir.Value]:
    """Replace ``BEST_TOKEN`` in a loop's body.

    Args:
        graph: around the loop; it takes the weights.
        body: with a ``BEST_TOKEN`` of states (R, 1, E), which gives tokens (R, 1).
        table: (V, E), the projection onto the vocabulary.
        bias: (V,) of it.
        opset: of the standard operators.

    Returns:
        Table and bias in the graph; a bias of 0 if there is none.
    """
    (size, width), missing = table.shape, -len(table) % _BLOCK
    bias = np.zeros(size, np.float32) if bias is None else bias
    rounded, scale = by_rows(table, _LEVELS)
    arrays = {
        "weight": table,
        "bias": bias,
        "scale": scale,
        # Behind the vocabulary there is nothing to choose.
        "bias_in_blocks": np.pad(bias, (0, missing), constant_values=_LOWEST),
        "scale_in_blocks": np.pad(scale, (0, missing), constant_values=1),
    }
    weights = {
        name: share_initializer(graph, f"output_proj.{name}", array)
        for name, array in arrays.items()
    }
    if read_role(weights["weight"]) is None:
        write_role(weights["weight"], Role("output_proj.weight", PROJECTION))
    prepared = parse_graph(_prepare(size, width, missing), opset)
    nodes, made = take_nodes(prepared, [weights["weight"], weights["scale"]], _PREPARED)
    graph.extend(nodes)

    (place,) = [node for node in body if is_operator(node, BEST_TOKEN)]
    (states,) = place.inputs
    assert states is not None
    screen = parse_graph(_screen(table, rounded * scale[:, None], bias, missing), opset)
    given = [states, *(weights[name] for name in arrays if name != "scale"), *made]
    nodes, (best,) = take_nodes(screen, given, _PREFIX)
    body.insert_before(place, nodes)
    ir.convenience.replace_all_uses_with(place.outputs[0], best)
    body.remove(place, safe=True)
    return [weights["weight"], weights["bias"]]


def take_all(model: ir.Model, unless: Callable[[ir.Value], bool]) -> None:
    """Take the screening out again: every logit from the projection as it stands, and the best.

    For weights that are to be quantised, and then are what the model computes with.

    Args:
        model: a graph of a bundle.
        unless: told of the projection's table whether it stays as it is.
    """
    for choice in [node for node in model.graph.all_nodes() if _is_choice(node)]:
        branch = choice.attributes["then_branch"].as_graph()
        (product,) = [node for node in branch if node.op_type == "Gemm"]
        _, table, _ = product.inputs
        assert table is not None
        if unless(table):
            continue
        body = choice.graph
        assert body is not None
        assert isinstance(body, ir.Graph)
        nodes, (best,) = take_nodes(branch, [], "")
        body.insert_before(choice, nodes)
        ir.convenience.replace_all_uses_with(choice.outputs[0], best)
        # A branch that is gone would go on using what is around it.
        rest = choice.attributes["else_branch"].as_graph()
        rest.outputs.clear()
        rest.remove(list(rest), safe=True)
        body.remove(choice, safe=True)
        _write_as_matmul(model.graph, product)


def _is_choice(node: ir.Node) -> bool:
    return node.op_type == "If" and (node.name or "").endswith(CHOICE)


def _write_as_matmul(graph: ir.Graph, node: ir.Node) -> None:
    """X table^T + bias as three operators; the table is turned outside, once."""
    x, table, bias = node.inputs
    turned = ir.Node("", "Transpose", [table], [ir.AttrInt64s("perm", [1, 0])], num_outputs=1)
    product = ir.Node("", "MatMul", [x, turned.outputs[0]], num_outputs=1)
    total = ir.Node("", "Add", [product.outputs[0], bias], num_outputs=1)
    for made, name in ((turned, "turned"), (product, "product"), (total, "logits")):
        made.name = made.outputs[0].name = f"{node.name}/{name}"
    graph.insert_before(graph[0], turned)
    assert node.graph is not None
    node.graph.insert_before(node, [product, total])
    ir.convenience.replace_all_uses_with(node.outputs[0], total.outputs[0])
    node.graph.remove(node, safe=True)


def _prepare(size: int, width: int, missing: int) -> str:
    """Table and scales (V,) to int8 (E, V'), and how finely states may be quantised.

    onnxruntime folds all of it when it loads the graph. Processors without dot products of bytes
    add pairs of them in 16 bits, and what does not fit they cut off: that is found out here, where
    it is folded, and such a processor gets states of 7 bits, whose pairs fit.
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
        fine = Constant <value = float {{{1 / _LEVELS!r}}}> ()
        rough = Constant <value = float {{{1 / _FEWER_LEVELS!r}}}> ()
        step = Where (fits, fine, rough)
        fine_middle = Constant <value = uint8 {{{_LEVELS + 1}}}> ()
        rough_middle = Constant <value = uint8 {{{_FEWER_LEVELS + 1}}}> ()
        middle = Where (fits, fine_middle, rough_middle)
    }}"""


def _screen(table: Floats, coarse: Floats, bias: Floats, missing: int) -> str:
    """States (R, 1, E) to the best tokens (R, 1); coarse is what int8 made of the table."""
    size, width = table.shape
    longest = float(np.linalg.norm(coarse, axis=-1).max())
    furthest = float(np.linalg.norm(table - coarse, axis=-1).max()) + _ROUNDING * longest
    # A sum's rounding grows with the bias that is added; a low bias is not near the highest logit.
    largest_bias = float(bias.max(initial=0.0))
    pad = (
        f"""pads = Constant <value = int64[4] {{0, 0, 0, {missing}}}> ()
            lowest = Constant <value = float {{{_LOWEST!r}}}> ()
            logits = Pad (own_logits, pads, lowest)"""
        if missing
        else "logits = Identity (own_logits)"
    )
    return f"""
    screen (float[rows, 1, {width}] states, float[{size}, {width}] table, float[{size}] bias,
            float[{size + missing}] bias_in_blocks, float[{size + missing}] scale,
            int8[{width}, {size + missing}] coarse, float step, uint8 middle)
        => (int64[rows, 1] best)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        third = Constant <value = int64[1] {{2}}> ()
        flat = Constant <value = int64[2] {{-1, {width}}}> ()
        blocks = Constant <value = int64[3] {{0, -1, {_BLOCK}}}> ()
        x = Reshape (states, flat)

        sizes = Abs (x)
        largest = ReduceMax <keepdims = 0> (sizes)
        in_steps = Mul (largest, step)
        tiny = Constant <value = float {{1e-30}}> ()
        x_scale = Max (in_steps, tiny)
        x_coarse = QuantizeLinear (x, x_scale, middle)
        sums = MatMulInteger (x_coarse, coarse, middle)
        as_float = Cast <to = 1> (sums)
        scales = Mul (x_scale, scale)
        scaled = Mul (as_float, scales)
        about = Add (scaled, bias_in_blocks)
        in_blocks = Reshape (about, blocks)
        highest_in_block = ReduceMax <keepdims = 0> (in_blocks, third)
        highest = ReduceMax (highest_in_block, second)

        x_again = DequantizeLinear (x_coarse, x_scale, middle)
        lost = Sub (x, x_again)
        length_lost = ReduceL2 (lost, second)
        length = ReduceL2 (x, second)
        twice_longest = Constant <value = float {{{2 * longest!r}}}> ()
        twice_furthest = Constant <value = float {{{2 * furthest!r}}}> ()
        of_states = Mul (length_lost, twice_longest)
        of_words = Mul (length, twice_furthest)
        of_bias = Constant <value = float {{{largest_bias * 2**-20!r}}}> ()
        of_both = Add (of_states, of_words)
        margin = Add (of_both, of_bias)
        threshold = Sub (highest, margin)

        # "Not less", so that what is no number counts as being left.
        block_is_out = Less (highest_in_block, threshold)
        block_is_in = Not (block_is_out)
        left_blocks = NonZero (block_is_in)
        block_places = Transpose <perm = [1, 0]> (left_blocks)
        candidates = GatherND (in_blocks, block_places)
        block_row = Gather <axis = 0> (left_blocks, zero)
        block_number = Gather <axis = 0> (left_blocks, one)
        own_threshold = Gather <axis = 0> (threshold, block_row)
        is_out = Less (candidates, own_threshold)
        is_in = Not (is_out)
        left = NonZero (is_in)
        left_size = Size (left)  # two numbers a word
        most = Constant <value = int64 {{{2 * max(_BLOCK, size // _MOST)}}}> ()
        too_many = Greater (left_size, most)
        {CHOICE} = If (too_many) <
            then_branch = all () => (int64[rows] best_of_all)
            {{
                own_logits = Gemm <transB = 1> (x, table, bias)
                {pad}
                logits_in_blocks = Reshape (logits, blocks)
                block_best = ReduceMax <keepdims = 0> (logits_in_blocks, third)
                chosen = ArgMax <axis = 1> (block_best)
                inside = GatherND <batch_dims = 1> (logits_in_blocks, chosen)
                inside_best = ArgMax <axis = 1, keepdims = 0> (inside)
                chosen_block = Squeeze (chosen, second)
                chosen_size = Constant <value = int64 {{{_BLOCK}}}> ()
                chosen_first = Mul (chosen_block, chosen_size)
                best_of_all = Add (chosen_first, inside_best)
            }},
            else_branch = exactly () => (int64[rows] best_of_left)
            {{
                block = Gather <axis = 0> (left, zero)
                place = Gather <axis = 0> (left, one)
                row = Gather <axis = 0> (block_row, block)
                number = Gather <axis = 0> (block_number, block)
                block_size = Constant <value = int64 {{{_BLOCK}}}> ()
                first = Mul (number, block_size)
                word = Add (first, place)
                its_weights = Gather <axis = 0> (table, word)
                its_states = Gather <axis = 0> (x, row)
                # Products of one shape, one by one: equal words get equal sums, wherever they lie.
                in_columns = Unsqueeze (its_weights, third)
                in_rows = Unsqueeze (its_states, second)
                products = MatMul (in_rows, in_columns)
                every = Constant <value = int64[1] {{-1}}> ()
                product = Reshape (products, every)
                its_bias = Gather <axis = 0> (bias_in_blocks, word)
                logit = Add (product, its_bias)
                height = Shape <start = 0, end = 1> (x)
                column = Unsqueeze (row, second)
                lowest_logits = ConstantOfShape <value = float[1] {{{_LOWEST!r}}}> (height)
                best_logits = ScatterND <reduction = "max"> (lowest_logits, column, logit)
                best_logit = Gather <axis = 0> (best_logits, row)
                is_best = Equal (logit, best_logit)
                none = Constant <value = int64 {{{size}}}> ()
                best_word = Where (is_best, word, none)
                last_words = ConstantOfShape <value = int64[1] {{{size}}}> (height)
                best_of_left = ScatterND <reduction = "min"> (last_words, column, best_word)
            }}
        >
        best = Unsqueeze ({CHOICE}, second)
    }}"""
