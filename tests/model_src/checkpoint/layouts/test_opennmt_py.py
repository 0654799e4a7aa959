"""Checkpoints of OpenNMT-py: read without it, as its own mathematics has them."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.toolkits import opennmt_py
from tests.support.toolkits.drawn import both, difference
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.pickle_parser import Call
from tfexport.model_src.checkpoint.toolkit_pickles import special_ids, words_of


@pytest.mark.parametrize("seed", range(30))
def test_drawn_models_say_what_opennmt_says(tmp_path: Path, seed: int) -> None:
    case = opennmt_py.write(seed, tmp_path)
    found = load_checkpoint(case.path)
    config = found.config.to_dict()
    assert {key: config[key] for key in case.config} == dict(case.config)
    assert difference(*both(found, case.vocab, seed)) < 1e-4


def test_position_table_of_the_file_is_its_own(tmp_path: Path) -> None:
    path, value = saved(tmp_path, position_encoding=True)
    size = opennmt_py.size_of(vars(value["opt"]))
    for stack in ("encoder", "decoder"):
        value["model"][f"{stack}.embeddings.make_embedding.pe.pe"] = torch.randn(12, 1, size)
    torch.save(value, path)
    found = load_checkpoint(path)
    assert found.config.max_positions == 12
    assert difference(*both(found, (20, 20), 0)) < 1e-4


def saved(tmp_path: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A file of version 3 that torch could load, and what is in it."""
    path = opennmt_py.write(2, tmp_path, 3, share_embeddings=False, **changes).path
    torch.serialization.add_safe_globals([argparse.Namespace])
    value = torch.load(path, weights_only=True)
    assert "model" in value
    return path, value


REFUSED: dict[str, Any] = {
    "copy_attn": True, "max_relative_positions": -2, "self_attn_type": "average",
    "encoder_type": "brnn", "model_task": "lm", "lora_layers": ["linear_keys"], "num_kv": 2,
    "num_experts": 4, "parallel_residual": True, "generator_function": "sparsemax",
    "pos_ffn_activation_fn": "tanh", "quant_layers": ["w_1"], "heads": 2.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"rotary_interleave": False}, {"rotary_theta": 500000}, {"rotary_dim": 2}],
)
def test_other_rotary_positions_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = opennmt_py.write(2, tmp_path, 3, max_relative_positions=-1, **changes).path
    with pytest.raises(ConfigError, match=next(iter(changes))):
        load_checkpoint(path)


@pytest.mark.parametrize("option", REFUSED)
def test_option_that_is_not_supported_is_named(tmp_path: Path, option: str) -> None:
    path, value = saved(tmp_path)
    setattr(value["opt"], option, REFUSED[option])
    torch.save(value, path)
    with pytest.raises(ConfigError, match=option):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("encoder.embeddings.make_embedding.emb_luts.1.weight", "a source with features"),
        ("encoder.transformer.0.self_attn.linear_keys.lora_A", "LoRA"),
        ("decoder.transformer_layers.0.self_attn.gating_layer.weight", "average attention"),
        ("encoder.layer_norm.a_2", "the norm of versions before 1"),
        ("encoder.transformer.0.other.weight", "was not read"),
    ],
)
def test_tensor_that_is_not_supported_is_named(tmp_path: Path, key: str, reason: str) -> None:
    path, value = saved(tmp_path)
    value["model"][key] = torch.ones(2, 2)
    torch.save(value, path)
    match = rf"{reason}.*{re.escape(key)}|{re.escape(key)}.*{reason}"
    with pytest.raises(CheckpointError, match=match):
        load_checkpoint(path)


def test_options_without_weights_are_refused(tmp_path: Path) -> None:
    path, value = saved(tmp_path)
    del value["model"], value["generator"]
    torch.save(value, path)
    with pytest.raises(CheckpointError, match=r"no model_step_10\.safetensors next to it"):
        load_checkpoint(path)


def test_words_of_version_2_are_found_in_its_objects() -> None:
    words = ["<unk>", "<blank>", "<s>", "</s>", "a"]
    vocab = Call("torchtext.vocab.Vocab", (), {"itos": words, "stoi": {}})
    field = Call("torchtext.data.field.Field", (), {"vocab": vocab, "eos_token": "</s>"})
    multi = Call("onmt.inputters.text_dataset.TextMultiField", (), {"fields": [("tgt", field)]})
    assert words_of({"tgt": multi}, "tgt") == words
    assert words_of([("src", vocab), ("tgt", vocab)], "src") == words
    assert special_ids({"tgt": multi}) == {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}
    assert words_of({"tgt": Call("a.B", (), {})}, "tgt") == words_of(5, "tgt") == []


def test_decoding_starts_with_the_word_that_the_vocabulary_says() -> None:
    words = ["<unk>", "<blank>", "<s>", "</s>", "<2de>"]
    assert special_ids({"tgt": words, "decoder_start_token": "<2de>"})["start_id"] == 4
    assert "start_id" not in special_ids({"tgt": words, "decoder_start_token": "<s>"})
