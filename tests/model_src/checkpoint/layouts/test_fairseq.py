"""Checkpoints of fairseq: read without it, as its own mathematics has them."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.toolkits import fairseq
from tests.support.toolkits.drawn import both, difference
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint


@pytest.mark.parametrize("seed", range(30))
def test_drawn_models_say_what_fairseq_says(tmp_path: Path, seed: int) -> None:
    case = fairseq.write(seed, tmp_path)
    found = load_checkpoint(case.path)
    config = found.config.to_dict()
    assert {key: config[key] for key in case.config} == dict(case.config)
    assert difference(*both(found, case.vocab, seed)) < 1e-4


def saved(tmp_path: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A file that torch could load, and what is in it."""
    path = fairseq.write(1, tmp_path, share_all_embeddings=False, **changes).path
    torch.serialization.add_safe_globals([argparse.Namespace])
    return path, torch.load(path, weights_only=True)


def test_folder_of_training_and_copies_for_a_fast_path(tmp_path: Path) -> None:
    path, value = saved(tmp_path)
    for name in ("in_proj_weight", "out_proj_bias", "fc1_weight"):
        value["model"][f"encoder.layers.0.{name}"] = torch.zeros(3)
    torch.save(value, path)
    found = load_checkpoint(tmp_path)
    assert found.key_report["encoder.layers.0.fc1_weight"] == ()
    ids = found.special_ids
    assert (ids.bos, ids.pad, ids.eos, ids.unk, ids.decoder_start) == (0, 1, 2, 3, 2)


def test_last_norms_of_old_versions_are_left_out(tmp_path: Path) -> None:
    switches = {f"{it}_normalize_before": True for it in fairseq.STACKS}
    path, value = saved(tmp_path, no_decoder_final_norm=False, **switches)
    value["model"]["encoder.version"] = value["model"]["decoder.version"] = torch.tensor([2.0])
    torch.save(value, path)
    found = load_checkpoint(path)
    assert found.config.encoder_final_norm
    assert not found.config.decoder_final_norm
    assert difference(*both(found, (20, 20), 0)) < 1e-4


REFUSED: dict[str, Any] = {
    "adaptive_softmax_cutoff": [100, 200], "cross_self_attention": True, "scale_heads": True,
    "activation_fn": "tanh", "arch": "transformer_lm", "decoder_learned_pos": "both",
    "base_layers": 2, "encoder_attention_heads": "four",
}  # fmt: skip


@pytest.mark.parametrize("option", REFUSED)
def test_option_that_is_not_supported_is_named(tmp_path: Path, option: str) -> None:
    path, value = saved(tmp_path)
    setattr(value["args"] or value["cfg"]["model"], option, REFUSED[option])
    torch.save(value, path)
    with pytest.raises(ConfigError, match=option):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("decoder.adaptive_softmax.head.weight", "adaptive softmax"),
        ("decoder.project_in_dim.weight", "another width"),
        ("encoder.layers.0.attn_ln.weight", "NormFormer"),
        ("encoder.layers.0.fc1.weight_fake_quant.scale", "a quantized layer"),
        ("models.de-en.encoder.layers.0.fc1.weight", "several language pairs"),
        ("encoder.layers.0.gate.weight", "was not read"),
    ],
)
def test_tensor_that_is_not_supported_is_named(tmp_path: Path, key: str, reason: str) -> None:
    path, value = saved(tmp_path)
    value["model"][key] = torch.ones(2, 2)
    torch.save(value, path)
    with pytest.raises(CheckpointError, match=rf"{reason}.*{re.escape(key)}|{key}.*{reason}"):
        load_checkpoint(path)


def test_contradicting_options_and_missing_tensors_are_named(tmp_path: Path) -> None:
    path, value = saved(tmp_path)
    (value["args"] or value["cfg"]["model"]).encoder_ffn_embed_dim = 99
    del value["model"]["encoder.layers.0.fc2.bias"]
    torch.save(value, path)
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(path)
    assert "d_ff is 99 in checkpoint_best.pt's options, but the weights have 24" in str(
        raised.value
    )
    assert "encoder.layers.0.fc2.bias [" in str(raised.value)


def test_weights_alone_need_the_layout_and_the_heads(tmp_path: Path) -> None:
    path, value = saved(tmp_path)
    heads = (value["args"] or value["cfg"]["model"]).encoder_attention_heads
    torch.save(value["model"], path)
    with pytest.raises(CheckpointError, match="fairseq"):
        load_checkpoint(path)
    with pytest.raises(ConfigError, match="num_heads"):
        load_checkpoint(path, layout="fairseq")
    found = load_checkpoint(path, None, [f"num_heads={heads}"], layout="fairseq")
    assert found.config.start_id == 2
