"""Times of words, by the cross-attention that follows them through the sound.

Axes: H heads, T tokens, S positions of the encoder.
Source: ``_extract_token_timestamps`` and ``_combine_tokens_into_words`` of Whisper in
transformers; Sakoe and Chiba 1978 (dynamic time warping).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tfexport.runtime.model.interface import Floats
from tfexport.runtime.speech.transcription import Word
from tfexport.speech import TOKEN_SECONDS

Decode = Callable[[Sequence[int]], str]
_DIAGONAL, _UP, _LEFT = range(3)
_UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # codes of languages
_BEFORE = "\"'“¡¿([{-"  # punctuation that belongs to the next word
_AFTER = "\"'.。,，!！?？:：”)]}、"
_ASCII = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_INCOMPLETE = "\ufffd"


def token_times(weights: Floats, width: int) -> NDArray[np.float64]:
    """When each token ends, in seconds from the first position: (T,).

    Args:
        weights: (H, T, S) of the heads that follow the words; T and S are at least 1.
        width: of the median filter, odd.
    """
    # Of a lone token there is no deviation: all is NaN, and it ends at once, as in transformers.
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation, mean = weights.std(-2, keepdims=True), weights.mean(-2, keepdims=True)
        found = (weights - mean) / deviation
        matrix = _smooth(found, width).mean(0)
        ends: NDArray[np.float64] = np.multiply(
            _warp(-matrix.astype(np.float64)), TOKEN_SECONDS, dtype=np.float64
        )
        return ends


def _smooth(values: Floats, width: int) -> Floats:
    """The median of each value and its neighbours along the last axis."""
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, ((0, 0), (0, 0), (half, half)), mode="reflect")
    # A NaN is the largest of all, as torch sorts.
    windows = np.sort(sliding_window_view(padded, width, axis=-1), axis=-1)
    found: Floats = windows[..., half]
    return found


def _warp(costs: NDArray[np.float64]) -> NDArray[np.intp]:
    """The first column of each row (T, S) on the cheapest way from corner to corner: (T,).

    A way goes on to the next row, the next column, or both. Cells of one diagonal need only those
    of the two before it, so each is computed at once; sums are in float32, as in transformers.
    """
    rows, columns = costs.shape
    steps = np.full((rows + columns + 1, rows + 1), _LEFT, np.int8)  # (diagonal, row)
    before = np.full(rows + 1, np.inf, np.float32)  # sums of the diagonal before, by row
    earlier = before.copy()
    earlier[0] = 0  # of the corner, on diagonal 0
    for diagonal in range(2, rows + columns + 1):
        at = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)  # rows
        both, up, left = earlier[at - 1], before[at - 1], before[at]
        step = np.where((up < both) & (up < left), _UP, _LEFT)
        step = np.where((both < up) & (both < left), _DIAGONAL, step)
        least = np.choose(step, (both, up, left))
        sums = np.full(rows + 1, np.inf, np.float32)
        sums[at] = costs[at - 1, diagonal - at - 1] + least
        steps[diagonal, at] = step
        earlier, before = before, sums
    first = np.zeros(rows, np.intp)
    row, column = rows, columns
    while row > 0:
        first[row - 1] = column - 1
        way = int(steps[row + column, row]) if column else _UP
        row -= way != _LEFT
        column -= way != _UP
    return first


def group_words(
    tokens: Sequence[int], times: Sequence[tuple[float, float]], decode: Decode, language: str
) -> list[Word]:
    """Words of the tokens of a segment, with the times of their first and last token.

    Args:
        tokens: of text alone.
        times: start and end of each.
        decode: tokens to text.
        language: its code.
    """
    parts = _characters(tokens, decode)
    if language not in _UNSPACED:
        parts = _spaced(parts)
    found, place = [], 0
    for text, count in _with_punctuation(parts):
        found.append(Word(times[place][0], times[place + count - 1][1], text))
        place += count
    return found


def _characters(tokens: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """The smallest texts of whole characters, with the number of tokens of each."""
    whole, found = decode(tokens), list[tuple[str, int]]()
    begin, length = 0, 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        place = length + text.find(_INCOMPLETE)
        # The text itself may have this character.
        if _INCOMPLETE in text and place < len(whole) and whole[place] != _INCOMPLETE:
            continue
        found.append((text, end - begin))
        begin, length = end, length + len(text)
    if begin < len(tokens) and found:  # the last character is not whole: its time is not lost
        text, count = found[-1]
        found[-1] = text, count + len(tokens) - begin
    return found


def _spaced(parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Parts that belong to one word together: a word begins with a space or is punctuation."""
    found = list[tuple[str, int]]()
    for text, count in parts:
        if not found or text.startswith(" ") or text.strip() in _ASCII:
            found.append((text, count))
        else:
            found[-1] = found[-1][0] + text, found[-1][1] + count
    return found


def _with_punctuation(parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Words with the punctuation before and after them."""
    joined = list[tuple[str, int]]()
    for text, count in reversed(parts):
        if joined and text.startswith(" ") and text.strip() in _BEFORE:
            joined[-1] = text + joined[-1][0], count + joined[-1][1]
        else:
            joined.append((text, count))
    found = list[tuple[str, int]]()
    for text, count in reversed(joined):
        if found and text in _AFTER and not found[-1][0].endswith(" "):
            found[-1] = found[-1][0] + text, found[-1][1] + count
        else:
            found.append((text, count))
    return [each for each in found if each[0]]
