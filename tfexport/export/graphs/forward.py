"""The teacher-forced graph: a source and a whole target to logits, without a cache."""

import onnx_ir as ir
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.input_checks import checked_ids, checked_mask
from tfexport.model_src.transformer import Transformer


class ForwardGraph(nn.Module):
    """See ``graph_io.forward_graph``."""

    def __init__(self, model: Transformer, log_probs: bool = False) -> None:
        super().__init__()
        self.model = model
        self.log_probs = log_probs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs, masks and, if they are graph inputs, biases -> logits or states."""
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
        model: with weights; without embeddings it takes vectors and gives states.
        opset: of the standard operators.
        attention_biases: three more inputs, added to the attention scores.
        log_probs: a second output.
    """
    config = model.config
    spec = graph_io.forward_graph(
        config.d_model, config.num_heads, config.target_vocab_size, attention_biases, log_probs,
        config.decoder.num_heads,
    )  # fmt: skip
    return exporter.export_graph_module(ForwardGraph(model, log_probs), spec, opset)
