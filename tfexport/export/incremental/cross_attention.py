"""The weights of cross-attention in an exported forward.

Axes: B batch, L layers, H heads, T target, S source, D head size.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.errors import ExportError
from tfexport.export.incremental.attention import attention
from tfexport.export.incremental.fused import lighten
from tfexport.export.incremental.program import FIRST, LONGER, MORE_SOURCE, Program, Size
from tfexport.export.incremental.recurrent import is_recurrent, sequence
from tfexport.export.incremental.step_graphs import SHAPED, attribute_of, holder_of
from tfexport.export.modules.softmaxes import nearest_weights, softmaxes
from tfexport.export.report import LEAST_ALLOWED
from tfexport.export.rounding import difference
from tfexport.graph_io import ATTENTION_MASK, INPUT_IDS


@dataclass(frozen=True)
class CrossAttention:
    """Attention from the target ids to those of the source.

    Attributes:
        module: the graph of its weights: inputs, target ids (B, T) -> (B, L * H, T, S).
        layers: L.
        heads: H of each.
    """

    module: fx.GraphModule
    layers: int
    heads: int


def _module_of(program: Program, nodes: Sequence[fx.Node], fused: bool) -> fx.GraphModule:
    """See ``CrossAttention``; ``nodes`` are the calls of ``attention`` that it gives."""
    graph, copies, weights = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
    for node in (*program.inputs, program.target):
        copies[node] = graph.placeholder(node.name)
    for node in program.graph.nodes:
        if node in program.tensors:
            copies[node] = graph.get_attr(attribute_of(program, node))
        elif node.op == "call_function":
            copies[node] = graph.node_copy(node, lambda each: copies[each])
            if is_recurrent(node):
                copies[node].args = (node.target, *copies[node].args)
                copies[node].target = sequence
        if node in nodes:
            query, key, _, bias, scale = copies[node].args
            made = graph.call_function(attention_weights, (query, key, bias, scale))
            made.meta |= {name: each for name, each in node.meta.items() if name != "val"}
            weights.append(made)
    graph.output(graph.call_function(torch.cat, (weights, 1)))
    graph.eliminate_dead_code()
    module = fx.GraphModule(holder_of(program), graph)
    if fused:
        examples = (program.examples[run] for run in SHAPED)
        lighten(module, [(*each.inputs, each.target) for each in examples], 0, fused)
    return module


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The weights (B, H, T, S) of ``attention``."""
    scores = (query * scale) @ key.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(-1)


@torch.no_grad()
def find_cross_attention(program: Program, fused: bool) -> CrossAttention | None:
    """Find the attention to the source ids, with the same number of heads in each layer.

    Args:
        program: of a forward.
        fused: compute other attention by an operator of onnxruntime, as the graphs of the encoder
            and of a step do, whose weights it shares.

    Returns:
        None if the source is something else than ids, or if there is no such attention.

    Raises:
        ExportError: the numbers of heads differ, or the weights are not those of a softmax that the
            forward computes in eager PyTorch.
    """
    inputs = dict(zip((each.name for each in program.own.inputs), program.inputs, strict=True))
    if INPUT_IDS not in inputs or inputs.keys() - {INPUT_IDS, ATTENTION_MASK}:
        return None
    length = program.sizes(inputs[INPUT_IDS])[1]
    nodes = tuple(
        node
        for node in program.graph.nodes
        if node.target is attention and _crosses(program, node, length)
    )
    heads = {program.sizes(node.args[0])[1][FIRST] for node in nodes}
    if not heads:
        return None
    if len(heads) > 1:
        raise ExportError(f"its layers have {' and '.join(map(str, sorted(heads)))} heads")
    found = CrossAttention(_module_of(program, nodes, fused), len(nodes), heads.pop())
    for run in (LONGER, MORE_SOURCE):
        example = program.examples[run]
        source, target = [tensor[:1] for tensor in example.inputs], example.target[:1]
        weights = found.module(*source, target)[0]
        results = softmaxes(functools.partial(program.own, source, target))
        nearest = nearest_weights(results, weights, found.heads)
        if not difference(weights.numpy(), nearest.numpy()) <= LEAST_ALLOWED:
            raise ExportError("its weights are not those of a softmax that your forward computes")
    return found


def _crosses(program: Program, node: Any, length: Size) -> bool:
    """Whether a call of ``attention`` has a query of each target id, and a key of each source id.

    Args:
        program: that it is of.
        node: the call.
        length: the number of source ids.
    """
    query, key = node.args[:2]
    sizes = program.sizes(query)
    of_ids = program.is_batch(sizes[0]) and program.is_length(sizes[2])
    return of_ids and key not in program.of_target and program.sizes(key)[2] == length
