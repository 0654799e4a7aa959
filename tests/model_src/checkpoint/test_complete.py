"""Completion of a config: the order of its sources, and what contradicts the weights."""

import json
import re
from pathlib import Path

import pytest

from tests.model_src.checkpoint.files import State, save
from tests.support import tutorial
from tfexport.cli.console import spell
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import (
    load_checkpoint,
)
from tfexport.model_src.checkpoint.read import examine_checkpoint


def test_config_comes_from_weights_then_files_then_settings(state: State, tmp_path: Path) -> None:
    path = save(state, tmp_path, num_heads=2, activation="gelu", pad_id=5)
    (tmp_path / "other.json").write_text(json.dumps({"num_heads": 4, "pad_id": 6}))
    found = load_checkpoint(path, config=tmp_path / "other.json", settings=["pad_id=7"])
    assert (found.config.num_heads, found.config.activation, found.config.pad_id) == (4, "gelu", 7)
    origins = found.origins
    assert origins["d_model"] == "weights"
    assert origins["num_heads"] == "other.json"
    assert origins["activation"] == "config.json"
    assert origins["pad_id"] == "settings"
    assert origins["scale_embeddings"] == "assumed"


def test_what_is_missing_is_named_with_the_words_that_set_it(state: State, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_heads, pad_id; set ") as caught:
        load_checkpoint(save(state, tmp_path), require=["pad_id"])
    assert "settings=['num_heads=…', 'pad_id=…']" in str(caught.value)
    assert "--set num_heads=… --set pad_id=…" in caught.value.message.spelled(spell)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["num_heads=5"], "5 heads do not divide the 16 query rows"),
        (["num_heads=0"], "num_heads: 0 is not positive"),
        (["num_heads=4", "d_model=32"], "d_model is 32 in settings, but the weights have 16"),
        (["num_heads=4", "num_decoder_layers=3"], "num_decoder_layers is 3 in settings"),
        (["num_heds=4"], "settings: unknown key 'num_heds'; did you mean 'num_heads'?"),
        (["num_heads"], "'num_heads' is not of the form key=value"),
        (
            ["num_heads=4", "activation=tanh"],
            "'tanh' is not one of 'relu', 'gelu', 'gelu_tanh', 'quick_gelu', 'silu'",
        ),
        (["num_heads=4", "eos_id=19"], "eos_id: 19 is not an id of the target vocabulary"),
        (["num_heads=four"], "num_heads: 'four' is not an integer"),
        (
            ["num_heads=4", "tie_output=true"],
            "tie_output is True in settings, but the weights have",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    state: State, tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(save(state, tmp_path), settings=settings)
    assert message in str(caught.value)


def test_settings_are_read_as_documented(state: State, tmp_path: Path) -> None:
    settings = ["num_heads=2", "num_heads=4", "mask_fill=-1e9", "norm_eps=0.001", "unk_id=3"]
    config = load_checkpoint(save(state, tmp_path), settings=settings).config
    assert (config.num_heads, config.mask_fill, config.norm_eps) == (4, -1e9, 1e-3)
    again = load_checkpoint(tmp_path, settings=["num_heads=4", "mask_fill=-inf"]).config
    assert again.mask_fill == float("-inf")


def test_tied_tables_are_found_by_their_values(tmp_path: Path) -> None:
    state = dict(tutorial.make(source_size=19).state_dict())
    state["generator.weight"] = state["tgt_tok_emb.embedding.weight"].clone()
    state["src_tok_emb.embedding.weight"] = state["tgt_tok_emb.embedding.weight"].clone()
    config = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"]).config
    assert config.tie_embeddings
    assert config.tie_output


@pytest.mark.parametrize(
    ("source_size", "advised"), [(19, ["tie_output", "tie_embeddings"]), (17, ["tie_output"])]
)
def test_only_settings_that_fit_the_sizes_are_advised(
    tmp_path: Path, source_size: int, advised: list[str]
) -> None:
    state = dict(tutorial.make(source_size=source_size).state_dict())
    del state["tgt_tok_emb.embedding.weight"]
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert re.findall(r"settings=\['(\w+)=true'\]", str(caught.value)) == advised
    assert ("Two tables fit, and only the model's code shows" in str(caught.value)) is (
        len(advised) == 2
    )


def test_tables_that_a_bundle_ties_are_shared_when_its_checkpoint_is_read_again(
    state: State, tmp_path: Path
) -> None:
    del state["generator.weight"]
    defaults = {"num_heads": 4, "tie_output": True}
    found = load_checkpoint(save(state, tmp_path), defaults=defaults)
    assert "output_proj.weight" in found.weights


def test_examination_goes_on_where_the_config_is_incomplete(state: State, tmp_path: Path) -> None:
    found = examine_checkpoint(save(state, tmp_path))
    assert found.problems == []
    assert len(found.config_problems) == 1
    assert found.checkpoint.origins["num_heads"] == "missing"
