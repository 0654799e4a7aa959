"""Rename and ignore tables: names of other projects mapped onto a layout or the own names."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model_src.checkpoint.files import State, save
from tfexport.cli.console import spell
from tfexport.errors import ConfigError
from tfexport.model_src import (
    TransformerConfig,
    build_transformer,
    load_checkpoint,
)
from tfexport.model_src.checkpoint.keymap import WORDS, Rule, fill
from tfexport.model_src.checkpoint.overrides import Source
from tfexport.model_src.checkpoint.read_options import checkpoint_of
from tfexport.model_src.checkpoint.rename_tables import (
    RenameTables,
    read_tables,
    rename_keys,
)

CONFIG = TransformerConfig(
    d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=1, d_ff=12,
    source_vocab_size=9, target_vocab_size=11, max_positions=16, positions="learned",
    gated_feed_forward=True,
)  # fmt: skip


def tables_of(**config: Any) -> RenameTables:
    return read_tables([Source("config", config)])


def test_foreign_names_are_mapped_by_the_first_rule_that_matches(
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
        rename={
            "net.core.{weight}": "transformer.{weight}",
            "embed_in.weight": "src_tok_emb.embedding.weight",
            "net.{weight}": "never.{weight}",
        },
        ignore=["criterion.{weight}"],
    )
    found = load_checkpoint(path)
    assert found.layout == "nn-transformer"
    assert found.key_report["criterion.weight"] == ()
    assert found.key_report["embed_in.weight"] == ("source_embedding.tokens.weight",)
    expected = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert set(found.weights) == set(expected.weights)


def test_a_table_may_have_words_of_its_own() -> None:
    tables = tables_of(
        rename={
            "{stack}": {"enc": "encoder", "dec": "decoder"},
            "{qkv}": {"query": "q", "key": "k", "value": "v"},
            "{stack}.{layer}.{qkv}.{kind}": "{stack}.layers.{layer}.self_attn.{qkv}_proj.{kind}",
        },
        ignore="{stack}.mask",
    )
    assert rename_keys(["enc.3.value.bias", "dec.mask", "other"], tables) == {
        "enc.3.value.bias": "encoder.layers.3.self_attn.v_proj.bias",
        "dec.mask": None,
        "other": "other",
    }


def test_no_part_of_a_key_is_a_pattern() -> None:
    tables = tables_of(rename={"a.c": "x", "a+(b)": "y"}, ignore=[".*"])
    keys = ["abc", "a.c", "aab", "a+(b)", "any"]
    assert rename_keys(keys, tables) == {
        "abc": "abc", "a.c": "x", "aab": "aab", "a+(b)": "y", "any": "any",
    }  # fmt: skip


def test_a_table_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    path, table = save(own_forms(), tmp_path), tmp_path / "names.json"
    table.write_text(json.dumps(RENAME))
    read = load_checkpoint(path, CONFIG.to_dict(), rename=table)
    assert read.weights.keys() == build_transformer(CONFIG).state_dict().keys()
    with pytest.raises(ValueError, match=r"no\.json"):
        load_checkpoint(path, CONFIG.to_dict(), rename=tmp_path / "no.json")


def test_names_are_not_matched_any_more(state: State, tmp_path: Path) -> None:
    path = save(state, tmp_path, num_heads=4)
    way = "name the JSON file of a table of keys to names, rename='names.json'"
    for options in ({"rename": "auto"}, {"config": {"rename": "auto"}}):
        with pytest.raises(ConfigError, match="rename='auto' is not there any more") as caught:
            load_checkpoint(path, **options)
        assert way in str(caught.value)
        assert f'torch.load("{tmp_path / "model.pt"}"' in str(caught.value)
        assert "\nexport(model, " in str(caught.value)
    assert "--rename names.json" in caught.value.message.spelled(spell)
    with pytest.raises(ConfigError, match="is not there any more"):
        checkpoint_of(build_transformer(CONFIG), rename="auto")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rename": [["^a", "b"]]}, "expected an object of keys to names"),
        ({"rename": "automatic"}, "expected an object of keys to names"),
        ({"rename": {"a": 1}}, "'a': 1 is not a name"),
        ({"rename": {"a": ["b"]}}, "is not a name"),
        ({"rename": {"a.{part}": "b.{part}"}}, "{part} is not known; known are {layer}, {head}"),
        ({"rename": {"a.{layer}.{layer}": "b"}}, "{layer} is in it more than once"),
        ({"rename": {"a": "b.{layer}"}}, "{layer} is in the name, but not in the key"),
        ({"rename": {"a.{layer.x}": "b"}}, "a brace that is not part of a {placeholder}"),
        ({"rename": {"a.{layer}": "{layer.__class__}"}}, "a brace that is not part of"),
        ({"rename": {"stack": {"enc": "encoder"}}}, "'stack' is not a {placeholder} with its"),
        ({"rename": {"{stack}": {"enc": 1}}}, "is not a {placeholder} with its words"),
        ({"rename": {"{stack}": {}}}, "is not a {placeholder} with its words"),
        ({"rename": {"{1}": {"a": "b"}, "x{1}": "y"}}, "'{1}' is not a {placeholder} with its"),
        ({"ignore": [1]}, "ignore: expected a list of keys"),
        ({"ignore": ["{x}"]}, "ignore: '{x}': {x} is not known"),
        ({"rename": {"generator.{kind}": "same"}}, "both become same"),
    ],
)
def test_bad_tables_are_refused(
    state: State, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(save(state, tmp_path, num_heads=4, **config))
    assert message in str(caught.value)


def own_forms() -> dict[str, Tensor]:
    """A state dict in the forms that only a rename table leads to."""
    state = build_transformer(CONFIG).state_dict()

    def packed(*names: str) -> Tensor:
        return torch.cat([state.pop(name) for name in names])

    found: dict[str, Tensor] = {}
    for layer in range(2):
        name = f"encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [f"{name}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            found[f"enc.{layer}.qkv.{kind}"] = packed(*parts)
            halves = [f"{name}.feed_forward.{part}_proj.{kind}" for part in ("up", "gate")]
            found[f"enc.{layer}.glu.{kind}"] = packed(*halves)
        key = f"{name}.feed_forward.down_proj.weight"
        found[f"enc.{layer}.down"] = state.pop(key).T
    parts = [f"decoder.layers.0.cross_attn.{part}_proj.weight" for part in "kv"]
    found["kv"] = packed(*parts).T
    biases = [f"decoder.layers.0.cross_attn.{part}_proj.bias" for part in "kv"]
    found["kv_bias"] = packed(*biases)
    table = state.pop("source_embedding.positions.table")
    del state["target_embedding.positions.table"]
    found["places"] = table[:, None]
    found["bare"] = state.pop("output_proj.weight")
    return {**found, **state}


RENAME = {
    "enc.{layer}.qkv.{kind}": "encoder.layers.{layer}.self_attn.qkv_proj.{kind}",
    "enc.{layer}.glu.{kind}": "encoder.layers.{layer}.feed_forward.up_gate_proj.{kind}",
    "enc.{layer}.down": "encoder.layers.{layer}.feed_forward.down_proj.weight.T",
    "kv": "decoder.layers.0.cross_attn.kv_proj.weight.T",
    "kv_bias": "decoder.layers.0.cross_attn.kv_proj.bias",
    "places": "positions.table",
    "bare": "output_proj.weight",
}


def test_packed_transposed_and_shared_tensors_have_own_names(tmp_path: Path) -> None:
    state = own_forms()
    expected = build_transformer(CONFIG).state_dict()
    for key in ("encoder", "decoder"):
        expected |= {name: it for name, it in state.items() if name.startswith(f"{key}.")}
    found = load_checkpoint(save(state, tmp_path), CONFIG.to_dict(), rename=RENAME)
    assert found.layout == "native"
    assert found.weights.keys() == expected.keys()
    q, k, v = state["enc.1.qkv.weight"].chunk(3)
    attention = "encoder.layers.1.self_attn"
    assert all(
        torch.equal(found.weights[f"{attention}.{name}_proj.weight"], it)
        for name, it in (("q", q), ("k", k), ("v", v))
    )
    up, gate = state["enc.0.glu.bias"].chunk(2)
    assert torch.equal(found.weights["encoder.layers.0.feed_forward.up_proj.bias"], up)
    assert torch.equal(found.weights["encoder.layers.0.feed_forward.gate_proj.bias"], gate)
    down = found.weights["encoder.layers.0.feed_forward.down_proj.weight"]
    assert torch.equal(down, state["enc.0.down"].T)
    keys, values = state["kv"].T.chunk(2)
    assert torch.equal(found.weights["decoder.layers.0.cross_attn.k_proj.weight"], keys)
    assert torch.equal(found.weights["decoder.layers.0.cross_attn.v_proj.weight"], values)
    for side in ("source", "target"):
        table = found.weights[f"{side}_embedding.positions.table"]
        assert torch.equal(table, state["places"][:, 0])


def test_what_own_names_do_not_show_is_required(tmp_path: Path) -> None:
    path = save(own_forms(), tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(path, rename=RENAME)
    message = str(caught.value)
    for key in ("num_heads", "norm_placement (post, pre or res_post)", "norm_eps", "activation",
                "scale_embeddings (true or false)"):  # fmt: skip
        assert key in message
    assert "positions" not in message  # there is a table


def test_a_bias_that_no_layer_has_is_zero_but_one_that_a_layer_lacks_is_missing(
    tmp_path: Path,
) -> None:
    state = build_transformer(CONFIG).state_dict()
    rename = {"{weight}": "{weight}"}
    for layer in range(2):
        del state[f"encoder.layers.{layer}.self_attn.k_proj.bias"]
    found = load_checkpoint(save(state, tmp_path), CONFIG.to_dict(), rename=rename)
    assert not found.weights["encoder.layers.1.self_attn.k_proj.bias"].any()
    del state["encoder.layers.1.self_attn.q_proj.bias"]
    with pytest.raises(ValueError, match=r"encoder\.layers\.1\.self_attn\.q_proj\.bias.*missing"):
        load_checkpoint(save(state, tmp_path), CONFIG.to_dict(), rename=rename)


def test_a_norm_of_one_number_acts_on_all_values(tmp_path: Path) -> None:
    state = build_transformer(CONFIG).state_dict()
    state = {
        k: it[:1] if k.endswith(("norm.weight", "norm.bias")) else it for k, it in state.items()
    }
    rename = {"{weight}": "{weight}"}
    found = load_checkpoint(save(state, tmp_path), CONFIG.to_dict(), rename=rename)
    assert found.weights["encoder.norm.weight"].shape == (8,)


def test_position_tables_of_two_lengths_are_cut_and_it_is_noted(tmp_path: Path) -> None:
    state = build_transformer(CONFIG).state_dict()
    cut = state["source_embedding.positions.table"][:10]
    state["source_embedding.positions.table"] = cut
    config = {key: it for key, it in CONFIG.to_dict().items() if key != "max_positions"}
    found = load_checkpoint(save(state, tmp_path), config, rename={"{weight}": "{weight}"})
    assert found.config.max_positions == 10


def test_hostile_tables_are_read_quickly() -> None:
    keys = [f"{'a.' * 200}{number}.weight" for number in range(4000)]
    start = time.monotonic()
    words = {f"w{number}": "x" for number in range(256)}
    rules = {f"{'a.' * n}{{weight}}.{{layer}}{{head}}.b": "c" for n in range(60)}
    rules |= {"{x}": words, "{x}{weight}{layer}": "d"}  # type: ignore[dict-item]
    assert len(rename_keys(keys, tables_of(rename=rules, ignore=["{weight}b{layer}"]))) == 4000
    assert time.monotonic() - start < 60  # a generous bound on what must not explode
    with pytest.raises(ConfigError, match="5000 rules, more than 1024"):
        tables_of(rename={f"k{number}": "x" for number in range(5000)})
    with pytest.raises(ConfigError, match="more than 512 characters"):
        tables_of(rename={"x" * 600: "y"})
    with pytest.raises(ConfigError) as caught:
        tables_of(rename={f"k{number}": number for number in range(1000)})
    assert len(str(caught.value)) < 2000
    with pytest.raises(ConfigError, match="becomes a name of 600 characters"):
        rename_keys(
            ["a" * 300 + "." + "b" * 5],
            tables_of(rename={"{weight}.bbbbb": "{weight}" + "c" * 300}),
        )


def test_words_that_could_be_read_in_many_ways_are_refused() -> None:
    lists: dict[str, Any] = {f"{{p{number}}}": {"a": "b", "aa": "b"} for number in range(9)}
    many = "".join(lists)
    with pytest.raises(ConfigError, match="too many words of its placeholders begin with each"):
        tables_of(rename={**lists, "{p0}{p1}{p2}{p3}{p4}{p5}{p6}z": "x"})
    with pytest.raises(ConfigError, match="9 placeholders, more than 8"):
        tables_of(rename={**lists, f"{many}z": "x"})
    with pytest.raises(ConfigError, match=r"'\{w\}': 257 words, more than 256"):
        tables_of(rename={"{w}": {f"{number:03}": "x" for number in range(257)}})
    with pytest.raises(ConfigError, match="too many words of its placeholders begin with each"):
        tables_of(rename={"{w}": {"a" * n: "x" for n in range(1, 66)}, "{w}z": "x"})
    few = tables_of(rename={"{w}": {"norm1": "a", "norm": "b", "norm10": "c"}, "{w}.x": "{w}"})
    assert rename_keys(["norm10.x", "norm.x"], few) == {"norm10.x": "c", "norm.x": "b"}


def test_values_are_filled_in_as_they_are() -> None:
    rule = Rule("{weight}.x", "y.{weight}", words=WORDS)
    values = rule.match("{stack}.x")
    assert values is not None
    assert fill(rule.target, values) == "y.{stack}"
    assert json.loads(json.dumps(values)) == {"weight": "{stack}"}
