"""Symmetric quantisation of float32 matrices to int8 and int4, and rounding to bfloat16."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # number of int4 weights that share a scale
# Quantized weights go from -LEVELS to LEVELS. Processors without int8 dot products add two products
# of a uint8 activation and a weight in 16 bits: 2 * 255 * 63 fits, 2 * 255 * 127 saturates.
LEVELS = 63

Array = NDArray[Any]
Floats = NDArray[np.float32]


def quantize_per_row(matrix: Floats, levels: int = LEVELS) -> tuple[NDArray[np.int8], Floats]:
    """Quantize (R, C) to int8 (R, C), with a scale for each row, (R,)."""
    scale = np.maximum(np.abs(matrix).max(-1), np.finfo(np.float32).tiny) / levels
    quantized = np.clip(np.rint(matrix / scale[:, None]), -levels, levels).astype(np.int8)
    return quantized, scale.astype(np.float32)


def quantize_per_column(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Quantize (K, N) to int8 (K, N), with a scale for each column, (N,)."""
    values, scale = quantize_per_row(matrix.T)
    return np.ascontiguousarray(values.T), scale


def quantize_blockwise(matrix: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Quantize (K, N) to int4 blocks along K, with a scale for each.

    Returns:
        values: (N, blocks, BLOCK / 2), two per byte, low nibble first.
        scales: (N * blocks,).
    """
    rows = np.ascontiguousarray(matrix.T)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % BLOCK)))
    blocks = padded.reshape(len(rows), -1, BLOCK)
    scale = np.maximum(np.abs(blocks).max(-1), np.finfo(np.float32).tiny) / 7
    values = np.clip(np.rint(blocks / scale[..., None]), -7, 7).astype(np.int8) + 8
    halves = values.astype(np.uint8).reshape(*values.shape[:2], -1, 2)
    return halves[..., 0] | (halves[..., 1] << 4), scale.astype(np.float32).reshape(-1)


def round_to_bfloat16(values: Floats) -> Floats:
    """Round to the nearest values of bfloat16, ties to even; the result is float32.

    Values that are no finite numbers stay as they are.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)
