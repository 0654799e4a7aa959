"""The graphs of a Transformer: encoder, decoder, shortlist decoder, and teacher forcing.

ONNX graphs have flat lists of inputs and outputs. These modules wrap a Transformer so that it has
the inputs and outputs of ``tfexport.graph_io``.
"""

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.errors import ExportError
from tfexport.export.graphs import exporter
from tfexport.export.graphs.exporter import checked_ids, checked_mask
from tfexport.export.ir_tools.nodes import new_node
from tfexport.model_src.transformer import Transformer


class EncoderGraph(nn.Module):
    """See ``graph_io.encoder_graph``."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """input_ids, attention_mask -> encoder states, cross-attention cache."""
        input_ids, attention_mask = tensors
        input_ids = checked_ids(input_ids, self.model.config.source_vocab_size)
        attention_mask = checked_mask(attention_mask, input_ids)
        hidden, cross = self.model.encode(input_ids, attention_mask)
        return (hidden, *cross)


class DecoderGraph(nn.Module):
    """See ``graph_io.decoder_graph``."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """ids, source mask, both caches -> logits, self-attention cache, attention weights."""
        input_ids, encoder_attention_mask, *caches = tensors
        input_ids = checked_ids(input_ids, self.model.config.target_vocab_size)
        half = len(caches) // 2
        past, cross = caches[:half], caches[half:]
        encoder_attention_mask = checked_mask(encoder_attention_mask, cross[0][:, 0, :, 0])
        logits, present, weights = self.model.step_attended(
            input_ids, past, cross, encoder_attention_mask
        )
        return (logits, *present, torch.stack(weights, dim=1))


def export_encoder(model: Transformer, opset: int) -> ir.Model:
    """Export ``encoder``: see ``graph_io.encoder_graph``."""
    spec = graph_io.encoder_graph(exporter.cache_shape(model.config), model.config.d_model)
    return exporter.export_graph_module(EncoderGraph(model), spec, opset)


def export_decoder(model: Transformer, opset: int) -> ir.Model:
    """Export ``decoder``: see ``graph_io.decoder_graph``."""
    assert model.config.target_vocab_size is not None
    spec = graph_io.decoder_graph(
        exporter.cache_shape(model.config), model.config.target_vocab_size
    )
    return exporter.export_graph_module(DecoderGraph(model), spec, opset)


class ForwardGraph(nn.Module):
    """See ``graph_io.forward_graph``."""

    def __init__(self, model: Transformer, log_probs: bool = False) -> None:
        super().__init__()
        self.model = model
        self.log_probs = log_probs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs, masks and, if these are graph inputs, biases -> logits or states."""
        inputs, attention_mask, decoder_inputs, decoder_attention_mask, *given = tensors
        if self.model.config.has_embeddings:
            inputs = checked_ids(inputs, self.model.config.source_vocab_size)
            decoder_inputs = checked_ids(decoder_inputs, self.model.config.target_vocab_size)
            attention_mask = checked_mask(attention_mask, inputs)
            decoder_attention_mask = checked_mask(decoder_attention_mask, decoder_inputs)
        else:
            attention_mask = checked_mask(attention_mask, inputs[:, :, 0])
            decoder_attention_mask = checked_mask(decoder_attention_mask, decoder_inputs[:, :, 0])
        biases = list(self.model.biases(attention_mask, decoder_attention_mask))
        if given:
            biases = [own + other for own, other in zip(biases, given, strict=True)]
        logits = self.model.forward_biased(inputs, decoder_inputs, *biases)
        return (logits, logits.log_softmax(-1)) if self.log_probs else (logits,)


def export_forward(
    model: Transformer, opset: int, attention_biases: bool = False, log_probs: bool = False
) -> ir.Model:
    """Export ``forward``: see ``graph_io.forward_graph``.

    Args:
        model: the model; without embeddings, it takes vectors and returns states.
        opset: the opset version of the standard operators.
        attention_biases: add three inputs, which are added to the attention scores.
        log_probs: add an output, the log-softmax of the logits.
    """
    config = model.config
    spec = graph_io.forward_graph(
        config.d_model, config.num_heads, config.target_vocab_size, attention_biases, log_probs,
        config.decoder.num_heads,
    )  # fmt: skip
    return exporter.export_graph_module(ForwardGraph(model, log_probs), spec, opset)


# The shortlist decoder is a copy of the exported decoder, in which the candidates' rows of the
# output projection are gathered before the product with the decoder states.


def make_shortlist(decoder: ir.Model) -> ir.Model:
    """See ``graph_io.shortlist_graph``.

    Args:
        decoder: the graph of ``export_decoder``, which is not changed.

    Raises:
        ExportError: the logits are not the result of a projection.
    """
    model = decoder.clone()
    graph = model.graph
    candidates = ir.val(graph_io.CANDIDATES, ir.DataType.INT64, [graph_io.CANDIDATES])
    graph.inputs.append(candidates)
    logits = graph.outputs[0]
    node = logits.producer()
    if node is not None and node.op_type == "Add":
        node.replace_input_with(1, _gathered(graph, node, _weight(node, 1), candidates))
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        raise ExportError("decoder.onnx: the logits are not the result of a matrix product.")
    # Rows are gathered, because the values of a column are not contiguous in memory. onnxruntime
    # transposes the weight at load time, and fuses the second Transpose into the product.
    rows = _tied_table(node) or _transposed(graph, node, _weight(node, 1))
    gathered = _gathered(graph, node, rows, candidates)
    node.replace_input_with(1, _transposed(graph, node, gathered))
    for output in node.outputs:
        output.shape = None
    logits.shape = ir.Shape([graph_io.BATCH, graph_io.TARGET, graph_io.CANDIDATES])
    graph.name = graph_io.SHORTLIST
    return model


def _tied_table(node: ir.Node) -> ir.Value | None:
    """The embedding table of a tied projection, if the graph contains its Transpose."""
    transpose = node.inputs[1].producer() if node.inputs[1] is not None else None
    if transpose is None or transpose.op_type != "Transpose":
        return None
    return _weight(transpose, 0)


def _weight(node: ir.Node, place: int) -> ir.Value:
    value = node.inputs[place]
    if value is None or not value.is_initializer():
        raise ExportError(f"decoder.onnx: input {place} of {node.op_type} is not a weight.")
    return value


def _gathered(graph: ir.Graph, before: ir.Node, value: ir.Value, ids: ir.Value) -> ir.Value:
    """Insert a Gather of rows."""
    name = f"gather_of_{value.name}"
    return _insert(graph, before, new_node("Gather", [value, ids], name, {"axis": 0}), value)


def _transposed(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """Insert a Transpose."""
    name = f"transpose_of_{value.name}"
    return _insert(graph, before, new_node("Transpose", [value], name, {"perm": [1, 0]}), value)


def _insert(graph: ir.Graph, before: ir.Node, node: ir.Node, like: ir.Value) -> ir.Value:
    (output,) = node.outputs
    output.type = like.type
    graph.insert_before(before, node)
    return output
