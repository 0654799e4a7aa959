"""faster-whisper, as ``benchmarks.transcription`` runs it in an environment of its own."""

import json
import sys
import time
import wave
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 480_000  # samples


def main() -> None:
    """Transcribe the sounds whose numbers stdin has; at "end" print what it took, as JSON."""
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
        samples = frames.astype(np.float32) / 32768
        if setup["silence"]:
            samples = np.pad(samples, (0, max(0, WINDOW - len(samples))))
        sounds.append(samples)
    parts, windows = {"encoder": 0.0}, [0]
    encode = model.encode

    def encoded(*values: Any) -> Any:
        windows[0] += 1
        started = time.perf_counter()
        found = encode(*values)
        parts["encoder"] += time.perf_counter() - started
        return found

    model.encode = encoded
    for turn, line in enumerate(iter(lambda: sys.stdin.readline().strip(), "end")):
        if turn == 1:  # the first one warms up
            windows[0], parts["encoder"] = 0, 0.0
        begun = time.perf_counter()
        segments, _ = model.transcribe(
            sounds[int(line)], language=setup["language"], beam_size=setup["beam_size"],
            temperature=0.0, condition_on_previous_text=False, compression_ratio_threshold=None,
            log_prob_threshold=None, no_speech_threshold=None,
        )  # fmt: skip
        text = "".join(segment.text for segment in segments)
        answer = {"seconds": time.perf_counter() - begun, "text": text}
        print(json.dumps(answer), flush=True)
    begun_features = time.perf_counter()
    for sound in sounds:
        model.feature_extractor(sound)
    parts["features"] = time.perf_counter() - begun_features
    # Not ru_maxrss, which begins with that of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    rounded = {name: round(value, 3) for name, value in parts.items()}
    print(json.dumps({"peak": peak, "parts": rounded, "windows": windows[0]}))


if __name__ == "__main__":
    main()
