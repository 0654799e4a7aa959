"""A process from its start to its first sentence, and how long each part of that took.

python -m benchmarks.first_sentence SYSTEM FOLDER THREADS BEGUN, where BEGUN is the time.time() at
which the process was started; prints a JSON object of seconds. Imports nothing that it measures.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

WORDS = list(range(5, 25))
LENGTH = 10


def _timed(owner: Any, name: str, part: str, parts: dict[str, float]) -> None:
    """Add up the time of a function's calls, in whatever threads."""
    call: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(call)
    def timed(*values: Any, **keywords: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*values, **keywords)
        finally:
            parts[part] = parts.get(part, 0.0) + time.perf_counter() - begun

    setattr(owner, name, timed)


def tfexport(folder: str, threads: int, parts: dict[str, float]) -> Callable[[], object]:
    """Open a bundle; digests run in a thread while numpy and the rest are imported."""
    begun = time.perf_counter()
    from tfexport import Translator, bundle
    from tfexport.runtime import translator as module

    parts["imports"] = time.perf_counter() - begun
    check_ahead = bundle.check_ahead
    _timed(bundle, "_sha256", "digests", parts)

    def imported(path: str) -> bundle.BundleCheck | None:
        """Import what the translator imports next, and let it be timed."""
        check = check_ahead(path)
        begun = time.perf_counter()
        import numpy  # noqa: F401

        parts["numpy"] = time.perf_counter() - begun
        from tfexport.runtime import engine  # noqa: F401
        from tfexport.runtime.model import open_model
        from tfexport.runtime.text.codec import TextCodec

        _timed(open_model, "NativeModel", "weights", parts)
        _timed(TextCodec, "__init__", "tokenizers", parts)
        parts["imports"] += time.perf_counter() - begun
        return check

    setattr(module, "check_ahead", imported)  # noqa: B010
    translator = Translator(folder, threads)
    parts["open"] = time.perf_counter() - begun - parts["imports"]
    return lambda: translator.generate([WORDS], max_length=LENGTH, return_scores=False)


def ctranslate2(folder: str, threads: int, parts: dict[str, float]) -> Callable[[], object]:
    """Open CTranslate2's model."""
    begun = time.perf_counter()
    import ctranslate2

    parts["imports"] = time.perf_counter() - begun
    translator = ctranslate2.Translator(folder, "cpu", inter_threads=1, intra_threads=threads)
    parts["open"] = time.perf_counter() - begun - parts["imports"]
    words = [[f"t{i}" for i in WORDS]]
    return lambda: translator.translate_batch(words, beam_size=1, max_decoding_length=LENGTH)


def main() -> None:
    """Translate one sentence."""
    system, folder, threads, begun = sys.argv[1:]
    parts = {"interpreter": time.time() - float(begun)}
    start = {"tfexport": tfexport, "ctranslate2": ctranslate2}[system]
    translate = start(folder, int(threads), parts)
    begun_sentence = time.perf_counter()
    translate()
    parts["first sentence"] = time.perf_counter() - begun_sentence
    parts["to the first sentence"] = time.time() - float(begun)
    print(json.dumps(parts), flush=True)


if __name__ == "__main__":
    main()
