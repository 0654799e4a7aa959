"""Torch modules with flat signatures, one for every graph.

An ONNX graph takes and gives tensors in a row; these wrap a Transformer so that the rows are
those of ``tfexport.graph_io``.
"""

from torch import Tensor, nn

from tfexport.model_src.transformer import Transformer


class EncoderGraph(nn.Module):
    """input_ids, attention_mask -> encoder states, cross-attention cache."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """See ``graph_io.encoder_graph``."""
        hidden, cross = self.model.encode(input_ids, attention_mask)
        return (hidden, *cross)


class DecoderGraph(nn.Module):
    """input_ids, encoder_attention_mask, both caches -> logits, self-attention cache."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """See ``graph_io.decoder_graph``; the self-attention cache comes first."""
        half = len(caches) // 2
        past, cross = list(caches[:half]), list(caches[half:])
        logits, present = self.model.step(input_ids, past, cross, encoder_attention_mask)
        return (logits, *present)
