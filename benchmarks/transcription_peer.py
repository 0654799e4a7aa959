"""faster-whisper, as ``benchmarks.transcription`` runs it in an environment of its own."""

import json
import resource
import sys
import time
import wave
from importlib import import_module
from typing import Any

import numpy as np


def main() -> None:
    """Transcribe, and print seconds, peak memory and texts as JSON."""
    setup = json.loads(sys.argv[1])
    threads, weights = setup["threads"], setup["weights"]
    library: Any = import_module("faster_whisper")
    model = library.WhisperModel(
        setup["folder"], device="cpu", compute_type=weights, cpu_threads=threads
    )
    sounds = []
    for path in setup["sounds"]:
        with wave.open(path) as file:
            frames = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        sounds.append(frames.astype(np.float32) / 32768)
    texts, begun = [], 0.0
    for number, sound in enumerate([sounds[0], *sounds]):  # the first one warms up
        if number == 1:
            begun = time.perf_counter()
        segments, _ = model.transcribe(
            sound, language=setup["language"], beam_size=setup["beam_size"], temperature=0.0,
            condition_on_previous_text=False, compression_ratio_threshold=None,
            log_prob_threshold=None, no_speech_threshold=None,
        )  # fmt: skip
        texts.append("".join(segment.text for segment in segments))
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "texts": texts[1:], "parts": {}}))


if __name__ == "__main__":
    main()
