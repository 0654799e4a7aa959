"""Reading sound: files and arrays of any rate to samples of one channel at the model's rate.

soundfile decodes and soxr resamples, as ``load_audio`` of transformers does with its backend
"soundfile": channels are averaged, quality "HQ", and as many samples as the length says.
"""

import io
import math
import os
from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError, missing_dependency, shown
from tfexport.file_access import describe_substitute, open_file

Samples = NDArray[np.float32]
_BLOCK = 1 << 18  # values that are read at a time
RATES = range(1_000, 384_001)  # samples of a second
_MOST_CHANNELS = 64
_LOUDEST = 100  # of what should be from -1 to 1; music of some files exceeds it a little
# Beginnings of files of other libraries, by which users know them.
_OTHERS = {
    b"\x1aE\xdf\xa3": "a WebM or Matroska file",
    b"%PDF": "a PDF file",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a zip archive",
}
_CONVERT = "Convert it: ffmpeg -i FILE -ac 1 sound.flac"


def read_sound(source: Any, rate: int, most_seconds: float) -> Samples:
    """Read a sound.

    Args:
        source: the path of a file, its bytes, or an array and its rate. An array is (samples,) or
            (samples, channels), as soundfile reads it; integers are scaled by their type's range.
        rate: of the result, in samples of a second.
        most_seconds: a longer one is refused, before more of it is read.

    Raises:
        InputError: it is damaged, no sound, empty, too long, or holds NaN or infinity.
        MissingDependencyError: soundfile, or for another rate soxr, is not installed.
        OSError: the file cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        with open_file(path) as file:  # an error of the system names the file
            head = file.read(64)
        if (other := describe_substitute(path)) is not None:
            raise InputError(f"{path}: {other}")
        return _of_file(str(path), head, str(path), rate, most_seconds)
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        return _of_file("the sound", content[:64], io.BytesIO(content), rate, most_seconds)
    if isinstance(source, tuple) and len(source) == 2:
        array, own_rate = _checked_array(*source)
        _check_length("the sound", len(array) / own_rate, most_seconds)
        blocks = (array[at : at + _BLOCK] for at in range(0, len(array), _BLOCK))
        return _joined("the sound", map(_as_floats, blocks), own_rate, rate, most_seconds)
    raise InputError(
        f"{shown(source)} is no sound; a path, bytes, or a pair of an array and its rate is."
    )


def check_sound_library(name: str) -> None:
    """Check that files of sound can be read.

    Args:
        name: of what needs it, for the message.

    Raises:
        MissingDependencyError: soundfile is not installed.
    """
    _soundfile(name)


def _of_file(name: str, head: bytes, file: Any, rate: int, most_seconds: float) -> Samples:
    soundfile = _soundfile(name)
    try:
        with soundfile.SoundFile(file) as opened:
            _check_rate(name, opened.samplerate)
            if opened.channels > _MOST_CHANNELS:
                raise InputError(
                    f"{name}: has {opened.channels} channels; at most {_MOST_CHANNELS} are read."
                )
            _check_length(name, opened.frames / opened.samplerate, most_seconds)
            blocks = _blocks(name, opened)
            return _joined(name, blocks, opened.samplerate, rate, most_seconds)
    except (soundfile.SoundFileError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: {_reason(head, error)}.") from None


def _soundfile(name: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its library is missing
        reason = "" if isinstance(error, ImportError) else f" ({error})"
        raise missing_dependency(
            f"{name}: soundfile reads sound, which is not installed{reason}", "audio"
        ) from None
    return soundfile


def _reason(head: bytes, error: Exception) -> str:
    """Why a file cannot be read: by its first bytes, else what the library says."""
    if not head:
        return "is empty"
    for start, kind in _OTHERS.items():
        if head.startswith(start):
            return f"is {kind}, not a sound that libsndfile reads. {_CONVERT}"
    if head[4:8] == b"ftyp":
        return f"is an MP4 or M4A file, which libsndfile does not read. {_CONVERT}"
    try:
        if "".join(head[:-3].decode().split()).isprintable() and b"RIFF" not in head:
            return "holds text, not sound"
    except UnicodeDecodeError:
        pass
    reason = str(getattr(error, "error_string", "") or error).strip().rstrip(".")
    if reason.startswith("File does not exist"):  # said of what cannot be an MP3 file
        reason = "its content is damaged or of no known kind"
    return f"not a sound that libsndfile reads: {reason}"


def _blocks(name: str, opened: Any) -> Iterator[Samples]:
    """The samples of a file, (samples, channels), a block at a time."""
    size, read = max(1, _BLOCK // opened.channels), 0
    while len(block := opened.read(size, dtype="float32", always_2d=True)):
        read += len(block)
        yield block
    # The length of an MP3 file is an estimate.
    if read < opened.frames and opened.format != "MP3":
        raise InputError(
            f"{name}: is damaged: it ends after {read} of the {opened.frames} samples that it says "
            "it has."
        )


def _checked_array(array: Any, rate: Any) -> tuple[NDArray[Any], int]:
    """An array (samples, channels) and its rate."""
    if not isinstance(rate, Integral) or isinstance(rate, bool):
        raise InputError(
            f"the rate of a sound is {shown(rate)}; it has to be an integer, of samples a second."
        )
    _check_rate("the sound", int(rate))
    try:
        found = np.asarray(array)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"the sound is not an array: {error}.") from None
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not 1 <= found.shape[1] <= _MOST_CHANNELS:
        raise InputError(
            f"the sound has shape {np.shape(array)}, not (samples,) or (samples, channels) with "
            f"1 to {_MOST_CHANNELS} channels."
        )
    if found.dtype.kind not in "iuf" or (found.dtype.kind in "iu" and found.dtype.itemsize > 4):
        raise InputError(
            f"the sound is {found.dtype}; it has to be floats from -1 to 1, or integers of 8, 16 "
            "or 32 bits."
        )
    return found, int(rate)


def _as_floats(block: NDArray[Any]) -> Samples:
    """Samples as a file of the same integers gives them."""
    kind = block.dtype
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return block.astype(np.float32)
    half = 2.0 ** (8 * kind.itemsize - 1)
    middle = half if kind.kind == "u" else 0.0
    return ((block.astype(np.float64) - middle) / half).astype(np.float32)


def _joined(
    name: str, blocks: Iterable[Samples], own_rate: int, rate: int, most_seconds: float
) -> Samples:
    """Blocks (samples, channels) as one channel at another rate."""
    # Grown in place: a list of blocks would need the samples' memory twice.
    made, count, resampler = bytearray(), 0, _resampler(name, own_rate, rate)
    for block in blocks:
        loudest = float(np.abs(block).max(initial=0))  # NaN where one is
        if not math.isfinite(loudest):
            at = count + int(np.argmin(np.isfinite(block).all(axis=1)))
            raise InputError(f"{name}: holds NaN or infinity, first at {at / own_rate:.3f} s.")
        if loudest > _LOUDEST:
            raise InputError(
                f"{name}: holds values up to {loudest:,.0f}; samples that are floats have to be "
                "from -1 to 1. Divide those that were 16-bit integers by 32,768."
            )
        count += len(block)
        _check_length(name, count / own_rate, most_seconds)
        mono = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
        made += (mono if resampler is None else resampler.resample_chunk(mono)).tobytes()
    if not count:
        raise InputError(f"{name}: holds no samples.")
    if resampler is not None:
        made += resampler.resample_chunk(np.empty(0, np.float32), last=True).tobytes()
        wanted = math.ceil(count * rate / own_rate) * np.dtype(np.float32).itemsize
        made += bytes(max(0, wanted - len(made)))
        del made[wanted:]
    return np.frombuffer(made, np.float32)


def _resampler(name: str, own_rate: int, rate: int) -> Any:
    """A stream of soxr; None where the rates are the same."""
    if own_rate == rate:
        return None
    try:
        import soxr
    except ImportError:
        need = f"{name}: has {own_rate} samples of a second and the model takes {rate}"
        raise missing_dependency(
            f"{need}: soxr resamples sound, which is not installed", "audio"
        ) from None
    return soxr.ResampleStream(own_rate, rate, 1, dtype="float32", quality="HQ")


def _check_rate(name: str, rate: int) -> None:
    if rate not in RATES:
        raise InputError(
            f"{name}: has {rate} samples of a second; from {RATES[0]} to {RATES[-1]} are read."
        )


def _check_length(name: str, seconds: float, most: float) -> None:
    if seconds > most:
        raise InputError(f"{name}: is {seconds:.1f} s or longer; at most {most:g} s are read.")
