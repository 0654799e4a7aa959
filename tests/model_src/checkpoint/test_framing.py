"""Framings by name: what they set, what overrides them, and names that are not known."""

import json
from pathlib import Path

import pytest

from tests.model_src.checkpoint.files import State, save
from tests.support import tutorial
from tfexport.errors import ConfigError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions

TUTORIAL = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "add_source_bos": True,
            "add_source_eos": True}  # fmt: skip


def test_tutorials_framing_sets_its_ids_and_frames_the_source(state: State, tmp_path: Path) -> None:
    settings = ["num_heads=4", "framing=tutorial"]
    found = load_checkpoint(save(state, tmp_path), settings=settings)
    assert {key: getattr(found.config, key) for key in TUTORIAL} == TUTORIAL
    assert {found.origins[key] for key in TUTORIAL} == {"framing=tutorial"}
    assert found.origins["num_heads"] == "settings"


@pytest.mark.parametrize("settings", [["pad_id=5", "framing=tutorial"],
                                      ["framing=tutorial", "pad_id=5"]])  # fmt: skip
def test_setting_beside_a_framing_overrides_it_in_any_order(
    state: State, tmp_path: Path, settings: list[str]
) -> None:
    found = load_checkpoint(save(state, tmp_path), settings=["num_heads=4", *settings])
    assert (found.config.pad_id, found.config.bos_id) == (5, 2)
    assert (found.origins["pad_id"], found.origins["bos_id"]) == ("settings", "framing=tutorial")


def test_framing_of_a_config_yields_to_settings_and_wins_over_earlier_files(
    state: State, tmp_path: Path
) -> None:
    path = save(state, tmp_path, num_heads=4, eos_id=7, bos_id=6)
    (tmp_path / "other.json").write_text(json.dumps({"framing": "tutorial", "bos_id": 9}))
    found = load_checkpoint(path, tmp_path / "other.json", ["add_source_bos=false"])
    assert (found.config.eos_id, found.config.bos_id) == (3, 9)
    assert not found.config.add_source_bos
    assert found.config.add_source_eos
    assert found.origins["bos_id"] == "other.json"


def test_module_in_memory_takes_a_framing() -> None:
    model = tutorial.make()
    for options in (ReadOptions({"framing": "tutorial"}), ReadOptions(None, ["framing=tutorial"])):
        assert options.read(model).config.special_ids.bos == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("framing=tutoral", "'tutoral' is not known; did you mean 'tutorial'? known"),
        ("framing=fairseq", "settings: framing: 'fairseq' is not known; known are: 'tutorial'"),
        ("framing=3", "framing: 3 is not known; known are: 'tutorial'"),
        ("framin=tutorial", "unknown key 'framin'; did you mean 'framing'?"),
    ],
)
def test_unknown_framing_is_refused_with_the_known_ones(
    state: State, tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(save(state, tmp_path), settings=["num_heads=4", setting])
    assert message in str(caught.value).replace("?; ", "? ")


def test_framing_that_does_not_fit_the_vocabulary_is_refused(tmp_path: Path) -> None:
    model = tutorial.make(source_size=3)
    with pytest.raises(ConfigError, match="eos_id: 3 is not an id of the source vocabulary"):
        ReadOptions(None, ["framing=tutorial"]).read(model)
