"""One turn of greedy decoding in torch, for every file that holds the loop inside.

Plain functions of tensors, so that tracing and scripting take the same lines. The state of a batch
is its last token (B, 1), which rows have ended (B,), summed log-probability (B,) and counted tokens
(B,). Axes: B batch, S source, V vocabulary.
"""

import math

import torch
from torch import Tensor

# A block's maximum is read with vector instructions, an index is not: see ``best_in_blocks``.
_SMALLEST_BLOCK = 16


def first_state(attention_mask: Tensor, bos_id: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source mask (B, S), 1 = keep, to token, ended, score, count before the first turn."""
    kept = (attention_mask != 0).sum(1)
    # A row that is all padding has nothing to say.
    ended = kept == 0
    token = torch.full_like(kept.unsqueeze(1), bos_id)
    zeros = ended.float() * 0
    return token, ended, zeros, zeros


def block_size(vocab_size: int) -> int:
    """How many ids to look at together: a divisor of the vocabulary near its root, or all of it."""
    root = math.isqrt(vocab_size)
    fitting = [
        size
        for size in range(_SMALLEST_BLOCK, root * root // _SMALLEST_BLOCK + 1)
        if vocab_size % size == 0
    ]
    return min(fitting, key=lambda size: (abs(size - root), size), default=vocab_size)


def best_in_blocks(logits: Tensor, block: int) -> Tensor:
    """``argmax`` over V of (B, 1, V), (B, 1): the best block, then the place in it.

    onnxruntime's ArgMax compares number by number, its ReduceMax many at once.

    Args:
        logits: (B, 1, V).
        block: a divisor of V.
    """
    if block == logits.size(-1):
        return logits.argmax(-1)
    blocks = logits.reshape(logits.size(0), -1, block)
    # The first of equal blocks, and the first place in it: the lowest id on a tie.
    chosen = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, 1, block))
    return chosen * block + inside.argmax(-1)


def take_best(
    logits: Tensor,
    best: Tensor,
    ended: Tensor,
    score: Tensor,
    count: Tensor,
    eos_id: int,
    pad_id: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of the newest position (B, 1, V) to token, ended, score, count after it.

    The best token (B, 1) has the highest logit, the lowest id on a tie; rows that have ended take
    padding and count no more.
    """
    log_prob = logits.log_softmax(-1).gather(-1, best.unsqueeze(-1))[:, 0, 0]
    token = torch.where(ended.unsqueeze(1), pad_id, best)
    score = torch.where(ended, score, score + log_prob)
    count = torch.where(ended, count, count + 1)
    return token, ended | (best[:, 0] == eos_id), score, count
