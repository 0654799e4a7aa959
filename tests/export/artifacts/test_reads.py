"""What a bundle says that its model reads: sentences or whole texts."""

import dataclasses
from pathlib import Path

import pytest

from tests.support.paths import VERSION_1
from tfexport.bundle import open_bundle
from tfexport.errors import ConfigError
from tfexport.export.artifacts.keywords import reads_texts
from tfexport.export.artifacts.option_rules import check_export
from tfexport.manifest import Manifest
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.config import TransformerConfig

SMALL = TransformerConfig(
    d_model=8, num_heads=1, num_encoder_layers=1, num_decoder_layers=1, d_ff=8
)
SUMMARY: dict[str, object] = {"task_specific_params": {"summarization_cnn": {"num_beams": 4}}}
PAIR: dict[str, object] = {"task_specific_params": {"translation_en_to_de": {}}}


def test_families_that_summarise_or_are_told_a_task_read_texts() -> None:
    reads = {name for name, layout in LAYOUTS.items() if layout.reads_texts}
    assert reads >= {"bart", "pegasus", "t5"}
    assert not reads & {"marian", "mbart", "m2m-100", "fsmt", "nn-transformer"}


@pytest.mark.parametrize(
    ("layout", "config", "texts"),
    [("bart", {}, True), ("marian", {}, False), ("mbart", SUMMARY, True), ("mbart", PAIR, False),
     ("t5", PAIR, True), ("a module", {}, False),
     ("marian", {"task_specific_params": None}, False)],
)  # fmt: skip
def test_a_checkpoint_knows_what_it_reads(
    layout: str, config: dict[str, object], texts: bool
) -> None:
    made = Checkpoint("c", None, layout, SMALL, {}, {}, {}, {}, own_config=config)
    assert made.reads_texts is texts


@pytest.mark.parametrize(
    ("asked", "usual", "said"),
    [(None, True, "texts"), (None, False, None), ("sentences", True, None),
     ("texts", False, "texts")],
)  # fmt: skip
def test_a_caller_says_otherwise(asked: str | None, usual: bool, said: str | None) -> None:
    assert reads_texts({"reads": asked}, usual) == said


def test_what_no_model_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads: 'words' is not sentences or texts"):
        reads_texts({"reads": "words"}, False)
    with pytest.raises(ConfigError, match="reads requires a bundle"):
        check_export("a.onnx", "generate", {"reads": "texts"})


def test_a_manifest_keeps_it(tmp_path: Path) -> None:
    plain = open_bundle(VERSION_1)
    assert plain.reads is None
    said = dataclasses.replace(plain, reads="texts")
    assert Manifest.from_json(said.to_json(), tmp_path).reads == "texts"
