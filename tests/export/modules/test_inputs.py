"""Inputs that a module declares, buffers that it does not read, and examples that are drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.user_files import ENCODE, RECOMPUTING, UserFile
from tfexport.errors import ConfigError, ExportError
from tfexport.export import Input, export

FRAMES = Input("frames", "float32", ("batch", "time", 6))
GIVEN: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 5}
# The first column is the number of a row, as in a Pix2Struct.
NUMBERED = """
def encode(self, frames):
    return torch.tanh(self.project(frames) + self.places[frames[..., 0].long()])
"""


def export_file(folder: Path, encode: str, **given: Any) -> None:
    model = given.pop("model", None) or UserFile(folder, {**RECOMPUTING, "encode": encode}).build()
    arguments = {"inputs": [FRAMES], **GIVEN, **given}
    export(model, folder / "a.onnx", graph="generate", **arguments)


def test_floats_may_be_row_numbers(tmp_path: Path) -> None:
    # Unlike an index, an embedding refuses negative numbers.
    found = "nn.functional.embedding(frames[..., 0].long(), self.places)"
    encode = NUMBERED.replace("self.places[frames[..., 0].long()]", found)
    export_file(
        tmp_path, encode, inputs=[Input("frames", "float32", ("batch", "time", 6), below=7)]
    )
    assert (tmp_path / "a.onnx").exists()


def test_floats_without_a_range_are_named(tmp_path: Path) -> None:
    encode = NUMBERED.replace("self.places[frames[..., 0].long()]",
                              "self.places.index_select(0, frames[:, :, 0].long().flatten())"
                              ".unflatten(0, frames.shape[:2])")  # fmt: skip
    with pytest.raises(ExportError, match=r'Input\("frames", …, below=100\)') as caught:
        export_file(tmp_path, encode)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "below", "said"),
    [
        ("float32", 0, "a number above 0"),
        ("float32", float("inf"), "a number above 0"),
        ("float32", "7", "a number above 0"),
        ("int64", 7.5, "a positive integer"),
        ("int64", True, "a positive integer"),
    ],
)
def test_a_range_is_checked(tmp_path: Path, dtype: str, below: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        export_file(tmp_path, ENCODE, inputs=[Input("frames", dtype, ("batch", "time", 6), below)])


@pytest.mark.parametrize(
    "buffer",
    [
        torch.eye(3).to_sparse(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, device="meta"),
    ],
    ids=["sparse", "bfloat16", "meta"],
)
def test_a_buffer_that_nothing_reads_may_be_of_any_kind(
    tmp_path: Path, buffer: torch.Tensor
) -> None:
    model = UserFile(tmp_path, RECOMPUTING).build()
    model.register_buffer("unread", buffer, persistent=False)
    export_file(tmp_path, ENCODE, model=model, verify=False)
    assert (tmp_path / "a.onnx").exists()


def test_a_mask_of_bytes_is_exported_and_decodes(tmp_path: Path) -> None:
    encode = """
def encode(self, frames):
    size = frames.size(1)
    later = torch.triu(torch.ones(size, size, dtype=torch.uint8), diagonal=1).bool()
    scores = (frames @ frames.transpose(1, 2)).masked_fill(later, -1e9)
    return torch.tanh(self.project(scores.softmax(-1) @ frames))
"""
    export_file(tmp_path, encode, examples=[{"frames": np.ones((4, 6), np.float32)}])
    assert (tmp_path / "a.onnx").exists()
