"""Speech of a text by eSpeak NG, whose library and voices are a package of the index."""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from benchmarks.real.packages import NotFetchedError, fetch
from tfexport.module_rows import Array

REQUIREMENT = "espeakng-loader==0.2.4"
RATE = 16_000  # samples a second
# Of espeak-ng's speak_lib.h; a normal rate is 175 words a minute.
_SYNCHRONOUS, _DO_NOT_EXIT, _UTF8 = 2, 0x8000, 1
_RATE = 1  # its parameter
VOICE, WORDS_A_MINUTE = "en-us", 175
_HEARD = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Speaker:
    """The library, with one voice at a time."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            NotFetchedError: its package is not to be had, or has no voice for English.
        """
        folder = fetch(REQUIREMENT) / "espeakng_loader"
        self._library: Any = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self._rate = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, str(folder).encode(), _DO_NOT_EXIT
        )
        if self._rate <= 0 or self._library.espeak_SetVoiceByName(VOICE.encode()) != 0:
            raise NotFetchedError(f"{REQUIREMENT}: it has no English voice")

    def say(self, text: str, voice: str = VOICE, words_a_minute: int = WORDS_A_MINUTE) -> Array:
        """The samples (N,) of a text, between -1 and 1, at ``RATE``.

        Args:
            text: to say.
            voice: its name, which may have a variant such as ``en-us+f3``.
            words_a_minute: the speed.
        """
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(_RATE, words_a_minute, 0)
        pieces: list[Array] = []

        def heard(samples: Any, count: int, events: Any) -> int:
            if count > 0:
                pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
            return 0

        kept = _HEARD(heard)
        self._library.espeak_SetSynthCallback(kept)
        spoken = text.encode() + b"\0"
        # position, its type (characters), end, flags, identifier, user data
        rest = (0, 1, 0, _UTF8, None, None)
        failed = self._library.espeak_Synth(spoken, ctypes.c_size_t(len(spoken)), *rest)
        self._library.espeak_SetSynthCallback(None)
        if failed or not pieces:
            raise ValueError(f"{text!r}: espeak-ng gives no samples (status {failed})")
        samples = np.concatenate(pieces) / 32768
        places = np.arange(int(len(samples) * RATE / self._rate)) * self._rate / RATE
        found: Array = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
        return found


@cache
def speaker() -> Speaker:
    """The one speaker of the process: the library has one voice for all callers."""
    return Speaker()
