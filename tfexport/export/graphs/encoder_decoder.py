"""The encoder graph, and the decoder graph over T positions with a cache.

The inputs and outputs of an ONNX graph are flat lists; these modules wrap a Transformer so that its
lists are those of ``tfexport.graph_io``.
"""

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.input_checks import checked_ids, checked_mask
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
