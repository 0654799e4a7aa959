"""Torch modules with flat signatures, one for every graph.

An ONNX graph takes and gives tensors in a row; these wrap a Transformer so that the rows are
those of ``tfexport.graph_io``.
"""

from torch import Tensor, nn

from tfexport.model_src.transformer import Transformer


class EncoderGraph(nn.Module):
    """See ``graph_io.encoder_graph``."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """input_ids, attention_mask -> encoder states, cross-attention cache."""
        input_ids, attention_mask = tensors
        hidden, cross = self.model.encode(input_ids, attention_mask)
        return (hidden, *cross)


class DecoderGraph(nn.Module):
    """See ``graph_io.decoder_graph``."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """input_ids, encoder_attention_mask, both caches -> logits, self-attention cache."""
        input_ids, encoder_attention_mask, *caches = tensors
        half = len(caches) // 2
        past, cross = caches[:half], caches[half:]
        logits, present = self.model.step(input_ids, past, cross, encoder_attention_mask)
        return (logits, *present)


class ForwardGraph(nn.Module):
    """See ``graph_io.forward_graph``."""

    def __init__(self, model: Transformer, log_probs: bool = False) -> None:
        super().__init__()
        self.model = model
        self.log_probs = log_probs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs, masks and, if they are graph inputs, biases -> logits or states."""
        inputs, attention_mask, decoder_inputs, decoder_attention_mask, *given = tensors
        biases = list(self.model.biases(attention_mask, decoder_attention_mask))
        if given:
            biases = [own + other for own, other in zip(biases, given, strict=True)]
        logits = self.model.forward_biased(inputs, decoder_inputs, *biases)
        return (logits, logits.log_softmax(-1)) if self.log_probs else (logits,)
