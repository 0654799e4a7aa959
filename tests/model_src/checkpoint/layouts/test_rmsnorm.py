"""The layout of the RMSNorm Transformer: a tensor for every head."""

import re
from pathlib import Path

import pytest
import torch

from tests.support.originals import rmsnorm
from tfexport.errors import CheckpointError
from tfexport.model_src import (
    load_checkpoint,
)


def test_missing_head_is_named(tmp_path: Path) -> None:
    state = rmsnorm.RMSNormModel().state_dict()
    gone = "decoder_blocks.1.multi_head_attention.attention_blocks.1.K_net.weight"
    del state[gone]
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=re.escape(f"{gone} is missing")):
        load_checkpoint(tmp_path)


def test_heads_of_different_sizes_are_named(tmp_path: Path) -> None:
    state = rmsnorm.RMSNormModel().state_dict()
    state["encoder_blocks.0.multi_head_attention.attention_blocks.2.Q_net.weight"] = torch.ones(
        5, 9
    )
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(
        CheckpointError, match=r"the heads of encoder\.layers\.0\.self_attn\.q_proj"
    ):
        load_checkpoint(tmp_path)
