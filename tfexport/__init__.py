"""tfexport: trained encoder-decoder Transformers from PyTorch, decoded on a CPU without torch.

This package imports nothing heavy. What you need is one level down:

- ``tfexport.model_src``: the model and its checkpoints (torch)
- ``tfexport.export``: checkpoint or live module to files, and the comparison (torch, onnx)
- ``tfexport.runtime``: files to text (numpy and onnxruntime, never torch)
- ``tfexport.cli``: the ``tfexport`` command

``tfexport.Translator`` is ``tfexport.runtime.Translator``, imported when it is first used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfexport.runtime.translator import Translator

__version__: str  # as it was installed, or "0+unknown" from a folder that is on the path only

__all__ = ["Translator", "__version__"]

# onnxruntime reads it when it is imported, and then neither starts its thread that reports to its
# maker nor writes into the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenBLAS reads it when numpy is imported: its threads, which numpy starts then, spin for 2^20
# cycles and not for 2^26 (some 25 ms on a core each) before they sleep.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def __getattr__(name: str) -> Any:
    if name == "Translator":
        return import_module("tfexport.runtime.translator").Translator
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata  # which takes longer to import than all of this package

    try:
        return metadata.version("tfexport")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
