"""One turn of greedy decoding in torch, for every file that holds the loop inside.

Plain functions of tensors, so that tracing and scripting take the same lines. The state of a batch
is its last token (B, 1), which rows have ended (B,), summed log-probability (B,) and counted tokens
(B,). Axes: B batch, S source, V vocabulary.
"""

import torch
from torch import Tensor


def first_state(attention_mask: Tensor, bos_id: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source mask (B, S), 1 = keep, to token, ended, score, count before the first turn."""
    kept = (attention_mask != 0).sum(1)
    # A row that is all padding has nothing to say.
    ended = kept == 0
    token = torch.full_like(kept.unsqueeze(1), bos_id)
    zeros = ended.float() * 0
    return token, ended, zeros, zeros


def take_best(
    logits: Tensor, ended: Tensor, score: Tensor, count: Tensor, eos_id: int, pad_id: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of the newest position (B, 1, V) to token, ended, score, count after it.

    The best token has the highest logit, the lowest id on a tie; rows that have ended take padding
    and count no more.
    """
    best = logits.argmax(-1)  # (B, 1)
    log_prob = logits.log_softmax(-1).gather(-1, best.unsqueeze(-1))[:, 0, 0]
    token = torch.where(ended.unsqueeze(1), pad_id, best)
    score = torch.where(ended, score, score + log_prob)
    count = torch.where(ended, count, count + 1)
    return token, ended | (best[:, 0] == eos_id), score, count
