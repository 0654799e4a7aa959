"""Torch modules with flat signatures, one for every graph.

An ONNX graph takes and gives tensors in a row; these wrap a Transformer so that the rows are
those of ``tfexport.graph_io``.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfexport.export.graphs.greedy import first_state, take_best
from tfexport.export.passes.int8_argmax import BEST
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer


def checked_ids(ids: Tensor, vocab_size: int | None) -> Tensor:
    """Ids that make the graph fail where one is negative; Gather would count from the end."""
    assert vocab_size is not None
    return torch.where(ids < 0, vocab_size, ids)


def checked_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask that makes the graph fail if it has not the shape of ``like``; it would broadcast."""
    # One longer on each axis: onnxruntime leaves an empty tensor out of a Concat, and unchecked.
    longer = [functional.pad(tensor, (0, 1, 0, 1)) for tensor in (mask, like.to(mask.dtype))]
    return torch.stack(longer)[0, :-1, :-1]


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


class SearchStart(nn.Module):
    """What stands between the encoder and a search's loop: the loop's first state."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.decoder = model.decoder
        self.mask_fill = model.mask_fill
        assert model.config.bos_id is not None
        self.bos_id = model.config.bos_id


class LoopStart(SearchStart):
    """The first state of greedy search.

    Gives the cross-attention bias, whether to begin at all, and the state: last token (B, 1), ended
    rows (B,), counted tokens (B,), sequences (B, 0), self-attention cache (B, H, 0, D) each.
    """

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """attention_mask -> cross-attention bias, whether to begin, state."""
        (attention_mask,) = tensors
        bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        token, ended = first_state(attention_mask, self.bos_id)
        past = self.decoder.empty_cache(bias)
        return (bias, ~ended.all(), token, ended, ended.long() * 0, token[:, :0], *past)


class LoopStep(nn.Module):
    """One turn of the decode loop, which goes on while more than ``few`` rows have not ended.

    What it takes for the best token stands for what ``screening`` puts in its place. It also gives
    the decoder's states, (B, 1, E), from which scores are computed after the loop, and with
    ``attention`` the cross-attention weights of the turn, (B, L, H, S).
    """

    def __init__(self, model: Transformer, attention: bool = False) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        assert model.config.eos_id is not None
        assert model.config.pad_id is not None
        self.eos_id = model.config.eos_id
        self.pad_id = model.config.pad_id

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Invariants, state -> whether to go on, state, decoder's states, weights."""
        layers = self.model.config.num_decoder_layers
        cross, (bias, few) = list(tensors[: 2 * layers]), tensors[2 * layers : 2 * layers + 2]
        token, ended, count, sequences, *past = tensors[2 * layers + 2 :]
        x = self.model.target_embedding(token, past[0].size(2))
        # The newest position may see all others, so the self-attention needs no mask.
        x, present, weights = self.model.decoder(x, torch.zeros(1), past, cross, bias)
        best = torch.onnx.ops.symbolic(BEST, [x], dtype=torch.int64, shape=[x.size(0), 1])
        count = count + (~ended).long()
        token, ended = take_best(best, ended, self.eos_id, self.pad_id)
        sequences = torch.cat([sequences, token], dim=1)
        attended = [torch.stack(weights, dim=1)[:, :, :, 0]] if self.attention else []
        going = (~ended).sum() > few
        return (going, token, ended, count, sequences, *present, x, *attended)
