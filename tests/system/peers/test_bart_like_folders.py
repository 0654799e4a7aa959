"""Folders of BART and its kin with something wrong in them: one clear error each."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.combinations import few_of
from tests.support.hf_models import (
    BART_LIKE,
    OF_FOLDERS,
    change_json,
    change_weights,
    make_model,
    padded_batch,
    save_folder,
)
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import Checkpoint, load_checkpoint
from tfexport.model_src.checkpoint.read import examine_checkpoint
from tfexport.model_src.config import BUNDLE_IDS

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

# One class reads all families; test_bart_like has the tensors of each.
EACH = few_of(BART_LIKE, "marian", "mbart", "fsmt")
FACTS = {family: OF_FOLDERS[family].prepare({}, {}).values for family in BART_LIKE}
LEARNED = [family for family in BART_LIKE if FACTS[family]["positions"] == "learned"]
PRE_NORM = [family for family in BART_LIKE if FACTS[family]["norm_placement"] == "pre"]
EMBEDDING_NORM = [it for it in BART_LIKE if FACTS[it]["source_embedding_norm"] != "none"]
OLD = {"transformers_version": "4.1.1"}  # which read these keys


def saved(tmp_path: Path, family: str, weights: str = "safetensors", **config: Any) -> Path:
    return save_folder(make_model(family, **config), tmp_path / "model", weights)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_checkpoint(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize("weights", ["safetensors", "bin"])
@pytest.mark.parametrize("family", EACH)
def test_missing_tensor_is_named(tmp_path: Path, family: str, weights: str) -> None:
    folder = saved(tmp_path, family, weights)
    change_weights(folder, lambda state: state.pop("model.encoder.layers.1.fc1.weight"))
    assert "model.encoder.layers.1.fc1.weight [24, 16] is missing" in refusal(folder)


@pytest.mark.parametrize("kind", ["fc1.bias", "fc2.bias", "self_attn.q_proj.bias"])
def test_biases_that_are_missing_everywhere_are_not_taken_for_none(
    tmp_path: Path, kind: str
) -> None:
    folder = saved(tmp_path, "bart")
    change_weights(folder, lambda state: [state.pop(key) for key in list(state) if kind in key])
    assert f"model.encoder.layers.0.{kind}" in refusal(folder)


@pytest.mark.parametrize("family", [it for it in BART_LIKE if it != "fsmt"])
def test_untied_head_that_is_absent(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family, untied=True)
    change_weights(folder, lambda state: state.pop("lm_head.weight"))
    message = refusal(folder)
    assert "lm_head.weight [" in message
    assert "is missing" in message
    assert "Note: tie_word_embeddings is false in config.json" in message


@pytest.mark.parametrize("family", PRE_NORM)
def test_final_norm_that_is_absent(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    change_weights(folder, lambda state: state.pop("model.decoder.layer_norm.weight"))
    assert "model.decoder.layer_norm.weight [16] is missing" in refusal(folder)
    change_weights(folder, lambda state: state.pop("model.decoder.layer_norm.bias"))
    assert "model.decoder.layer_norm.bias [16] is missing" in refusal(folder)


@pytest.mark.parametrize("family", EMBEDDING_NORM)
def test_norm_of_embeddings_that_is_absent(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    names = [f"model.decoder.layernorm_embedding.{kind}" for kind in ("weight", "bias")]
    change_weights(folder, lambda state: [state.pop(name) for name in names])
    assert "model.decoder.layernorm_embedding.weight [16] is missing" in refusal(folder)


@pytest.mark.parametrize("family", EACH)
def test_embeddings_that_are_absent(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    tables = ("shared", "embed_tokens", "lm_head", "output_projection")
    change_weights(
        folder, lambda state: [state.pop(key) for key in list(state) if any(map(key.count, tables))]
    )
    assert "is missing" in refusal(folder)


@pytest.mark.parametrize("family", LEARNED)
def test_learned_positions_that_are_absent(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    change_weights(folder, lambda state: state.pop("model.encoder.embed_positions.weight"))
    rows = 40 if family.startswith("blenderbot") else 42
    message = refusal(folder)
    assert f"model.encoder.embed_positions.weight [{rows}, 16] is missing" in message


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("marian", "model.encoder.layer_norm.weight"),  # of a class with norms before
        ("bart", "model.decoder.layer_norm.weight"),
        ("m2m_100", "final_logits_bias"),  # which the class has not
        ("fsmt", "final_logits_bias"),
        ("pegasus", "model.encoder.layernorm_embedding.weight"),
        ("fsmt", "model.shared.weight"),
        ("blenderbot", "classification_head.dense.weight"),
    ],
)
def test_tensor_that_the_class_has_no_place_for(tmp_path: Path, family: str, name: str) -> None:
    folder = saved(tmp_path, family)
    change_weights(folder, lambda state: state.update({name: torch.ones(1, 64)}))
    assert f"{name} " in refusal(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"d_model": 32}, "d_model is 32 in config.json, but the weights have 16"),
        ({"encoder_layers": 6}, "num_encoder_layers is 6 in config.json, but the weights have 2"),
        ({"decoder_ffn_dim": 24}, "decoder_d_ff is 0 in config.json, but the weights have 20"),
        ({"vocab_size": 65}, "source_vocab_size is 65 in config.json, but the weights have 64"),
        ({"max_position_embeddings": 50}, "max_positions is 50 in config.json, but the weights"),
        ({"encoder_attention_heads": 3}, "num_heads: 3 heads do not divide the 16 query rows"),
        ({"encoder_attention_heads": "two"}, "num_heads: 'two' is not an integer"),
        ({"scale_embedding": 1}, "scale_embeddings: 1 is not true or false"),
        (
            {"normalize_before": True, **OLD},
            "normalize_before is True, but every model of this type",
        ),
        ({"normalize_embedding": False, **OLD}, "normalize_embedding is False, but every model"),
        ({"static_position_embeddings": True, **OLD}, "static_position_embeddings is True, but"),
        ({"add_final_layer_norm": True, **OLD}, "add_final_layer_norm is True, but"),
        ({"activation_function": "mish"}, "activation_function: 'mish' is not supported"),
        ({"activation_function": None}, "activation_function: None is not supported"),
        ({"is_decoder": True}, "a decoder only"),
        ({"is_encoder_decoder": False}, "a decoder only"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
        ({"eos_token_id": [2, 3]}, "eos_token_id: [2, 3] is not a single id"),
        ({"eos_token_id": 64}, "eos_id: 64 is not an id of the target vocabulary (0 to 63)"),
        ({"pad_token_id": "x"}, "pad_id: 'x' is not an integer"),
    ],
)
def test_config_that_contradicts_the_weights_or_the_class(
    tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    folder = saved(tmp_path, "bart")
    change_json(folder / "config.json", **values)
    assert said in refusal(folder)


def test_all_that_is_not_supported_is_named_at_once(tmp_path: Path) -> None:
    folder = saved(tmp_path, "pegasus")
    change_json(
        folder / "config.json",
        activation_function="tanh",
        normalize_before=False,
        quantization_config={},
        **OLD,
    )
    message = refusal(folder)
    for part in ("'tanh'", "normalize_before is False", "quantization_config", "export(model"):
        assert part in message


@pytest.mark.parametrize("family", ["m2m_100", "fsmt"])
def test_padding_that_starts_decoding_has_no_position(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    change_json(folder / "config.json", decoder_start_token_id=1)
    assert "decoder_start_token_id is pad_token_id" in refusal(folder)


def test_padding_that_starts_decoding_in_the_other_file(tmp_path: Path) -> None:
    folder = save_folder(make_model("fsmt"), tmp_path / "model", decoder_start_token_id=1)
    with pytest.raises(
        ConfigError, match=r"generation_config\.json: decoder_start_token_id is pad"
    ):
        load_checkpoint(folder).read_generation()


@pytest.mark.parametrize(
    ("family", "start"), [("fsmt", 2), ("bart", 2), ("pegasus", 0), ("blenderbot", 1)]
)
def test_old_folders_leave_the_start_to_the_class(tmp_path: Path, family: str, start: int) -> None:
    folder = saved(tmp_path, family)
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", "decoder_start_token_id")
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.decoder_start_id == checkpoint.read_generation().start_id == start


@pytest.mark.parametrize("version", ["4.2.0", "4.57.6", "5.23.0"])
def test_old_keys_of_a_later_version_are_told_and_not_read(tmp_path: Path, version: str) -> None:
    folder = saved(tmp_path, "pegasus")
    change_json(
        folder / "config.json", "tie_word_embeddings", normalize_before=False,
        normalize_embedding=True, transformers_version=version,
    )  # fmt: skip
    notes = [
        note for note in map(str, examine_checkpoint(folder).notes) if "not read the key" in note
    ]
    assert [note.partition(" is ")[0] for note in notes] == [
        "normalize_before", "normalize_embedding",
    ]  # fmt: skip
    assert all(f"transformers {version} does not read" in note for note in notes)
    change_json(folder / "config.json", "transformers_version")
    assert "normalize_before is False, but every model of this type" in refusal(folder)


@pytest.mark.parametrize("family", ["mbart", "m2m_100", "plbart", "blenderbot"])
def test_start_is_the_only_one_where_the_files_have_no_bos(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    for name in ("config.json", "generation_config.json"):
        change_json(folder / name, bos_token_id=None, decoder_start_token_id=2)
    checkpoint = load_checkpoint(folder, require=BUNDLE_IDS)
    assert checkpoint.config.bos_id == checkpoint.config.decoder_start_id == 2
    assert checkpoint.read_generation().start_id == 2


def test_bos_around_a_source_is_never_the_start(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bart")
    change_json(folder / "config.json", bos_token_id=None)
    assert "add_source_bos needs bos_id" in refusal(folder)


@pytest.mark.parametrize("family", BART_LIKE)
def test_published_legacy_keys_are_not_contradictions(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    change_json(
        folder / "config.json",
        normalize_before=family in PRE_NORM,
        add_final_layer_norm=family in PRE_NORM,
        normalize_embedding=family in EMBEDDING_NORM,
        static_position_embeddings=family not in LEARNED,
        add_bias_logits=False,
        extra_pos_embeddings=1,
        classif_dropout=0.0,
        force_bos_token_to_be_generated=False,
    )
    load_checkpoint(folder)


@pytest.mark.parametrize("family", EACH)
def test_state_dict_without_config_is_asked_for_it(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    (folder / "config.json").unlink()
    message = refusal(folder)
    assert "config.json" in message
    assert "layout='NAME'" in message
    assert ("fsmt" if family == "fsmt" else "bart, blenderbot") in message


def test_settings_stand_in_for_config_json(tmp_path: Path) -> None:
    """A layout by name, and nothing made up: what the class leaves open must be said."""
    folder = saved(tmp_path, "bart")
    whole = load_checkpoint(folder)
    (folder / "config.json").unlink()
    missing = refusal(folder, layout="bart")
    assert all(key in missing for key in ("num_heads", "activation", "scale_embeddings"))
    settings = ["num_heads=2", "decoder_num_heads=4", "activation=gelu", "scale_embeddings=false"]
    settings += ["pad_id=1", "bos_id=0", "eos_id=2", "start_id=2"]
    assert load_checkpoint(folder, layout="bart", settings=settings).config == whole.config


@pytest.mark.parametrize("key", ["norm_placement=pre", "positions=none", "norm_eps=1e-6"])
def test_settings_do_not_change_the_class(tmp_path: Path, key: str) -> None:
    assert f"{key.partition('=')[0]} is " in refusal(saved(tmp_path, "bart"), settings=[key])


def test_source_longer_than_the_table_is_refused(tmp_path: Path) -> None:
    model = make_model("bart", max_position_embeddings=8)
    checkpoint: Checkpoint = load_checkpoint(save_folder(model, tmp_path / "short"))
    assert checkpoint.config.longest == 8
    batch = padded_batch(model, lengths=(9,))
    with pytest.raises(IndexError):
        checkpoint.build()(batch.ids, batch.mask, batch.target, torch.ones_like(batch.target))


def test_config_of_another_family_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """A Marian that is said to be a BART lacks what BART has."""
    folder = saved(tmp_path, "marian")
    change_json(folder / "config.json", model_type="bart", bos_token_id=3)
    message = refusal(folder)
    assert "model.encoder.layernorm_embedding.weight [16] is missing" in message
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bart"
