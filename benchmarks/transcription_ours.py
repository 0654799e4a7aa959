"""A bundle of Whisper, as ``benchmarks.transcription`` runs it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tfexport.runtime import Translator


def timed(parts: dict[str, float], name: str, call: Any) -> Any:
    """A call that adds its seconds to a part."""

    def run(*values: Any, **keywords: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*values, **keywords)
        finally:
            parts[name] = parts.get(name, 0.0) + time.perf_counter() - begun

    return run


def main() -> None:
    """Transcribe the sounds whose numbers stdin has; at "end" print what it took, as JSON."""
    setup = json.loads(sys.argv[1])
    parts = dict[str, float]()
    with Translator(setup["bundle"], engine=setup["engine"], threads=setup["threads"]) as opened:
        engine = opened.engine
        model, reader = engine.model, engine.files.preprocessor
        encoded, windows = model.encoded, [0]

        def counted(rows: Any) -> Any:
            windows[0] += len(rows)
            return encoded(rows)

        model.encoded = timed(parts, "encoder", counted)  # type: ignore[method-assign]
        language = setup["language"] if opened.manifest.speech.multilingual else None  # type: ignore[union-attr]
        for turn, line in enumerate(iter(lambda: sys.stdin.readline().strip(), "end")):
            if turn == 1:  # the first one warms up
                parts.clear()
                windows[0] = 0
            begun = time.perf_counter()
            (found,) = opened.transcribe(
                [setup["sounds"][int(line)]],
                language=language, timestamps=True, beam_size=setup["beam_size"],
            )  # fmt: skip
            answer = {"seconds": time.perf_counter() - begun, "text": found.text}
            print(json.dumps(answer), flush=True)
        begun = time.perf_counter()
        for sound in setup["sounds"]:
            samples = reader.read(sound, 100)  # type: ignore[union-attr]
            reader.features(samples)  # type: ignore[union-attr]
        parts["features"] = time.perf_counter() - begun
    # Not ru_maxrss, which begins with that of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    rounded = {name: round(value, 3) for name, value in parts.items()}
    print(json.dumps({"peak": peak, "parts": rounded, "windows": windows[0]}))


if __name__ == "__main__":
    main()
