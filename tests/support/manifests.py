"""Bundles whose manifests a test writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfexport.bundle import (
    MANIFEST,
    Limits,
    Manifest,
    SpecialIds,
    new_bundle,
    write_manifest,
)
from tfexport.manifest import digest_of


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "tfexport_version": "0.1.0",
        "opset": {"": 20},
        "ir_version": 10,
        "minimum_onnxruntime": "1.18",
        "config": {
            "d_model": 8,
            "num_decoder_layers": 1,
            "num_heads": 2,
            "head_dim": 4,
            "decoder_num_heads": 0,
            "add_source_bos": False,
            "add_source_eos": True,
            "mask_fill": "-inf",
        },
        "special_ids": SpecialIds(0, 1, 2),
        "limits": Limits(11, 13, 64, None),
        "graphs": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
    }
    return Manifest(**{**values, **changes})


def write(path: Path, content: bytes = b"graph") -> Manifest:
    with new_bundle(path, force=True) as folder:
        (folder / "encoder.onnx").write_bytes(content)
        (folder / "decoder.onnx").write_bytes(content)
        return write_manifest(folder, manifest())


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest by hand and compute its digest again."""
    file = path / MANIFEST
    values = json.loads(file.read_text())
    change(values)
    values["digest"] = digest_of(values)
    file.write_text(json.dumps(values))
