"""Every mask of the field becomes one additive float bias.

Masks of one attention are merged while they are boolean and filled once, so that a position
blocked twice is not filled twice. Axes: B batch, T target, S source, P past.
"""

import torch
from torch import Tensor


def blocked_by_padding(attention_mask: Tensor) -> Tensor:
    """(B, S), non-zero = keep, to (B, 1, 1, S), True = blocked."""
    return (attention_mask == 0).unsqueeze(1).unsqueeze(1)


def blocked_by_causality(target_length: int, past_length: int, device: torch.device) -> Tensor:
    """(1, 1, T, P + T), True where a query would see a position after its own."""
    keys = torch.arange(past_length + target_length, device=device)
    queries = torch.arange(past_length, past_length + target_length, device=device)
    return (keys.unsqueeze(0) > queries.unsqueeze(1)).unsqueeze(0).unsqueeze(0)


def bias_from_blocked(blocked: Tensor, fill: float) -> Tensor:
    """True = blocked to 0 or ``fill``, in float32, to be added to attention scores."""
    return torch.zeros(blocked.shape, device=blocked.device).masked_fill(blocked, fill)
