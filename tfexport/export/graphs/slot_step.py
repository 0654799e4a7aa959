"""The graph of one step for rows at different positions: continuous batching.

Its best token is chosen as in the graph of greedy search, with the model's own suppressed tokens.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.exporter import checked_ids
from tfexport.export.graphs.loops import set_outputs
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.export.ir_tools.nodes import (
    GROUP_QUERY_ATTENTION,
    PLACEHOLDERS,
    append_node,
    parse_graph,
    share_initializer,
    take_nodes,
)
from tfexport.graph_io import BATCH, GraphSpec, TensorSpec, slot_width
from tfexport.model_src.attention import Attention
from tfexport.model_src.relative import RelativeBias, RelativePositions, RotaryPositions

# Attention of rows at different positions, over buffers that are written in place.
#
# ``com.microsoft.GroupQueryAttention`` takes a length for each row, and reads no further than that:
# its time depends neither on the buffers' size nor on other rows' lengths.
# Source: onnxruntime, docs/ContribOperators.md.
#
# Axes: B rows, H heads, D head size, D' its slot width, M positions of a buffer, E model width.


class SlotPlaces:
    """The position of each row while a step is traced; all attentions of a model share one.

    Attributes:
        positions: (B,) int32, of the new token.
        last_source: (B,) int32, of the last position of the source.
        newest: key and value of that position, (B, 1, H * D') each, for the remaining layers.
        cross: the output buffers of cross-attention in the previous layers.
        bias: (B, H, 1, K), of relative positions that all layers share, or None.
    """

    positions: Tensor
    last_source: Tensor
    newest: list[Tensor]
    cross: list[Tensor]
    bias: Tensor | None = None


class SlotAttention(Attention):
    """``Attention`` of one new token a row, which exists only in the exported graph."""

    places: SlotPlaces

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``Attention``; past and present are buffers (B, H, M, D')."""
        places = self.places
        queries, keys = (self._rotated(part) for part in (self.q_proj(x), self.k_proj(x)))
        total = _total(places.positions)
        own = bias_at(self.relative, places.positions, past_key.size(2))
        inputs = [
            *(self._widened(part) for part in (queries, keys, self.v_proj(x))),
            past_key, past_value,
            places.positions, total, None, None, None, places.bias if own is None else own,
        ]  # fmt: skip
        context, key, value = torch.onnx.ops.symbolic_multi_out(
            GROUP_QUERY_ATTENTION,
            inputs,
            attrs=self._attributes(),
            dtypes=(x.dtype,) * 3,
            shapes=(self._context_shape(x), past_key.shape, past_value.shape),
            version=1,
        )
        return self._narrowed(context), key, value

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``Attention``; the weights are empty.

        The operator requires a new key; it gets the last key of the source, at the same position.
        """
        places, queries = self.places, self._widened(self.q_proj(query))
        key, value = places.newest.pop(0), places.newest.pop(0)
        last = places.last_source
        context, *buffers = torch.onnx.ops.symbolic_multi_out(
            GROUP_QUERY_ATTENTION,
            [queries, key, value, keys, values, last, _total(last)],
            attrs=self._attributes(),
            dtypes=(query.dtype,) * 3,
            shapes=(self._context_shape(query), keys.shape, values.shape),
            version=1,
        )
        places.cross.extend(buffers)
        return self._narrowed(context), query.new_empty(0)

    def _attributes(self) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads, "kv_num_heads": self.num_heads, "scale": self.scale,
        }  # fmt: skip

    def _context_shape(self, x: Tensor) -> tuple[int, ...]:
        return (x.size(0), 1, self.num_heads * slot_width(self.head_dim))

    def _rotated(self, x: Tensor) -> Tensor:
        """(B, 1, H * D), turned by the row's position if the model does that."""
        if not isinstance(self.relative, RotaryPositions):
            return x
        # One position, so that splitting heads moves nothing.
        heads = x.reshape([x.size(0), self.num_heads, 1, self.head_dim])
        return self.relative.rotate_at(heads, self.places.positions).reshape(x.shape)

    def _widened(self, x: Tensor) -> Tensor:
        """(B, 1, H * D) to (B, 1, H * D')."""
        width = slot_width(self.head_dim)
        if width == self.head_dim:
            return x
        heads = x.reshape([x.size(0), 1, self.num_heads, self.head_dim])
        wide = F.pad(heads, (0, width - self.head_dim))
        return wide.reshape([x.size(0), 1, self.num_heads * width])

    def _narrowed(self, context: Tensor) -> Tensor:
        """(B, 1, H * D') to the output (B, 1, E)."""
        width = slot_width(self.head_dim)
        if width != self.head_dim:
            heads = context.reshape([context.size(0), 1, self.num_heads, width])
            inner = self.num_heads * self.head_dim
            context = heads[:, :, :, : self.head_dim].reshape([context.size(0), 1, inner])
        output: Tensor = self.out_proj(context)
        return output


def bias_at(relative: RelativePositions, positions: Tensor, size: int) -> Tensor | None:
    """The bias (B, H, 1, K) of relative positions for rows at these positions; None without.

    Args:
        relative: positions.
        positions: (B,).
        size: M. For torch.export K is M: a size that is computed from values would need proofs.
    """
    if not isinstance(relative, RelativeBias):
        return None
    first = torch.zeros(1, dtype=torch.int32)
    every = torch.arange(size, device=positions.device)
    keys = torch.onnx.ops.symbolic(
        "Slice", [every, first, _total(positions)], dtype=torch.int64, shape=[size]
    )
    return relative.at(positions, keys)


def _total(last: Tensor) -> Tensor:
    """(1,) int32: the keys of the row with the most, from the last position of each, (B,)."""
    return last.amax(0, keepdim=True) + 1


class SlotStep(nn.Module):
    """See ``graph_io.step_graph``; returns the best token, the decoder states and the buffers."""

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
    """Export ``step``: see ``graph_io.step_graph``.

    Args:
        steps: a model that was built with ``SlotAttention``, and the rules of its greedy search.
        opset: the opset version of the standard operators.
    """
    spec = graph_io.step_graph(steps.cache, steps.vocab_size)
    inputs = tuple(tensor for tensor in spec.inputs if tensor.name != graph_io.RETURN_LOGITS)
    best, _logits, *present = spec.outputs
    states = TensorSpec("states", "float32", (BATCH, 1, steps.record_width))
    traced = GraphSpec(spec.name, inputs, (best, states, *present))
    model = exporter.export_graph_module(SlotStep(steps), traced, opset)
    graph = model.graph
    for node in graph:  # some differ from what torch was given; see ``bias_at``
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
    graph.sort()  # weights were prepared after the nodes that read them
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
