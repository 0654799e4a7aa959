"""The RMSNorm Transformer's signature: equal to the original under its own mask."""

from pathlib import Path

import pytest
import torch

from tests.model_src.original_signatures.compare import close
from tests.support.originals import rmsnorm
from tests.support.originals.weights import shake
from tfexport.errors import InputError
from tfexport.model_src import (
    RMSNormTransformer,
    load_checkpoint,
)
from tfexport.model_src.masks import generate_mask_mat


@pytest.fixture
def rms(tmp_path: Path) -> tuple[rmsnorm.RMSNormModel, RMSNormTransformer]:
    theirs = shake(rmsnorm.RMSNormModel())
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    found = load_checkpoint(tmp_path)
    assert found.layout == "rmsnorm"
    assert found.origins["num_heads"] == "weights"
    assert (found.config.num_heads, found.config.head_dim, found.config.d_model) == (3, 5, 12)
    assert (found.config.num_encoder_layers, found.config.num_decoder_layers) == (2, 3)
    return theirs, RMSNormTransformer(found.build())


@pytest.mark.parametrize("masked", [0, 1, 3, 5, None])
def test_rmsnorm_transformer_equals_its_original_under_its_own_mask(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer], masked: int | None
) -> None:
    theirs, ours = rms
    source, target = torch.randint(0, 19, (2, 7)), torch.randint(0, 19, (2, 6))
    mask = None if masked is None else generate_mask_mat(6, masked)
    close(ours(source, target, mask), theirs(source, target, mask))
    if mask is not None:
        stacked = torch.stack([mask, mask])
        close(ours(source, target, stacked), theirs(source, target, stacked))


def test_rmsnorm_decoder_without_an_encoder_attends_to_itself(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer],
) -> None:
    theirs, ours = rms
    target = torch.randint(0, 19, (2, 6))
    for mask in (None, generate_mask_mat(6, 5)):
        close(ours(None, target, mask), theirs(None, target, mask))


def test_mask_function_is_causal_at_its_longest_and_written_out_below() -> None:
    assert torch.equal(generate_mask_mat(6, 5), rmsnorm.causal(6))
    for masked in range(7):
        expected = [[6 - j + i <= masked for j in range(6)] for i in range(6)]
        assert generate_mask_mat(6, masked).tolist() == expected


def test_rmsnorm_mask_of_another_form_is_refused(
    rms: tuple[rmsnorm.RMSNormModel, RMSNormTransformer],
) -> None:
    with pytest.raises(InputError, match=r"expected bool \(T, T\) = \(6, 6\)"):
        rms[1](None, torch.zeros(2, 6, dtype=torch.long), torch.zeros(6, 5, dtype=torch.bool))
