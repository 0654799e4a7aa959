"""The result of an export: a bundle has a manifest, a file has none and says so."""

from pathlib import Path

import pytest

from tfexport.export.artifacts.results import ExportResult


def test_manifest_of_a_file_is_an_attribute_that_it_lacks() -> None:
    result = ExportResult(Path("model.onnx"), "forward")
    assert not hasattr(result, "manifest")
    with pytest.raises(AttributeError, match=r"model\.onnx: a single file"):
        _ = result.manifest
