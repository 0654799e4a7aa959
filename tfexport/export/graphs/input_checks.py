"""Inputs that make a graph fail instead of giving wrong results."""

import torch
from torch import Tensor
from torch.nn import functional


def checked_ids(ids: Tensor, vocab_size: int | None) -> Tensor:
    """Ids that make the graph fail where one is negative; Gather would count from the end."""
    assert vocab_size is not None
    return torch.where(ids < 0, vocab_size, ids)


def checked_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask that makes the graph fail if it has not the shape of ``like``; it would broadcast."""
    # One longer on each axis: onnxruntime leaves an empty tensor out of a Concat, and unchecked.
    longer = [functional.pad(tensor, (0, 1, 0, 1)) for tensor in (mask, like.to(mask.dtype))]
    return torch.stack(longer)[0, :-1, :-1]
