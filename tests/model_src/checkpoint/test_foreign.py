"""Checkpoints of other projects, or in other wrappers: said to be what they are, in few words."""

import json
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support import tutorial
from tfexport.cli.console import spell
from tfexport.errors import CheckpointError, ConfigError
from tfexport.export import Input
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.read import examine_checkpoint
from tfexport.model_src.checkpoint.read_options import checkpoint_of
from tfexport.model_src.checkpoint.unsupported import (
    MODULE,
    UNSUPPORTED,
    describe_config,
    is_ours,
)

MARIAN = {
    "architectures": ["MarianMTModel"], "model_type": "marian", "transformers_version": "5.0",
    "d_model": 16, "encoder_layers": 1, "dropout": 0.1, "vocab_size": 9, "scale_embedding": True,
}  # fmt: skip


@pytest.fixture
def state() -> dict[str, Tensor]:
    return dict(tutorial.make().state_dict())


def refused(state: dict[str, Any], folder: Path, **options: Any) -> str:
    torch.save(state, folder / "model.pt")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder / "model.pt", **options)
    return str(caught.value)


def keys(*names: str) -> dict[str, Tensor]:
    return {name: torch.zeros(2, 2) for name in names}


@pytest.mark.parametrize(
    ("names", "family", "way"),
    [
        (["model.shared.weight", "model.encoder.layers.0.fc1.weight"], ": bart, ", "config.json"),
        (
            ["shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"],
            ": mt5, t5, umt5",
            "config.json",
        ),
        (["model.layers.0.self_attn.q_proj.weight"], "a decoder-only", "\nexport(model"),
        (["bert.encoder.layer.0.attention.self.query.weight"], "a BERT", "\nexport(model"),
    ],
)
def test_checkpoint_of_another_project_is_named(
    tmp_path: Path, names: list[str], family: str, way: str
) -> None:
    message = refused(keys(*names), tmp_path)
    assert family in message.partition("\n")[0]
    assert way in message


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of ``export``, which does nothing."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "tfexport.export.export", lambda model, output, **given: calls.append((model, given))
    )
    return calls


def run_lines(message: str, model: nn.Module) -> None:
    """Run the code at the end of a message, as a user's script would."""
    code = ModuleType("your_code")
    code.YourModel = lambda: model  # type: ignore[attr-defined]
    names = {"model": model, "PAD_IDX": 0, "BOS_IDX": 1, "EOS_IDX": 2}
    with patch.dict(sys.modules, {"your_code": code}):
        exec(message.partition("\n\n")[2], names)


