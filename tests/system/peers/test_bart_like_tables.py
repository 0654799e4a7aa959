"""Tables of BART and its kin that go by several names, and keys of old files."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.hf_models import change_weights, make_model, save_folder
from tfexport.errors import CheckpointError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.read import examine_checkpoint

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


def saved(tmp_path: Path, family: str, weights: str = "safetensors") -> Path:
    return save_folder(make_model(family), tmp_path / "model", weights)


def test_differing_tables_are_used_as_they_are_and_noted(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bart", "bin")
    change_weights(
        folder, lambda state: state.update({"lm_head.weight": state["lm_head.weight"] + 1})
    )
    found = examine_checkpoint(folder)
    assert any("differ, although config.json ties them" in str(it) for it in found.notes)
    config = found.require_usable().config
    assert config.tie_embeddings
    assert not config.tie_output


def test_absent_table_is_one_that_is_there_if_all_are_equal(tmp_path: Path) -> None:
    """Of two tables a merged adapter may save one: findings/peft_merged_save_differs.sh."""
    folder = save_folder(make_model("bart", untied=True), tmp_path / "model")
    shared, source, target = (
        f"model.{it}.weight" for it in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    )

    def leave_out_target(state: dict[str, Tensor], more: float) -> None:
        state.pop(target, None)
        state[source] = state[shared] + more

    change_weights(folder, lambda state: leave_out_target(state, 0))
    assert load_checkpoint(folder).config.tie_embeddings
    change_weights(folder, lambda state: leave_out_target(state, 1))
    with pytest.raises(CheckpointError) as refusal:
        load_checkpoint(folder)
    assert (
        f"{target} is missing, and nothing says which table it has: {shared}, {source} differ"
    ) in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "alone"),
    [
        ("bart", "lm_head.weight"),
        ("mbart", "model.decoder.embed_tokens.weight"),
        ("marian", "model.encoder.embed_tokens.weight"),
        ("pegasus", "lm_head.weight"),
    ],
)
def test_tied_table_under_any_of_its_names(tmp_path: Path, family: str, alone: str) -> None:
    folder = saved(tmp_path, family)
    before = load_checkpoint(folder)

    def rename(state: dict[str, Tensor]) -> None:
        state[alone] = state.pop("model.shared.weight")

    change_weights(folder, rename)
    after = load_checkpoint(folder)
    assert after.config == before.config
    assert all(torch.equal(after.weights[name], it) for name, it in before.weights.items())
    assert set(after.key_report[alone]) == {
        "source_embedding.tokens.weight", "target_embedding.tokens.weight", "output_proj.weight",
    }  # fmt: skip


def test_old_keys_are_read_or_ignored(tmp_path: Path) -> None:
    folder = saved(tmp_path, "m2m_100", "bin")
    before = load_checkpoint(folder)
    table = before.build().source_embedding.state_dict()["positions.table"]
    whole = torch.cat([torch.zeros(2, 16), table])  # rows before the first token's, which are free

    def add(state: dict[str, Tensor]) -> None:
        for stack in ("encoder", "decoder"):
            state[f"model.{stack}.version"] = torch.tensor([3.0])
            state[f"model.{stack}.embed_positions.weights"] = whole

    change_weights(folder, add)
    after = load_checkpoint(folder)
    assert after.config == before.config
    assert after.key_report["model.encoder.version"] == ()
    change_weights(
        folder, lambda state: state.update({"model.encoder.embed_positions.weights": whole + 1})
    )
    with pytest.raises(CheckpointError, match=r"positions\.weights is not a sinusoidal table"):
        load_checkpoint(folder)


@pytest.mark.parametrize("family", ["bart", "marian"])
def test_bias_of_zeros_is_left_out(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family)
    assert load_checkpoint(folder).config.output_bias
    change_weights(folder, lambda state: state["final_logits_bias"].zero_())
    checkpoint = load_checkpoint(folder)
    assert not checkpoint.config.output_bias
    assert checkpoint.key_report["final_logits_bias"] == ()


def test_config_json_of_another_folder_says_what_a_file_is(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bart", "bin")
    whole = load_checkpoint(folder)
    moved = (folder / "config.json").rename(tmp_path / "bart.json")
    alone = load_checkpoint(folder / "pytorch_model.bin", config=moved)
    assert (alone.layout, alone.config) == ("bart", whole.config)
