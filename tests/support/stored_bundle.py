"""Makes ``tests/fixtures/version-1.bundle`` again: ``python -m tests.support.stored_bundle``.

Its model is taken from the bundle itself. Until the first release it follows the format. From then
on it stays as that release wrote it, so that a test sees whether later versions read it.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.support.paths import VERSION_1
from tfexport.bundle import WEIGHTS, read_manifest
from tfexport.export import export
from tfexport.model_src import TransformerConfig, build_transformer
from tfexport.weight_table import read_weight_table


def make() -> None:
    """Export the stored bundle's model again, and replace the bundle."""
    file = np.fromfile(VERSION_1 / WEIGHTS, np.uint8)
    table = read_weight_table(VERSION_1, file.size)
    manifest = read_manifest(VERSION_1)
    model = build_transformer(TransformerConfig.from_dict(manifest.config))
    model.load_state_dict({k: torch.tensor(v.values(file)) for k, v in table.items()})
    with tempfile.TemporaryDirectory() as folder:
        source, target = (
            Path(shutil.copy(VERSION_1 / manifest.tokenizers[side].file, folder))
            for side in ("source", "target")
        )
        export(model, VERSION_1, source_tokenizer=source, target_tokenizer=target, force=True)


if __name__ == "__main__":
    make()
