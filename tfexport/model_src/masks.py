"""Attention masks of every common form, as one additive float bias.

Boolean masks of one attention are merged before they are filled, so that a position that two of
them block is filled once. docs/original-signatures.md says which document each form is of.

Axes: B batch, H heads, T target, S source, P past.
"""

import math

import torch
from torch import Tensor

from tfexport.errors import InputError


def blocked_by_padding(attention_mask: Tensor) -> Tensor:
    """(B, S), non-zero = keep, to (B, 1, 1, S), True = blocked."""
    return (attention_mask == 0).unsqueeze(1).unsqueeze(1)


def blocked_by_causality(target_length: int, past_length: int, device: torch.device) -> Tensor:
    """(1, 1, T, P + T), True where the key is after the query."""
    keys = torch.arange(past_length + target_length, device=device)
    queries = torch.arange(past_length, past_length + target_length, device=device)
    return (keys.unsqueeze(0) > queries.unsqueeze(1)).unsqueeze(0).unsqueeze(0)


def bias_from_blocked(blocked: Tensor, fill: float) -> Tensor:
    """A float32 bias: 0, or where True (blocked) a value that turns any score into ``fill``.

    In float32, score - 1e9 equals -1e9 only for scores below 32; with larger ones a row whose
    positions are all blocked would depend on its scores. -1e30 absorbs every score, and where a
    row has unblocked positions softmax gives 0 for both. So it replaces every large negative fill.
    """
    if -1e30 < fill < -1000.0:
        fill = -1e30
    return torch.zeros(blocked.shape, device=blocked.device).masked_fill(blocked, fill)


def no_bias(device: torch.device | None = None) -> Tensor:
    """The bias of an attention without masks; broadcasts to anything."""
    return torch.zeros(1, 1, 1, 1, device=device)


def bias_from_torch_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    shape: tuple[int, int, int, int],
    fill: float = -math.inf,
) -> Tensor:
    """The two masks of ``torch.nn.MultiheadAttention`` to one bias.

    Args:
        attn_mask: (T, S) or (B * H, T, S); bool (True = blocked), byte (non-zero = blocked) or
            floating-point (added).
        key_padding_mask: (B, S); bool or byte, True or non-zero = padding.
        shape: (B, H, T, S).
        fill: the bias of a blocked position.

    Returns:
        A bias that broadcasts to (B, H, T, S).

    Raises:
        InputError: a mask of another shape or dtype.
    """
    batch, heads, target, source = shape
    blocked: Tensor | None = None
    added: Tensor | None = None
    if attn_mask is not None:
        allowed = (target, source), (batch * heads, target, source)
        _check("attn_mask", attn_mask, ("(T, S)", "(B * H, T, S)"), allowed, floats=True)
        spread = attn_mask.reshape(-1, heads if attn_mask.dim() == 3 else 1, target, source)
        if attn_mask.is_floating_point():
            added = spread
        else:
            blocked = spread != 0
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, ("(B, S)",), ((batch, source),), floats=False)
        padding = (key_padding_mask != 0).reshape(batch, 1, 1, source)
        blocked = padding if blocked is None else blocked | padding
    if blocked is None:
        return no_bias() if added is None else added
    if added is not None:
        return added.masked_fill(blocked, fill)  # replaces the added value, as in torch
    return bias_from_blocked(blocked, fill)


def bias_from_keep_mask(
    mask: Tensor | None, shape: tuple[int, int, int, int], fill: float = -1e9
) -> Tensor:
    """A keep-mask of the Annotated Transformer to a bias.

    Args:
        mask: (B, 1, S), (B, T, S) or (1, T, S); bool or integer, zero = blocked.
        shape: (B, H, T, S).
        fill: the bias of a blocked position.

    Returns:
        A bias that broadcasts to (B, H, T, S).

    Raises:
        InputError: a mask of another shape or dtype.
    """
    if mask is None:
        return no_bias()
    batch, _, target, source = shape
    allowed = tuple((b, t, source) for b in (batch, 1) for t in (target, 1))
    names = ("(B, T, S)", "(B, 1, S)", "(1, T, S)", "(1, 1, S)")
    if mask.is_floating_point() or mask.is_complex():
        raise InputError(f"keep-mask has dtype {mask.dtype}; expected bool or integers.")
    _check_shape("keep-mask", mask, names, allowed)
    return bias_from_blocked((mask == 0).unsqueeze(1), fill)


def generate_square_subsequent_mask(size: int) -> Tensor:
    """(T, T): 0 up to the diagonal, -inf above it; added. Source: torch.nn.Transformer."""
    return torch.full((size, size), -math.inf).triu(1)


def subsequent_mask(size: int) -> Tensor:
    """(1, T, T): True up to the diagonal; keep. Source: The Annotated Transformer."""
    return torch.ones(1, size, size, dtype=torch.bool).tril()


def generate_mask_mat(seq_len: int, masked_len: int) -> Tensor:
    """(T, T): True, blocked, where T - j + i <= masked_len, of row i and column j.

    The last ``masked_len`` positions are hidden from the first row, one fewer from each row below
    it; with masked_len = seq_len - 1 that is the causal mask. Source: the RMSNorm Transformer.
    """
    index = torch.arange(seq_len)
    return seq_len - index.unsqueeze(0) + index.unsqueeze(1) <= masked_len


def _check(
    name: str,
    mask: Tensor,
    axes: tuple[str, ...],
    allowed: tuple[tuple[int, ...], ...],
    floats: bool,
) -> None:
    if not (mask.dtype in (torch.bool, torch.uint8) or (floats and mask.is_floating_point())):
        kinds = "bool, byte (uint8) or floating-point" if floats else "bool or byte (uint8)"
        raise InputError(f"{name} has dtype {mask.dtype}; expected {kinds}.")
    _check_shape(name, mask, axes, allowed)


def _check_shape(
    name: str, mask: Tensor, axes: tuple[str, ...], allowed: tuple[tuple[int, ...], ...]
) -> None:
    if tuple(mask.shape) not in allowed:
        expected = " or ".join(f"{a} = {s}" for a, s in zip(axes, allowed, strict=True))
        raise InputError(f"{name} has shape {tuple(mask.shape)}; expected {expected}.")
