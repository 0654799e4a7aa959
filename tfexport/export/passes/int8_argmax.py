"""The exact argmax of the logits of each row, with int8 pre-selection.

Every logit is first computed in int8, which reads a quarter of the memory, together with a bound of
its error. Tokens that may still have the highest logit are computed again in float32, and the
argmax of those is the argmax of all. With h a row's hidden state, w a token's row of the
projection, and H and W their values after quantisation, the Cauchy-Schwarz inequality gives

    |h w - H W| = |h (w - W) + (h - H) W| <= ||h|| max ||w - W|| + ||h - H|| max ||W||

so a token whose approximate logit is lower than the highest one by more than twice that bound is
not the argmax. If too many tokens remain, all logits are computed in float32.

Axes: R rows, E model width, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tfexport.export.ir_tools.initializers import share_initializer
from tfexport.export.ir_tools.nodes import new_node
from tfexport.export.ir_tools.operators import BEST_TOKEN, is_operator
from tfexport.export.ir_tools.roles import PROJECTION, Role, read_role, write_role
from tfexport.export.ir_tools.rounding import Floats, quantize_per_row
from tfexport.export.ir_tools.text_form import parse_graph, take_nodes
from tfexport.export.passes.int8_argmax_text import (
    BLOCK,
    CHOICE,
    LEVELS,
    LOWEST,
    argmax_text,
    prepare_text,
)

_PREFIX, _PREPARED = "best/", "coarse/"


def insert_argmax(
    graph: ir.Graph, body: ir.Graph, table: Floats, bias: Floats | None, opset: int
) -> list[ir.Value]:
    """Replace the placeholder ``BEST_TOKEN`` in a loop's body.

    Args:
        graph: the outer graph, which gets the weights.
        body: with a ``BEST_TOKEN`` of states (R, 1, E), which gives tokens (R, 1).
        table: (V, E), the output projection.
        bias: (V,) of the output projection.
        opset: of the standard operators.

    Returns:
        Table and bias in the graph; a bias of 0 if there is none.
    """
    size, width = table.shape
    bias = np.zeros(size, np.float32) if bias is None else bias
    missing = -size % BLOCK
    quantized, scale = quantize_per_row(table, LEVELS)
    weights = _add_weights(graph, table, bias, scale, missing)
    prepared = parse_graph(prepare_text(size, width, missing), opset)
    nodes, made = take_nodes(prepared, [weights["weight"], weights["scale"]], _PREPARED)
    graph.extend(nodes)

    (place,) = [node for node in body if is_operator(node, BEST_TOKEN)]
    (states,) = place.inputs
    assert states is not None
    dequantized = quantized * scale[:, None]
    argmax = parse_graph(argmax_text(table, dequantized, bias, missing), opset)
    given = [states, *(value for name, value in weights.items() if name != "scale"), *made]
    nodes, (best,) = take_nodes(argmax, given, _PREFIX)
    body.insert_before(place, nodes)
    ir.convenience.replace_all_uses_with(place.outputs[0], best, replace_graph_outputs=True)
    body.remove(place, safe=True)
    return [weights["weight"], weights["bias"]]


def _add_weights(
    graph: ir.Graph, table: Floats, bias: Floats, scale: Floats, missing: int
) -> dict[str, ir.Value]:
    """Add table, bias and scales, the last two padded so that padding is never the argmax."""
    arrays = {
        "weight": table,
        "bias": bias,
        "scale": scale,
        "bias_in_blocks": np.pad(bias, (0, missing), constant_values=LOWEST),
        "scale_in_blocks": np.pad(scale, (0, missing), constant_values=1),
    }
    weights = {
        name: share_initializer(graph, f"output_proj.{name}", array)
        for name, array in arrays.items()
    }
    if read_role(weights["weight"]) is None:
        write_role(weights["weight"], Role("output_proj.weight", PROJECTION))
    return weights


def remove_preselection(model: ir.Model, keeps: Callable[[ir.Value], bool]) -> None:
    """Replace pre-selection by the whole projection and an argmax of all logits.

    Quantising needs this: afterwards the projection's own weights are quantised.

    Args:
        model: a graph of a bundle.
        keeps: from the projection's table to whether its pre-selection stays.
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
