"""One more family through the registry of layouts alone, from its files to a proven bundle."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from tests.support import toy_family
from tests.support.toy_family import CONFIG, TOY, ToyOriginal, save_toy
from tfexport.errors import ParityError
from tfexport.export import export, verify
from tfexport.export.reference import find_reference
from tfexport.export.reference.original import Original
from tfexport.model_src import build_transformer, register_layout
from tfexport.model_src.checkpoint.generation_config import read_generation
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.runtime import Translator

SETTINGS = ["bos_id=1", "eos_id=2"]


@pytest.fixture
def toy_folder(tmp_path: Path) -> Iterator[Path]:
    register_layout(TOY)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_toy(build_transformer(CONFIG).eval(), folder)
    yield folder
    del LAYOUTS["toy"]


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_toy_family_is_exported_and_held_against_its_own_mathematics(toy_folder: Path) -> None:
    bundle = toy_folder.parent / "toy.bundle"
    made = export(toy_folder, bundle, settings=SETTINGS)
    assert made.layout == "toy"
    assert made.report is not None
    assert made.report.reference == ToyOriginal.title
    assert str(made.report.own_code).startswith("Your own forward was not run: compared with the")
    assert verify(bundle, toy_folder).passed
    assert Translator(bundle).generate([[5, 6, 7]], max_length=4)[0].hypotheses[0].tokens


def test_a_hugging_face_family_that_transformers_does_not_know_is_left_to_its_formulas(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = pytest.importorskip("transformers").__version__
    of_folders = dataclasses.replace(TOY, generation=read_generation, reference=None)
    with monkeypatch.context() as patch:  # undone before the fixture takes the layout away
        patch.setitem(LAYOUTS, "toy", of_folders)
        checkpoint = ReadOptions(settings=SETTINGS).read(toy_folder)
        chosen = find_reference(checkpoint, checkpoint.build())
    assert chosen.not_run == f"transformers {version} has no model_type 'toy'"
    assert chosen.reference.no_original == "tfexport has no original of this layout to run"


@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
def test_family_whose_mathematics_is_another_is_not_exported(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unscaled(ToyOriginal):
        def _embed(self, side: str, ids: Tensor) -> Tensor:
            return super()._embed(side, ids) / 2

    monkeypatch.setattr(toy_family, "ORIGINAL", Original(Unscaled, lambda config: True))
    bundle = toy_folder.parent / "toy.bundle"
    with pytest.raises(ParityError, match="differs by"):
        export(toy_folder, bundle, settings=SETTINGS)
    assert not bundle.exists()
