"""tfexport: trained encoder-decoder Transformers from PyTorch, decoded on a CPU without torch.

This package imports nothing heavy. What you need is one level down:

- ``tfexport.model_src``: the model and its checkpoints (torch)
- ``tfexport.export``: checkpoint or live module to files, and the proof of parity (torch, onnx)
- ``tfexport.runtime``: files to text (numpy and onnxruntime, never torch)
- ``tfexport.cli``: the ``tfexport`` command
"""

import os

__version__ = "0.1.0"

__all__ = ["__version__"]

# onnxruntime reads it when it is imported, and then neither starts its thread that reports to its
# maker nor writes into the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
