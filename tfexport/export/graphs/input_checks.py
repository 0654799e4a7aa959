"""Checks of a graph's inputs: wrong ones make an operator fail instead of giving wrong results."""

import torch
from torch import Tensor
from torch.nn import functional


def checked_ids(ids: Tensor, vocab_size: int | None) -> Tensor:
    """Replace negative ids by one that makes Gather fail; it would count them from the end."""
    assert vocab_size is not None
    return torch.where(ids < 0, vocab_size, ids)


def checked_mask(mask: Tensor, like: Tensor) -> Tensor:
    """The mask; the graph fails if its shape is not that of ``like``, instead of broadcasting."""
    # One longer on each axis: onnxruntime leaves an empty tensor out of a Concat, and unchecked.
    longer = [functional.pad(tensor, (0, 1, 0, 1)) for tensor in (mask, like.to(mask.dtype))]
    return torch.stack(longer)[0, :-1, :-1]
