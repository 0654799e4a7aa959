"""Tensors of unusual kinds and types: upcast, or refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.model_src.checkpoint.hostile_files import refuse
from tests.support import tutorial
from tfexport.errors import CheckpointError
from tfexport.model_src import load_checkpoint


def unusual() -> dict[str, Tensor]:
    whole = torch.ones(4, 4)
    return {
        "meta": whole.to("meta"),
        "quantized": torch.quantize_per_tensor(whole, 0.1, 0, torch.qint8),
        "sparse": whole.to_sparse(),
        "sparse_csr": whole.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }


@pytest.mark.parametrize("kind", ["meta", "quantized", "sparse", "sparse_csr", "nested"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensor_without_plain_values_is_named(tmp_path: Path, kind: str) -> None:
    from tfexport.model_src.checkpoint.state_dict import flatten

    state = {**tutorial.make().state_dict(), "generator.weight": unusual()[kind]}
    word = kind.removesuffix("_csr")
    torch.save(state, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", rf"generator\.weight is a {word} tensor")
    with pytest.raises(CheckpointError, match=rf"generator\.weight is a {word} tensor"):
        flatten(state, Path("module"))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_float8_is_upcast(tmp_path: Path, dtype: str, suffix: str) -> None:
    state = tutorial.make().state_dict()
    if "fnuz" in dtype and suffix == ".safetensors":
        pytest.skip("safetensors has no such type")
    narrow = {key: value.to(getattr(torch, dtype)) for key, value in state.items()}
    path = tmp_path / f"a{suffix}"
    (torch.save if suffix == ".pt" else save_file)(narrow, path)
    found = load_checkpoint(path, {"num_heads": 4})
    expected = narrow["generator.weight"].float()
    torch.testing.assert_close(found.build().output_proj.weight, expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_other_types_are_refused_by_name(tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    state = dict(tutorial.make().state_dict())
    state["generator.weight"] = state["generator.weight"].to(dtype)
    path = tmp_path / f"a{suffix}"
    (torch.save if suffix == ".pt" else save_file)(state, path)
    refuse(path, rf"generator\.weight holds {dtype} values")


def test_double_that_float32_cannot_hold_is_named(tmp_path: Path) -> None:
    state = dict(tutorial.make().state_dict())
    state["generator.bias"] = torch.full((19,), 1e300, dtype=torch.float64)
    torch.save(state, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", "generator.bias holds 19 values that are NaN or infinite in float32")