IDS = [Input("input_ids", "int64", ("batch", "source_length"))]
CALL = {"inputs": IDS, "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 100}


def recurrent() -> nn.Module:
    return nn.ModuleDict({"rnn": nn.GRU(4, 4)})


@pytest.mark.parametrize("keys_to_it", [(), ("net",), ("model", "state_dict")])
def test_lines_load_the_file_and_export_the_module(
    tmp_path: Path, exported: list[tuple[Any, ...]], keys_to_it: tuple[str, ...]
) -> None:
    trained, fresh = recurrent(), recurrent()
    saved: dict[str, Any] = dict(trained.state_dict())
    for key in reversed(keys_to_it):
        saved = {key: saved, "epoch": 3}
    message = refused(saved, tmp_path)
    assert "recurrent layers (LSTM or GRU)" in message.partition("\n")[0]
    run_lines(message, fresh)
    assert exported == [(fresh, CALL)]
    assert all(torch.equal(a, b) for a, b in zip(*states(trained, fresh), strict=True))


def as_saved_on(device: str, state: dict[str, Any], path: Path) -> None:
    """Save tensors as a machine with another device does, whose name has three letters."""
    plain = path.with_suffix(".plain")
    torch.save(state, plain)
    with zipfile.ZipFile(plain) as read, zipfile.ZipFile(path, "w") as written:
        for name in read.namelist():
            record = read.read(name)
            if name.endswith("/data.pkl"):
                assert b"\x03\0\0\0cpu" in record
                record = record.replace(b"\x03\0\0\0cpu", b"\x03\0\0\0" + device.encode())
            written.writestr(name, record)


def test_lines_load_a_file_of_a_device_that_is_not_here(
    tmp_path: Path, exported: list[tuple[Any, ...]]
) -> None:
    trained, fresh, path = recurrent(), recurrent(), tmp_path / "model.pt"
    as_saved_on("mps", trained.state_dict(), path)
    with pytest.raises(RuntimeError):
        torch.load(path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    run_lines(str(caught.value), fresh)
    assert exported == [(fresh, CALL)]
    assert all(torch.equal(a, b) for a, b in zip(*states(trained, fresh), strict=True))


def test_lines_that_people_copy_load_to_the_cpu() -> None:
    root = Path(__file__).parents[3]
    files = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    files += [path for part in ("tfexport", "examples") for path in root.glob(f"{part}/**/*.py")]
    calls = [
        (path.name, call)
        for path in files
        for call in re.findall(r"torch\.load\([^)]*\)", path.read_text("utf-8"))
        if not call.startswith("torch.load(weights_only=True")  # how tfexport itself reads
    ]
    assert len(calls) > 5
    assert [(name, call) for name, call in calls if "map_location" not in call] == []


def states(*models: nn.Module) -> list[list[Tensor]]:
    return [list(model.state_dict().values()) for model in models]


def test_lines_of_a_safetensors_file(tmp_path: Path, exported: list[tuple[Any, ...]]) -> None:
    trained, fresh = recurrent(), recurrent()
    save_file(trained.state_dict(), tmp_path / 'a "b".safetensors')
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / 'a "b".safetensors')
    run_lines(str(caught.value), fresh)
    assert exported == [(fresh, CALL)]
    assert all(torch.equal(a, b) for a, b in zip(*states(trained, fresh), strict=True))


def test_lines_leave_the_loading_to_the_user_where_keys_have_other_names(
    tmp_path: Path, exported: list[tuple[Any, ...]]
) -> None:
    saved = {f"module.{key}": it for key, it in recurrent().state_dict().items()}
    message = refused(saved, tmp_path)
    assert "load_state_dict" not in message
    assert json.dumps(str(tmp_path / "model.pt")) in message.partition("\n\n")[2]
    model = recurrent()
    run_lines(message, model)
    assert exported == [(model, CALL)]


def test_lines_for_a_module_in_memory(exported: list[tuple[Any, ...]]) -> None:
    model = recurrent()
    with pytest.raises(CheckpointError) as caught:
        checkpoint_of(model)
    assert "YourModel" not in str(caught.value)
    run_lines(str(caught.value), model)
    assert exported == [(model, CALL)]


def test_lines_for_weights_that_a_layout_leaves_unread(
    tmp_path: Path, state: dict[str, Tensor], exported: list[tuple[Any, ...]]
) -> None:
    message = refused({**state, "gate.weight": torch.ones(2)}, tmp_path, config={"num_heads": 4})
    assert "gate.weight was not read" in message
    model, gate = tutorial.make(), nn.Module()
    gate.register_buffer("weight", torch.zeros(2))
    model.add_module("gate", gate)
    run_lines(message, model)
    assert gate.state_dict()["weight"].tolist() == [1, 1]
    assert exported == [(model, CALL)]


@pytest.mark.parametrize(
    "names",
    [
        ["stem.conv1.weight", "stem.bn.running_mean", "encoder.0.attn.wq", "decoder.0.attn.wq"],
        ["model.encoder.conv1.weight", "model.decoder.blocks.0.attn.qkv.weight"],
        ["src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "encoder.l.0.w", "decoder.l.w"],
        ["model.layers.0.w", "encoder.layers.0.w", "decoder.cross.0.w"],
        ["encoder.layer.0.attention.self.query.weight", "decoder.layer.0.w"],
        ["enc.rotary_emb.inv_freq", "dec.0.wq"],
    ],
)
def test_no_architecture_is_guessed_from_one_name(tmp_path: Path, names: list[str]) -> None:
    message = refused(keys(*names), tmp_path)
    assert "no known layout" in message
    assert "\nexport(model, " in message
    assert "map its names in a table (docs/checkpoints.md, other names), rename='names" in message
    assert "supported" not in message


@pytest.mark.parametrize("kind", [*UNSUPPORTED, "a-new-one"])
def test_hugging_face_folder_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MARIAN, "model_type": kind}))
    names = [f"model.encoder.layers.{i}.fc1.weight" for i in range(30)]
    message = refused(keys(*names), tmp_path).partition("\n")[0]
    assert "which no layout reads: " in message
    assert any(way in message for way in (MODULE[1:], "Optimum", "CTranslate2"))
    (tmp_path / "model.pt").unlink()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    assert message.partition(": ")[2] == str(caught.value).partition("\n")[0].partition(": ")[2]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("led.encoder.layers.0.self_attn.longformer_self_attn.query.weight", "LED"),
        ("encoder.block.0.layer.0.TransientGlobalSelfAttention.q.weight", "LongT5"),
        ("encoder.block.1.layer.1.mlp.experts.expert_0.wi.weight", "Switch Transformers"),
        ("model.encoder.layers.3.ffn.router.classifier.weight", "NLLB-MoE"),
        ("prophetnet.decoder.ngram_embeddings.weight", "ProphetNet"),
        (
            "model.encoder.conv1.weight model.decoder.layers.0.encoder_attn.q_proj.weight",
            "Whisper",
        ),
        ("encoder.conv1.weight decoder.blocks.0.cross_attn.query.weight", "Whisper of OpenAI"),
        (
            "src_emb.embeddings.weight encoder.transformer_layers.0.input_layernorm.weight",
            "an Eole",
        ),
        ("encoder.embeddings.patch_embeddings.projection.weight", "a vision encoder-decoder"),
    ],
)
def test_models_that_their_keys_give_away(tmp_path: Path, name: str, title: str) -> None:
    message = refused(keys(*name.split(), "model.shared.weight"), tmp_path)
    said, _, code = message.partition("\n")
    assert f": {title}" in said
    assert "which no layout reads" in said
    of_folder = title not in ("Whisper of OpenAI", "an Eole")
    assert ("Pass the folder that save_pretrained" in said) == of_folder
    of_inputs = {"Whisper of OpenAI": '"mel", ', "a vision encoder-decoder": '"pixel_values", '}
    assert of_inputs.get(title, "") in code


