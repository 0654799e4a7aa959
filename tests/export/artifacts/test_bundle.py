"""State dict to bundle to tokens, against torch.nn.Transformer and the tutorial's loop."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.conftest import CONFIG
from tests.export.conftest import pre_norm
from tests.model_src.test_transformer import stock_models, to_settings
from tests.support import tutorial
from tfexport.bundle import open_bundle
from tfexport.errors import (
    CheckpointError,
    ConfigError,
    OutputExistsError,
)
from tfexport.export import export
from tfexport.runtime import Translator

IDS = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]


def check_tokens(bundle: Path, model: tutorial.TutorialModel, options: dict[str, Any]) -> None:
    generator = random.Random(0)
    rows = [
        [generator.randrange(options["source_size"]) for _ in range(generator.randint(1, 9))]
        for _ in range(6)
    ]
    limit = min(12, options["length"])
    found = Translator(bundle, threads=1).generate(rows, max_length=limit)
    expected = [tutorial.greedy(model, row, limit, bos=1, eos=2) for row in rows]
    assert [result.hypotheses[0].tokens for result in found] == expected


def at_most_two_layers(options: dict[str, Any]) -> dict[str, Any]:
    layers = ("encoder_layers", "decoder_layers")
    return {**options, **{name: min(options[name], 2) for name in layers}}


# One function-scoped fixture for all examples does no harm: it changes no files.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("few_shapes")
@given(options=stock_models.map(at_most_two_layers))
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
def test_stock_model_of_any_shape_exports_with_one_call(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("stock")
    model = tutorial.make(**{**options, "scale": 1.0})
    torch.save(model.state_dict(), folder / "model.pt")
    result = export(
        folder / "model.pt", folder / "a.bundle", settings=[*to_settings(options), *IDS]
    )
    assert result.report is not None
    assert result.report.reference == "torch.nn.Transformer"
    check_tokens(folder / "a.bundle", model, options)


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_training_script_ends_with_a_bundle(tmp_path: Path) -> None:
    model = pre_norm().train()
    result = export(model, tmp_path / "a.bundle", config=CONFIG)
    assert model.training, "the caller's module is left as it was"
    assert result.manifest.parity is not None
    assert result.manifest.parity["passed"]
    check_tokens(tmp_path / "a.bundle", model.eval(), {"source_size": 17, "length": 64})


def test_config_of_a_live_module_may_be_a_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(CONFIG))
    result = export(
        tutorial_model, tmp_path / "a.bundle", config=tmp_path / "ids.json", verify=False
    )
    assert result.manifest.special_ids.eos == 2


def test_bundle_needs_its_special_ids(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pad_id, bos_id, eos_id"):
        export(tutorial.make(), tmp_path / "a.bundle")


def test_force_replaces_and_its_absence_refuses(
    tmp_path: Path, tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    output = tmp_path / "a.bundle"
    shutil.copytree(tiny_bundle, output)
    with pytest.raises(OutputExistsError, match="Use force=True"):
        export(tutorial_model, output, config=CONFIG)
    result = export(tutorial_model, output, config=CONFIG, verify=False, force=True)
    assert result.manifest.tokenizers == {}
    assert open_bundle(tmp_path / "a.bundle") == result.manifest


def test_failing_import_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError):
        export(tmp_path / "model.pt", tmp_path / "a.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_manifest_records_the_proof_and_no_machine(tiny_bundle: Path) -> None:
    text = (tiny_bundle / "manifest.json").read_text()
    parity = json.loads(text)["parity"]
    assert parity["passed"]
    assert parity["reference"] == "torch.nn.Transformer"
    assert os.sep + "tmp" not in text
    assert str(Path.home()) not in text
