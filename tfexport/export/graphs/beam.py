"""Beam search in torch: what stands before the loop, and one turn of it.

The loop keeps no finished hypotheses. It writes down what every step chose among, and whoever runs
the graph follows the parents back: see ``runtime.search.backtrace``.

Axes: B sentences, K beams, R = B * K rows, N = 2 K candidates, P past, S source, H heads, D head
size, E model width, V vocabulary. Of N candidates at most K end, so K are left to go on with.
"""

import torch
from torch import Tensor, nn

from tfexport.export.graphs.encoder_decoder import SearchStart
from tfexport.export.graphs.fused_attention import FusedAttention
from tfexport.model_src.attention import Attention
from tfexport.model_src.masks import bias_from_blocked, blocked_by_padding
from tfexport.model_src.transformer import Transformer


def _reshape(x: Tensor, shape: Tensor, sizes: list[int]) -> Tensor:
    """ONNX's Reshape, its result's sizes as they are told.

    R = B * K is an axis of its own to torch.export, which knows no product of two axes among its
    inputs, and reasons long about one that comes up inside.
    """
    return torch.onnx.ops.symbolic("Reshape", [x, shape], dtype=x.dtype, shape=sizes)


def _top(x: Tensor, count: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """ONNX's TopK over the last axis: best first, of equal ones the first; count (1,) has size.

    torch.export would have to know that there are so many.
    """
    shape = [*x.shape[:-1], size]
    values, places = torch.onnx.ops.symbolic_multi_out(
        "TopK", [x, count], {"axis": -1}, dtypes=(x.dtype, torch.int64), shapes=(shape, shape)
    )
    return values, places


class _BesideEachOther(Attention):
    """Self-attention in which the T positions are K beams, each behind a past of its own.

    So the cross-attention, which is as it is, reads a sentence's keys and values once for all of
    its beams.
    """

    def attend_cached(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, K, E) and a past (R, H, P, D) to (B, K, E) and a past one longer."""
        width = x.size(2)
        rows = _reshape(x, torch.tensor([-1, 1, width]), [past_key.size(0), 1, width])
        y, key, value = super().attend_cached(rows, past_key, past_value, bias)
        shape = torch.onnx.ops.symbolic("Shape", [x], dtype=torch.int64, shape=[3])
        return _reshape(y, shape, [*x.shape]), key, value


class BeamAttention(_BesideEachOther):
    """``Attention`` of standard operators, for ``BeamStep``."""


class FusedBeamAttention(_BesideEachOther, FusedAttention):
    """``FusedAttention``, for ``BeamStep``."""


class BeamStart(SearchStart):
    """The first state of beam search.

    Gives the cross-attention bias and the state: last tokens (B, K), summed log-probabilities
    (B, K) in float64, how many hypotheses are finished (B,), and past keys and values
    (R, H, 0, D).
    """

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """attention_mask and one zero for every beam (K,), to bias and state."""
        attention_mask, beams = tensors
        bias = bias_from_blocked(blocked_by_padding(attention_mask), self.mask_fill)
        finished = attention_mask.sum(1) * 0
        token = finished.unsqueeze(1) + beams + self.bos_id
        # At first there is one hypothesis; the other beams are none.
        first = torch.arange(beams.size(0)) == 0
        sums = torch.where(first, 0.0, -torch.inf).double() + finished.unsqueeze(1)
        past = self.decoder.empty_cache(sums.float().flatten())
        return (bias, token, sums, finished, *past)


class BeamStep(nn.Module):
    """One turn: score what may come next, write the best down, go on with those that do not end.

    The record of a turn is, for the best N candidates of a sentence in the order of their summed
    log-probability: token, the beam it continues, the token's own log-probability, (B, N) each.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        assert model.config.eos_id is not None
        self.eos_id = model.config.eos_id

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Invariants, state -> whether to go on, state, record."""
        layers = self.model.config.num_decoder_layers
        cross, (bias, enough) = list(tensors[: 2 * layers]), tensors[2 * layers : 2 * layers + 2]
        token, sums, finished, *past = tensors[2 * layers + 2 :]
        beams, rows = token.size(1), past[0].size(0)
        newest = _reshape(token, torch.tensor([-1, 1]), [rows, 1])
        x = self.model.target_embedding(newest, past[0].size(2))
        width = torch.tensor([x.size(2)])
        shape = torch.onnx.ops.symbolic("Shape", [token], dtype=torch.int64, shape=[2])
        x = _reshape(x, torch.cat([shape, width]), [*token.shape, x.size(2)])
        x, present, _ = self.model.decoder(x, torch.zeros(1), past, cross, bias)
        logits = self.model.output_proj(x)
        some, many = shape[1:], 2 * shape[1:]
        _, ids = _top(logits, many, 2 * beams)
        log_probs = logits.log_softmax(-1).gather(-1, ids)
        # Equal sums: the better beam first, then the lower id.
        totals = (sums.unsqueeze(-1) + log_probs).flatten(1)
        best, places = _top(totals, many, 2 * beams)
        parents = places // (2 * beams)
        tokens = ids.flatten(1).gather(1, places)
        scores = log_probs.flatten(1).gather(1, places)
        ended = tokens == self.eos_id
        counted = ended & (best > -torch.inf)
        finished = finished + counted[:, :beams].sum(1)

        rank = torch.arange(2 * beams)
        _, kept = _top(torch.where(ended, -2 * beams, 0) - rank, some, beams)
        chosen = torch.arange(token.size(0)).unsqueeze(1) * beams + parents.gather(1, kept)
        order = _reshape(chosen, torch.tensor([-1]), [rows])
        moved = [value.index_select(0, order) for value in present]
        going = (finished < enough).any()
        state = (tokens.gather(1, kept), best.gather(1, kept), finished, *moved)
        return (going, *state, tokens, parents, scores)


def beam_attention(portable: bool) -> type[Attention]:
    """What to build a model of for ``export_beam``.

    Args:
        portable: keep to standard operators.
    """
    return BeamAttention if portable else FusedBeamAttention