def test_foreign_config_beside_a_known_layout_is_skipped_and_noted(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    torch.save(state, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(MARIAN))
    found = examine_checkpoint(tmp_path, settings=["num_heads=4"])
    assert found.require_usable().config.dropout == 0.1
    assert any("config.json next to it is of Hugging Face" in str(note) for note in found.notes)
    with pytest.raises(ConfigError, match=r"Note: config\.json next to it is of Hugging Face"):
        load_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="config of a Hugging Face MarianMTModel"):
        load_checkpoint(tmp_path, config=tmp_path / "config.json")


@pytest.mark.parametrize(
    ("values", "ours"),
    [
        ({}, True),
        ({"num_heds": 4}, True),
        ({"num_heads": 4, "comment": "x"}, True),
        ({"nhead": 8, "emb_size": 512, "batch_size": 128, "lr": 1e-3, "dropout": 0.1}, False),
        (MARIAN, False),
    ],
)
def test_whose_a_config_is_shows_in_its_keys(values: dict[str, Any], ours: bool) -> None:
    assert is_ours(values) is ours


def test_config_of_ours_with_a_typing_error_is_refused_beside_any_file(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    torch.save(state, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heds": 4, "model_type": "mine"}))
    with pytest.raises(ConfigError, match="'num_heds'; did you mean 'num_heads'"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("values", [{"model_type": 1}, {"architectures": 3}, {"architectures": []}])
def test_odd_hugging_face_config_is_still_described(values: dict[str, Any]) -> None:
    assert "a Hugging Face model" in (describe_config(values) or "")


@pytest.mark.parametrize("prefix", ["model.", "net.core."])
@pytest.mark.parametrize("layout", [None, "nn-transformer"])
def test_prefix_that_all_keys_have_is_taken_off_and_noted(
    tmp_path: Path, state: dict[str, Tensor], prefix: str, layout: str | None
) -> None:
    torch.save({prefix + key: value for key, value in state.items()}, tmp_path / "model.pt")
    found = examine_checkpoint(tmp_path, settings=["num_heads=4"], layout=layout)
    assert set(found.require_usable().key_report) == {prefix + key for key in state}
    assert found.notes == [f"every key starts with {prefix!r}, which was taken off"]


def test_prefix_that_some_keys_lack_is_named_with_the_rename_that_takes_it_off(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    wrapped = {f"model.{key}": value for key, value in state.items()}
    message = refused({**wrapped, "loss.weight": torch.zeros(3)}, tmp_path)
    (table,) = (part for part in re.split("give |set ", message) if part.startswith('"rename"'))
    rename = json.loads(table.partition(": ")[2].partition(" in the config")[0])
    config = {"num_heads": 4, "rename": rename, "ignore": "loss.{weight}"}
    assert load_checkpoint(tmp_path, config).layout == "nn-transformer"


@pytest.mark.parametrize("prefix", ["ema_model.", "ema.module."])
def test_one_model_of_several_is_named_with_the_tables_that_take_it(
    tmp_path: Path, state: dict[str, Tensor], prefix: str
) -> None:
    both = {f"online_model.net.{key}_": value for key, value in state.items()}
    both |= {f"{prefix}{key}": value for key, value in state.items()}
    message = refused({**both, "initted": torch.zeros(1), "step": torch.zeros(1)}, tmp_path)
    (tables,) = re.findall(r'(?:give|set) ("rename": .*) in the config', message)
    config = {"num_heads": 4, **json.loads(f"{{{tables}}}")}
    found = load_checkpoint(tmp_path, config)
    assert found.state_dict.keys() == state.keys()


@pytest.mark.parametrize("others", [{}, {"epoch": 3, "rng_state": torch.zeros(5)}])
def test_state_dict_under_a_key_of_its_own_is_found_and_noted(
    tmp_path: Path, state: dict[str, Tensor], others: dict[str, Any]
) -> None:
    torch.save({"net": state, "optimizer": {"state": {0: state}}, **others}, tmp_path / "model.pt")
    found = examine_checkpoint(tmp_path, settings=["num_heads=4"])
    assert found.notes == ["weights taken from net"]
    assert set(found.require_usable().key_report) == set(state)


def test_several_state_dicts_are_named_with_the_line_that_takes_one(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refused({"net": state, "ema": state}, tmp_path)
    assert "holds several state dicts: 'net', 'ema'" in message
    monkeypatch.chdir(tmp_path)
    exec(message.partition("e.g. ")[2].partition(";")[0], {"torch": torch})
    assert load_checkpoint(tmp_path, {"num_heads": 4}).layout == "nn-transformer"


def test_a_state_dict_beside_others_with_the_same_names_is_told(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    torch.save({"model": state, "model_ema": state, "epoch": 3}, tmp_path / "model.pt")
    found = examine_checkpoint(tmp_path, settings=["num_heads=4"])
    assert found.notes == ["weights taken from model, and not from model_ema"]


@pytest.mark.parametrize(
    "names", [("encoder", "decoder"), ("encoder_state_dict", "decoder_state_dict")]
)
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("under", [False, True], ids=["bare", "model"])
def test_state_dicts_of_parts_are_joined(
    tmp_path: Path, names: tuple[str, str], prefix: str, under: bool
) -> None:
    model = nn.Transformer(16, 4, 2, 2, 24, batch_first=True)
    parts = [model.encoder, model.decoder]
    saved: dict[str, Any] = {
        name: {prefix + key: value for key, value in part.state_dict().items()}
        for name, part in zip(names, parts, strict=True)
    }
    optimizer = torch.optim.SGD(model.parameters()).state_dict()
    file = {"model": saved, "optimizer": optimizer} if under else {**saved, "optimizer": optimizer}
    torch.save(file, tmp_path / "model.pt")
    found = examine_checkpoint(tmp_path, settings=["num_heads=4"])
    kept = found.require_usable().state_dict
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(kept[key], value) for key, value in model.state_dict().items())
    assert any("parts were joined" in str(note) for note in found.notes)


def test_parts_of_a_file_with_objects_are_all_in_the_advice(tmp_path: Path) -> None:
    part = {"w": torch.zeros(2)}
    message = refused({"encoder": part, "decoder": part, "args": Path("x")}, tmp_path)
    assert "{key: checkpoint[key] for key in ['encoder', 'decoder']}" in message
    message = refused({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)}, tmp_path)
    assert "{key: checkpoint[key].state_dict() for key in ['encoder', 'decoder']}" in message


def test_an_averaged_model_is_read(tmp_path: Path, state: dict[str, Tensor]) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(tutorial.make())
    torch.save(averaged.state_dict(), tmp_path / "model.pt")
    assert load_checkpoint(tmp_path, {"num_heads": 4}).state_dict.keys() == state.keys()


@pytest.mark.parametrize("mark", ["_fsdp_wrapped_module.", "_checkpoint_wrapped_module."])
def test_what_wrappers_put_into_names_is_taken_out(
    tmp_path: Path, state: dict[str, Tensor], mark: str
) -> None:
    wrapped = {key.replace("layers.0.", f"layers.0.{mark}"): it for key, it in state.items()}
    torch.save(wrapped, tmp_path / "model.pt")
    assert load_checkpoint(tmp_path, {"num_heads": 4}).state_dict.keys() == state.keys()


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    message = refused({"_orig_mod.a": torch.zeros(2), "a": torch.ones(2)}, tmp_path)
    assert "_orig_mod.a and a would both be a" in message


def test_long_lists_of_keys_are_cut(tmp_path: Path, state: dict[str, Tensor]) -> None:
    surplus = {f"extra.{i}.weight": torch.zeros(1) for i in range(30)}
    message = refused({**state, **surplus}, tmp_path, config={"num_heads": 4})
    assert "30 keys were not read: extra.0.weight" in message
    assert "… and 22 more" in message
    kept = {key: value for key, value in state.items() if "decoder" not in key}
    message = refused(kept, tmp_path, config={"num_heads": 4})
    assert "weights are missing: transformer.decoder.layers.0.self_attn.in_proj_weight" in message
    assert message.count("transformer.") == 8


def test_unread_weight_is_not_recommended_to_be_dropped(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    message = refused({**state, "rel_bias": torch.zeros(3)}, tmp_path, config={"num_heads": 4})
    assert "would compute something else" in message
    assert "'rename'. If the forward pass does not use it, list it in 'ignore'" in message


@pytest.mark.parametrize(("side", "tie"), [("src", "tie_embeddings"), ("tgt", "tie_output")])
def test_one_embedding_alone_asks_whether_it_is_tied(
    tmp_path: Path, state: dict[str, Tensor], side: str, tie: str
) -> None:
    key = f"{side}_tok_emb.embedding.weight"
    torch.save({k: v for k, v in state.items() if k != key}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path, {"num_heads": 4})
    assert f"{key}, the " in str(caught.value)
    assert f"settings=['{tie}=true']" in str(caught.value)
    assert f"--set {tie}=true" in caught.value.message.spelled(spell)
    assert "give both, or neither" not in str(caught.value)
