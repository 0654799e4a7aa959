"""One turn of greedy decoding in torch, for every file that holds the loop inside.

Plain functions of tensors, so that tracing and scripting take the same lines. The state of a batch
is its last token (B, 1) and which rows have ended (B,). Axes: B batch, S source.
"""

import torch
from torch import Tensor


def first_state(attention_mask: Tensor, bos_id: int) -> tuple[Tensor, Tensor]:
    """Source mask (B, S), 1 = keep, to token and ended before the first turn."""
    kept = (attention_mask != 0).sum(1)
    # A row that is all padding has nothing to say.
    return torch.full_like(kept.unsqueeze(1), bos_id), kept == 0


def take_best(best: Tensor, ended: Tensor, eos_id: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Token and ended after a turn that chose the best tokens (B, 1).

    Rows that have ended take padding.
    """
    token = torch.where(ended.unsqueeze(1), pad_id, best)
    return token, ended | (best[:, 0] == eos_id)
