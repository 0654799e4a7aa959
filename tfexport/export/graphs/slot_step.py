"""The graph of one step for rows that stand at positions of their own: continuous batching.

Its best token is chosen as in the graph of greedy search, with the model's own suppressed tokens.
"""

import numpy as np
import onnx_ir as ir
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.input_checks import checked_ids
from tfexport.export.graphs.loops import set_outputs
from tfexport.export.graphs.slot_attention import SlotAttention, SlotPlaces, bias_at
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.export.ir_tools.initializers import share_initializer
from tfexport.export.ir_tools.nodes import append_node
from tfexport.export.ir_tools.operators import PLACEHOLDERS
from tfexport.export.ir_tools.text_form import parse_graph, take_nodes
from tfexport.graph_io import BATCH, GraphSpec, TensorSpec


class SlotStep(nn.Module):
    """See ``slot_io.step_graph``; gives the best token, the decoder's states and the buffers."""

    def __init__(self, steps: TransformerSteps) -> None:
        """Take a model that was built with ``SlotAttention``."""
        super().__init__()
        self.model, self.steps, self.places = steps.model, steps, SlotPlaces()
        for part in self.model.decoder.modules():
            if isinstance(part, SlotAttention):
                part.places = self.places

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Ids, positions, source lengths, buffers -> best token, states, buffers."""
        input_ids, positions, source_lengths, *caches = tensors
        input_ids = checked_ids(input_ids, self.model.config.target_vocab_size)
        third = len(caches) // 3
        past, cross, newest = (caches[i : i + third] for i in range(0, 3 * third, third))
        self.places.positions, self.places.last_source = positions, source_lengths - 1
        self.places.newest, self.places.cross = newest, []
        relative = self.model.decoder.relative
        self.places.bias = bias_at(relative, positions, past[0].size(2))
        x: Tensor = self.model.target_embedding.at(input_ids, positions.unsqueeze(1))  # type: ignore[operator]
        nothing = x.new_zeros(1)
        x, present, _ = self.model.decoder(x, nothing, past, cross, nothing)
        best, states = self.steps.choose(x)
        return (best, states, *present, *self.places.cross)


def export_slot_step(steps: TransformerSteps, opset: int) -> ir.Model:
    """Export ``step``: see ``slot_io.step_graph``.

    Args:
        steps: a model that was built with ``SlotAttention``, and the rules of its greedy search.
        opset: of the standard operators.
    """
    spec = graph_io.step_graph(steps.cache, steps.vocab_size)
    inputs = tuple(tensor for tensor in spec.inputs if tensor.name != graph_io.RETURN_LOGITS)
    best, _logits, *present = spec.outputs
    states = TensorSpec("states", "float32", (BATCH, 1, steps.record_width))
    traced = GraphSpec(spec.name, inputs, (best, states, *present))
    model = exporter.export_graph_module(SlotStep(steps), traced, opset)
    graph = model.graph
    for node in graph:  # some are not what torch was told; see ``bias_at``
        for value in node.outputs:
            value.shape = None
    weights = steps.insert_projection(graph, graph, opset)
    asked = ir.val(graph_io.RETURN_LOGITS, ir.DataType.BOOL, [])
    graph.inputs.insert(3, asked)
    table, bias = weights
    if steps.rules.suppress_tokens:  # the logits are the model's: a caller may allow these tokens
        own = dict(steps.model.output_proj.named_parameters()).get("bias")
        array = np.zeros(steps.vocab_size, np.float32) if own is None else own.detach().numpy()
        bias = share_initializer(graph, "output_proj.own_bias", array)
    # Outside of the If, where onnxruntime transposes it once.
    turned = append_node(graph, "Transpose", [table], "logits/turned", {"perm": [1, 0]})
    given = [asked, graph.outputs[1], turned, bias]
    nodes, (logits,) = take_nodes(parse_graph(_LOGITS, opset), given, "logits/")
    graph.extend(nodes)
    set_outputs(graph, [graph.outputs[0], logits, *graph.outputs[2:]], spec)
    graph.sort()  # weights were prepared behind the nodes that read them
    model.opset_imports.pop(PLACEHOLDERS, None)
    return model


_LOGITS = """
    logits (bool asked, float[rows, 1, width] states, float[width, vocabulary] table,
            float[vocabulary] bias)
        => (float[some, vocabulary] logits)
    {
        logits = If (asked) <
            then_branch = computed () => (float[rows, vocabulary] of_all)
            {
                second = Constant <value = int64[1] {1}> ()
                x = Squeeze (states, second)
                product = MatMul (x, table)
                of_all = Add (product, bias)
            },
            else_branch = not_asked () => (float[none, vocabulary] of_none)
            {
                first = Constant <value = int64[1] {0}> ()
                size = Shape (bias)
                shape = Concat <axis = 0> (first, size)
                of_none = ConstantOfShape <value = float[1] {0.0}> (shape)
            }
        >
    }"""
