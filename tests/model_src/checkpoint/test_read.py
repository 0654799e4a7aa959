"""Layout detection, config completion and the account of every key."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support import tutorial
from tests.support.originals import annotated, rebuilt, rmsnorm
from tests.support.paths import REPOSITORY
from tfexport.cli.spelling import spell
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import (
    TransformerConfig,
    build_transformer,
    load_checkpoint,
    save_checkpoint,
)
from tfexport.model_src.checkpoint.from_module import checkpoint_of
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.read import examine_checkpoint

State = dict[str, Tensor]


@pytest.fixture
def state() -> State:
    return dict(tutorial.make().state_dict())


def save(state: dict[str, Any], folder: Path, **config: Any) -> Path:
    torch.save(state, folder / "model.pt")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.pt"


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


def test_every_key_is_accounted_for(state: State, tmp_path: Path) -> None:
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert set(found.key_report) == set(state)
    assert all(found.key_report.values())
    became = {target for targets in found.key_report.values() for target in targets}
    assert became == set(found.weights) == set(found.build().state_dict())


def test_what_is_missing_is_named_with_the_words_that_set_it(state: State, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_heads, pad_id; give ") as caught:
        load_checkpoint(save(state, tmp_path), require=["pad_id"])
    assert "settings=['num_heads=…', 'pad_id=…']" in str(caught.value)
    assert "--set num_heads=… --set pad_id=…" in caught.value.message.spelled(spell)


def test_all_that_is_wrong_comes_in_one_message(state: State, tmp_path: Path) -> None:
    del state["transformer.encoder.layers.1.linear1.bias"]
    state["surplus.weight"] = torch.zeros(2)
    state["generator.bias"][3] = float("nan")
    state["transformer.decoder.norm.weight"][0] = float("inf")
    state["transformer.decoder.layers.0.linear2.weight"] = torch.zeros(16, 25)
    state["transformer.decoder.layers.1.self_attn.in_proj_weight"] = torch.zeros(47, 16)
    state["tgt_tok_emb.embedding.weight"] = state["tgt_tok_emb.embedding.weight"].int()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(state, tmp_path))
    message = str(caught.value)
    for part in (
        "transformer.encoder.layers.1.linear1.bias [24] is missing",
        "surplus.weight was not read",
        "generator.bias holds 1 values that are NaN or infinite",
        "transformer.decoder.norm.weight holds 1 values that are NaN or infinite",
        "transformer.decoder.layers.0.linear2.weight has shape [16, 25], expected [16, 24]",
        "layers.1.self_attn.in_proj_weight has shape (47, 16), which does not split into 3",
        "tgt_tok_emb.embedding.weight holds torch.int32 values",
        "settings=['num_heads=…']",
        "layout='nn-transformer'",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["num_heads=5"], "5 heads do not divide the 16 query rows"),
        (["num_heads=0"], "num_heads: 0 is not positive"),
        (["num_heads=4", "d_model=32"], "d_model is 32 in settings, but the weights say 16"),
        (["num_heads=4", "num_decoder_layers=3"], "num_decoder_layers is 3 in settings"),
        (["num_heds=4"], "settings: unknown key 'num_heds'; did you mean 'num_heads'?"),
        (["num_heads"], "'num_heads' is not of the form key=value"),
        (["num_heads=4", "activation=tanh"], "'tanh' is not one of 'relu', 'gelu', 'silu'"),
        (["num_heads=4", "eos_id=19"], "eos_id: 19 is not an id of the target vocabulary"),
        (["num_heads=four"], "num_heads: 'four' is not a whole number"),
        (["num_heads=4", "tie_output=true"], "tie_output is True in settings, but the weights say"),
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


@pytest.mark.parametrize("number", ["2", "999999", "9" * 400])
def test_layers_with_a_gap_are_named_however_high_they_count(
    state: State, tmp_path: Path, number: str
) -> None:
    moved = {
        key.replace("encoder.layers.1.", f"encoder.layers.{number}."): value
        for key, value in state.items()
    }
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(moved, tmp_path), settings=["num_heads=4"])
    assert f"encoder.layers.{number}." in str(caught.value)


def test_foreign_names_are_mapped_by_the_first_pattern_that_matches(
    state: State, tmp_path: Path
) -> None:
    foreign = {
        key.replace("transformer.", "net.core.").replace("src_tok_emb.embedding", "embed_in"): value
        for key, value in state.items()
    }
    foreign["criterion.weight"] = torch.ones(3)
    path = save(
        foreign,
        tmp_path,
        num_heads=4,
        rename=[
            [r"^net\.core\.", "transformer."],
            [r"^embed_in", "src_tok_emb.embedding"],
            [r"^net\.", "never."],
        ],
        ignore=[r"^criterion\."],
    )
    found = load_checkpoint(path)
    assert found.key_report["criterion.weight"] == ()
    assert found.key_report["embed_in.weight"] == ("source_embedding.tokens.weight",)
    expected = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert set(found.weights) == set(expected.weights)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rename": [["(", "x"]]}, "'(' is not a regular expression"),
        ({"rename": ["ab"]}, "'ab' is not a [pattern, replacement] pair"),
        ({"rename": {"a": "b"}}, "expected a list of [pattern, replacement] pairs"),
        ({"ignore": [1]}, "ignore: expected a list of patterns"),
        ({"rename": [["^generator.*", "same"]]}, "both become same"),
        ({"rename": [["^generator", r"\9"]]}, "invalid group reference"),
    ],
)
def test_bad_tables_are_refused(
    state: State, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(save(state, tmp_path, num_heads=4, **config))
    assert message in str(caught.value)


def test_state_dict_in_no_layout_says_which_came_nearest(tmp_path: Path) -> None:
    weights = {
        "generator.bias": torch.zeros(3),
        "mixer.weight": torch.zeros(3),
        "fc": torch.ones(1),
    }
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(weights, tmp_path))
    assert "no known layout; nearest is nn-transformer (1 of 3 keys)" in str(caught.value)
    assert "Not among its keys: mixer.weight, fc" in str(caught.value)


def test_unknown_layout_names_the_known_ones(state: State, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'bert' is not one of 'nn-transformer', "):
        load_checkpoint(save(state, tmp_path), layout="bert")


@pytest.mark.parametrize("text", ["{", "[]", ""], ids=["broken", "a list", "empty"])
def test_config_file_that_is_none_is_named(state: State, tmp_path: Path, text: str) -> None:
    path = save(state, tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(
    state: State, tmp_path: Path, dtype: torch.dtype
) -> None:
    path = save({key: value.to(dtype) for key, value in state.items()}, tmp_path)
    found = load_checkpoint(path, settings=["num_heads=4"])
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}


def test_a_table_that_the_file_carries_is_used_as_it_is(state: State, tmp_path: Path) -> None:
    table = torch.randn_like(state["positional_encoding.pos_embedding"])
    state["positional_encoding.pos_embedding"] = table
    model = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"]).build()
    for side in ("source", "target"):
        found = model.get_buffer(f"{side}_embedding.positions.table")
        torch.testing.assert_close(found, table.squeeze(1), atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(64, 16), (1, 64, 16), (64, 1, 16)])
def test_position_tables_of_all_shapes_are_read(
    state: State, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    key = "positional_encoding.pos_embedding"
    state[key] = state[key].reshape(shape)
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert found.weights["source_embedding.positions.table"].shape == (64, 16)


def test_without_a_table_the_sinusoidal_one_is_computed(state: State, tmp_path: Path) -> None:
    table = state.pop("positional_encoding.pos_embedding").squeeze(1)
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4", "max_positions=64"])
    computed = found.build().get_buffer("source_embedding.positions.table")
    torch.testing.assert_close(computed, table, atol=1e-5, rtol=0)


def test_tied_tables_are_found_by_their_values(tmp_path: Path) -> None:
    state = dict(tutorial.make(source_size=19).state_dict())
    state["generator.weight"] = state["tgt_tok_emb.embedding.weight"].clone()
    state["src_tok_emb.embedding.weight"] = state["tgt_tok_emb.embedding.weight"].clone()
    config = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"]).config
    assert config.tie_embeddings
    assert config.tie_output


def test_native_file_brings_its_config(tmp_path: Path) -> None:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=2, d_ff=12, head_dim=3,
        source_vocab_size=9, target_vocab_size=9, norm="rms", norm_placement="res_post",
        tie_embeddings=True, tie_output=True, mask_fill=-1e9, pad_id=0, norm_bias=False,
    )  # fmt: skip
    model = build_transformer(config)
    save_checkpoint(model, tmp_path / "model.safetensors")
    found = load_checkpoint(tmp_path)
    assert found.layout == "native"
    assert found.config == config
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found.build().state_dict()[name], tensor, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["a", f"encoder.layers.{'9' * 400}.a"], ids=["none", "digits"])
def test_native_file_that_claims_many_layers_is_refused_at_once(tmp_path: Path, name: str) -> None:
    config = {"num_encoder_layers": 10**9, "num_decoder_layers": 10**9, "num_heads": 1}
    metadata = {"tfexport_config": json.dumps(config)}
    save_file({name: torch.ones(1)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(CheckpointError, match=r"num_encoder_layers|weights are missing"):
        load_checkpoint(tmp_path)


def test_native_file_with_a_damaged_config_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors", {"tfexport_config": "{"})
    with pytest.raises(CheckpointError, match="the config in its metadata: not readable as JSON"):
        load_checkpoint(tmp_path)


def test_live_module_says_what_its_state_dict_cannot() -> None:
    model = tutorial.make(norm_first=True, activation="gelu", layer_norm_eps=1e-3)
    found = checkpoint_of(model, {"pad_id": 0}, require=["pad_id"])
    config = found.config
    assert (config.num_heads, config.norm_placement, config.activation) == (4, "pre", "gelu")
    assert config.norm_eps == 1e-3
    assert found.origins["num_heads"] == "module"


def test_live_module_is_taken_as_it_is_now() -> None:
    model = tutorial.make()
    found = checkpoint_of(model)
    before = found.weights["output_proj.weight"].clone()
    model.generator.weight.fill_(7.0)
    torch.testing.assert_close(found.weights["output_proj.weight"], before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.transformer.encoder.layers[0], "norm_first", True), "norm_placement"),
        (lambda m: setattr(m.transformer.encoder.layers[0], "activation", torch.tanh), "tanh"),
    ],
    ids=["mixed placements", "foreign activation"],
)
def test_live_module_that_cannot_be_said_is_refused(
    change: Callable[[tutorial.TutorialModel], None], message: str
) -> None:
    model = tutorial.make()
    change(model)
    with pytest.raises(ConfigError, match=message):
        checkpoint_of(model)


def test_examination_goes_on_where_the_config_is_incomplete(state: State, tmp_path: Path) -> None:
    found = examine_checkpoint(save(state, tmp_path))
    assert found.problems == []
    assert len(found.config_problems) == 1
    assert found.checkpoint.origins["num_heads"] == "missing"


def test_every_weight_is_from_the_file_or_computed_in_every_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_nothing(part: nn.Module) -> None:
        for parameter in part.parameters():
            nn.init.constant_(parameter, float("nan"))

    monkeypatch.setattr("tfexport.model_src.build.initialise", draw_nothing)
    heads = {"num_heads": 4}
    originals: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "nn-transformer": (tutorial.make(), heads),
        "nn-transformer-rebuilt": (
            rebuilt.Rebuilt(),
            {**heads, "num_encoder_layers": 2, "num_decoder_layers": 2},
        ),
        "annotated": (annotated.Annotated(), heads),
        "rmsnorm": (rmsnorm.RMSNormModel(), {}),
    }
    for layout, (original, config) in originals.items():
        tables = (".pe", "pos_embedding")
        state = {k: v for k, v in original.state_dict().items() if not k.endswith(tables)}
        torch.save(state, tmp_path / "model.pt")
        found = load_checkpoint(tmp_path, config)
        assert found.layout == layout
        for name, tensor in found.build().state_dict().items():
            assert torch.isfinite(tensor).all(), f"{layout}: {name}"


def native_state(positions: str) -> tuple[State, dict[str, Any]]:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=12,
        source_vocab_size=9, target_vocab_size=9, max_positions=16,
        positions=positions,  # type: ignore[arg-type]
    )  # fmt: skip
    return dict(build_transformer(config).state_dict()), config.to_dict()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_one_position_table_of_two_is_not_enough(tmp_path: Path, positions: str) -> None:
    state, config = native_state(positions)
    table = state.pop("target_embedding.positions.table")
    path = save({**state, "wpe": table}, tmp_path)
    rename = [["^wpe", "target_embedding.positions.table"]]
    load_checkpoint(path, {**config, "rename": rename}, layout="native").build()
    with pytest.raises(CheckpointError, match=r"target_embedding\.positions\.table .* is missing"):
        load_checkpoint(path, {**config, "ignore": "wpe"}, layout="native")


def test_learned_tables_are_never_made_up(tmp_path: Path) -> None:
    state, config = native_state("learned")
    for side in ("source", "target"):
        del state[f"{side}_embedding.positions.table"]
    with pytest.raises(CheckpointError, match=r"source_embedding\.positions\.table .* is missing"):
        load_checkpoint(save(state, tmp_path), config, layout="native")


def test_separate_projections_are_read_with_their_biases(state: State, tmp_path: Path) -> None:
    expected = load_checkpoint(save(state, tmp_path), {"num_heads": 4}).weights
    for key in [key for key in state if "in_proj_" in key]:
        for part, third in zip("qkv", state.pop(key).chunk(3), strict=True):
            state[key.replace("in_proj_", f"{part}_proj_")] = third.clone()
    found = load_checkpoint(save(state, tmp_path), {"num_heads": 4})
    for name, tensor in expected.items():
        torch.testing.assert_close(found.weights[name], tensor, atol=0, rtol=0)


def test_tables_that_a_bundle_ties_are_shared_when_its_checkpoint_is_read_again(
    state: State, tmp_path: Path
) -> None:
    del state["generator.weight"]
    defaults = {"num_heads": 4, "tie_output": True}
    found = load_checkpoint(save(state, tmp_path), defaults=defaults)
    assert "output_proj.weight" in found.weights


def expand(line: str) -> list[str]:
    """The keys that a line of the docs stands for: {a,b} is either, N and H are numbers."""
    if (choice := re.search(r"\{([^}]*)\}", line)) is None:
        return [re.sub(r"\b[NH]\b", "0", line)]
    before, after = line[: choice.start()], line[choice.end() :]
    return [key for part in choice[1].split(",") for key in expand(before + part + after)]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "native"])
def test_docs_list_the_keys_of_every_layout(layout: str) -> None:
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    block = page.partition(f"Keys of `{layout}`")[2].partition("```text\n")[2].partition("```")[0]
    keys = [key for line in block.splitlines() for key in expand(line)]
    rules = LAYOUTS[layout].table.rules
    found = {key: [rule.key for rule in rules if rule.match(key) is not None] for key in keys}
    assert [key for key, matches in found.items() if not matches] == []
    listed = {rule for matches in found.values() for rule in matches}
    assert {rule.key for rule in rules} <= listed
