"""Options of reading as one value, and a checkpoint wherever a path or a module is."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.support import tutorial
from tfexport.bundle import SpecialIds
from tfexport.cli.console import spell
from tfexport.errors import ConfigError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.read_options import ReadOptions, files_of
from tfexport.model_src.config import BUNDLE_IDS

IDS = ("pad_id=0", "bos_id=1", "eos_id=2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(tutorial.make().state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_options_read_a_file_as_load_checkpoint_does(path: Path) -> None:
    (path.parent / "other.json").write_text(json.dumps({"num_heads": 4, "pad_id": 5}))
    options = ReadOptions(path.parent / "other.json", ["unk_id=3"], "nn-transformer")
    found = options.read(path.parent, require=["pad_id"], defaults={"norm_eps": 1e-3})
    config = found.config
    assert (config.num_heads, config.pad_id, config.unk_id, config.norm_eps) == (4, 5, 3, 1e-3)
    assert found.path == path
    expected = load_checkpoint(
        path, path.parent / "other.json", ["unk_id=3"], defaults={"norm_eps": 1e-3}
    )
    assert config == expected.config


def test_options_read_a_module_and_its_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"pad_id": 0}))
    options = ReadOptions(tmp_path / "config.json", iter(IDS[1:]))
    for _ in range(2):  # words that can be gone through once are kept
        found = options.read(
            tutorial.make(), ["eos_id"], {"norm_eps": 1e-3, "add_source_eos": True}
        )
        assert found.special_ids == SpecialIds(0, 1, 2)
        assert found.config.norm_eps == 1e-5, "the module's own"
        assert found.config.add_source_eos
        assert (found.name, found.path) == ("TutorialModel", None)


def test_checkpoint_that_is_read_is_given_back(path: Path) -> None:
    found = load_checkpoint(path, {"num_heads": 4}, ["pad_id=0"])
    assert ReadOptions().read(found, require=["pad_id"]) is found
    with pytest.raises(ConfigError, match=r"not in the file: bos_id, eos_id; set settings=\['bos"):
        ReadOptions().read(found, require=["pad_id", "bos_id", "eos_id"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (ReadOptions(config={"pad_id": 0}), ["config"]),
        (ReadOptions(settings=["pad_id=0"]), ["settings"]),
        (ReadOptions({"pad_id": 0}, ["bos_id=1"], "native"), ["config", "settings", "layout"]),
    ],
)
def test_options_beside_a_checkpoint_that_is_read_are_refused(
    path: Path, options: ReadOptions, named: list[str]
) -> None:
    found = load_checkpoint(path, {"num_heads": 4})
    with pytest.raises(ConfigError) as caught:
        options.read(found)
    for name in named:
        assert f"{name} controls reading a checkpoint" in str(caught.value)
    spelled = caught.value.message.spelled(spell)
    assert ("--format controls reading" in spelled) == ("layout" in named)


def test_special_ids_that_are_missing_are_named(path: Path) -> None:
    found = load_checkpoint(path, {"num_heads": 4, "bos_id": 1, "unk_id": 3})
    with pytest.raises(ConfigError, match="without pad_id, eos_id"):
        _ = found.special_ids
    whole = dataclasses.replace(found.config, pad_id=0, eos_id=2)
    assert whole.special_ids == SpecialIds(0, 1, 2, 3)


def test_folder_is_that_of_the_file_and_a_module_has_none(path: Path, tmp_path: Path) -> None:
    found = load_checkpoint(path, {"num_heads": 4})
    for checkpoint in (path, tmp_path, found, CheckpointFiles(path)):
        files = files_of(checkpoint)
        assert files is not None
        assert files.folder == tmp_path
    model = tutorial.make()
    assert files_of(model) is files_of(ReadOptions().read(model)) is None


def test_checkpoint_without_embeddings_needs_no_ids_as_its_file_needs_none(tmp_path: Path) -> None:
    torch.save(
        torch.nn.Transformer(8, 2, 1, 1, 12, batch_first=True).state_dict(), tmp_path / "bare.pt"
    )
    options = ReadOptions(settings=["num_heads=2"])
    found = options.read(tmp_path / "bare.pt", require=BUNDLE_IDS)
    assert not found.config.has_embeddings
    assert ReadOptions().read(found, require=BUNDLE_IDS) is found
