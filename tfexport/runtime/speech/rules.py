"""Rules of Whisper on tokens and their logits.

Axes: R rows, T tokens so far, V vocabulary.
Source: WhisperTimeStampLogitsProcessor of transformers; Radford et al. 2022, section 2.3.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfexport.runtime.model.interface import Floats, Ids
from tfexport.speech import FRAME_SECONDS, STRIDE, TOKEN_SECONDS, Speech


@dataclass(frozen=True)
class WindowRule:
    """Which tokens may come next in a window, beside tokens that are always suppressed.

    Attributes:
        speech: the settings of the model.
        eos: the end token; the ids below it are those of text.
        first: tokens of the prefix, without the start token.
        timestamps: whether timestamps are decoded.
        top_k: the most probable tokens from which one is drawn; 0 for all.
    """

    speech: Speech
    eos: int
    first: int
    timestamps: bool
    top_k: int = 0

    def __call__(self, logits: Floats, tokens: Ids) -> None:
        """Change logits in place; a token that is banned gets -inf.

        Args:
            logits: (R, V).
            tokens: (R, T), the prefix and what was decoded.
        """
        if self.timestamps:
            self._order_timestamps(logits, tokens[:, self.first :])
            _prefer_timestamps(logits, self.speech.first_timestamp)
        if 0 < self.top_k < logits.shape[1]:
            least = np.partition(logits, -self.top_k, axis=-1)[:, -self.top_k]
            logits[logits < least[:, None]] = -np.inf

    def _order_timestamps(self, logits: Floats, tokens: Ids) -> None:
        """Timestamps come in pairs, save before the end, and never go back."""
        begin = self.speech.first_timestamp
        logits[:, self.speech.no_timestamps] = -np.inf
        if not tokens.shape[1]:  # a window begins with one
            logits[:, :begin] = -np.inf
            if self.speech.most_initial is not None:
                logits[:, begin + self.speech.most_initial + 1 :] = -np.inf
            return
        stamps = tokens >= begin
        last = stamps[:, -1]
        before = stamps[:, -2] if tokens.shape[1] > 1 else np.ones_like(last)
        logits[last & before, begin:] = -np.inf
        opened = last & ~before
        logits[opened, : self.eos] = -np.inf
        for row in np.flatnonzero(stamps.any(-1)):
            newest = int(tokens[row][stamps[row]][-1])
            logits[row, begin : newest + (not opened[row])] = -np.inf


def _prefer_timestamps(logits: Floats, begin: int) -> None:
    """Ban text where all timestamps together are more probable than any token of text."""
    stamps = logits[:, begin:].astype(np.float64)
    top = stamps.max(-1)
    safe = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        together = safe + np.log(np.exp(stamps - safe[:, None]).sum(-1))
    logits[together > logits[:, :begin].max(-1), :begin] = -np.inf


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """The size of tokens as bytes over their size compressed by zlib."""
    width = int(math.log2(vocab_size) / 8) + 1
    given = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(given) / len(zlib.compress(given))


Part = tuple[float, float, tuple[int, ...]]  # when it starts and ends, in seconds; its tokens


def split_window(
    tokens: Sequence[int], seek: int, frames: int, begin: int
) -> tuple[list[Part], int]:
    """Split the tokens of a window at pairs of timestamps.

    Args:
        tokens: without the prefix and the end token.
        seek: the first frame of the window.
        frames: of its sound.
        begin: the first timestamp.

    Returns:
        The parts, and by how many frames the next window is further: after the last pair, or, if
        the sound ends with one timestamp or there is no pair, the whole window.
    """
    offset = seek * TOKEN_SECONDS / STRIDE
    stamps = [token >= begin for token in tokens]
    single = stamps[-2:] == [False, True]
    cuts = [i + 1 for i in range(len(stamps) - 1) if stamps[i] and stamps[i + 1]]
    if not cuts:
        end = offset + _end(tokens, frames, begin) * TOKEN_SECONDS
        return [(offset, end, (*tokens,))], frames
    if single:
        cuts.append(len(tokens))
    else:
        cuts[-1] += 1  # both of the last pair: a mark that the part is not the end
    parts, start = list[Part](), 0
    for cut in cuts:
        inside = tuple(tokens[start:cut])
        last = inside[-1] if single or cut != cuts[-1] else inside[-2]
        begins, ends = (offset + (stamp - begin) * TOKEN_SECONDS for stamp in (inside[0], last))
        parts.append((begins, ends, inside))
        start = cut
    if single:
        return parts, frames
    return parts, (tokens[start - 2] - begin) * STRIDE


def _end(tokens: Sequence[int], frames: int, begin: int) -> int:
    """The last timestamp of a window without pairs, counted from the first."""
    last = next((token for token in reversed(tokens) if token >= begin), begin)
    if last != begin:
        return last - begin
    # In float32, as transformers computes it: an odd number of frames, or rounding, gives one less.
    seconds = np.float32(frames) * np.float32(FRAME_SECONDS)
    return int(seconds / np.float32(TOKEN_SECONDS))
