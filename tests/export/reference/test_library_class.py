"""The class of transformers judges a folder; where it cannot, the report says why."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.combinations import few_of
from tests.support.hf_models import FAMILIES, change_json, change_weights, make_model, save_folder
from tfexport.errors import ParityError
from tfexport.export import export, verify
from tfexport.export.reference import find_reference, library_class
from tfexport.export.reference.library_class import ClassReference
from tfexport.model_src.checkpoint.read_options import ReadOptions

version = pytest.importorskip("transformers").__version__
pytestmark = [
    pytest.mark.peers,
    pytest.mark.usefixtures("few_shapes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(make_model("marian"), tmp_path_factory.mktemp("marian"))


@pytest.mark.parametrize("family", few_of(list(FAMILIES), "bart", "fsmt", "umt5"))
def test_states_and_logits_are_those_of_the_class(family: str, tmp_path: Path) -> None:
    model = make_model(family, 3)
    checkpoint = ReadOptions().read(save_folder(model, tmp_path))
    chosen = find_reference(checkpoint, checkpoint.build())
    judge = chosen.reference
    assert isinstance(judge, ClassReference)
    assert chosen.not_run is None
    assert judge.title == f"{type(model).__name__} of transformers {version}"
    ids = torch.randint(5, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    mask, target = torch.ones_like(ids), ids[:, :4]
    hidden = judge.encode(ids, mask)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
    assert torch.equal(judge.decode(hidden, mask, target), wanted)
    last = judge.decode(hidden, mask, target, last_only=True)
    assert torch.equal(last, wanted[:, -1:])
    # Its parameters are the file's own tensors, not a second set of them.
    own = {tensor.data_ptr() for tensor in checkpoint.state_dict.values()}
    matrices = [each for name, each in judge._model.named_parameters() if "positions" not in name]
    assert sum(each.data_ptr() in own for each in matrices) == len(matrices)


def test_the_report_and_the_bundle_name_the_class(folder: Path, tmp_path: Path) -> None:
    made = export(folder, tmp_path / "a.bundle", verify="quick")
    assert made.report is not None
    assert made.report.own_code is None
    parity: Any = made.manifest.parity
    assert parity["reference"] == f"MarianMTModel of transformers {version}"
    assert "own_code" not in parity
    assert verify(tmp_path / "a.bundle", folder, level="quick").own_code is None


def test_a_class_that_computes_something_else_fails_the_export(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = ClassReference.decode

    def other(self: ClassReference, *given: Any, **options: Any) -> Tensor:
        return decode(self, *given, **options) * 1.001

    monkeypatch.setattr(ClassReference, "decode", other)
    with pytest.raises(ParityError, match="eager modules"):
        export(folder, tmp_path / "a.bundle", verify="quick")
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_the_formulas_judge_and_the_report_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_class, "import_transformers", lambda: None)
    report = export(folder, tmp_path / "a.bundle", verify="quick").report
    assert report is not None
    assert "reference formulas" in report.reference
    said = str(report.own_code)
    assert "MarianMTModel was not run, as transformers is not installed" in said
    assert "pip install" in said


def not_run(folder: Path, *settings: str) -> str:
    checkpoint = ReadOptions(settings=settings).read(folder)
    chosen = find_reference(checkpoint, checkpoint.build())
    assert not isinstance(chosen.reference, ClassReference)
    return chosen.not_run or ""


def test_values_that_the_caller_sets_are_not_the_class_s(folder: Path) -> None:
    assert not_run(folder, "activation=relu") == "its config was changed: activation"
    checkpoint = ReadOptions(settings=["start_id=3"]).read(folder)  # which changes no logits
    reference = find_reference(checkpoint, checkpoint.build()).reference
    assert isinstance(reference, ClassReference)


def test_a_folder_that_the_library_cannot_read_is_left_to_the_formulas(tmp_path: Path) -> None:
    save_folder(make_model("marian"), tmp_path)
    change_json(tmp_path / "config.json", architectures=["NoSuchModel"])
    assert "has no class 'NoSuchModel'" in not_run(tmp_path)
    change_json(tmp_path / "config.json", architectures=["MarianMTModel"])
    checkpoint = ReadOptions().read(tmp_path)
    tensors = dict(checkpoint.state_dict)
    del tensors["model.encoder.layers.0.fc1.bias"]
    lost = dataclasses.replace(checkpoint, state_dict=tensors)
    assert library_class.find_class_reference(lost) == (
        "MarianMTModel finds no model.encoder.layers.0.fc1.bias in the file"
    )


def test_keys_of_a_wrapper_are_those_of_the_class(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")

    def wrap(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[f"module.{name}"] = tensors.pop(name)

    change_weights(tmp_path / "model", wrap)
    checkpoint = ReadOptions().read(tmp_path / "model")
    assert isinstance(library_class.find_class_reference(checkpoint), ClassReference)


def test_padding_may_place_words(tmp_path: Path) -> None:
    folder = save_folder(make_model("m2m_100"), tmp_path)
    assert not_run(folder, "pad_id=5") == "its config was changed: pad_id"


@pytest.mark.parametrize(
    ("family", "named"), [("bart", "BartModel"), ("t5", "T5EncoderModel"), ("t5", "T5Model")]
)
def test_a_folder_of_states_is_judged_by_the_class_that_generates(
    family: str, named: str, tmp_path: Path
) -> None:
    model = make_model(family)
    change_json(save_folder(model, tmp_path) / "config.json", architectures=[named])
    checkpoint = ReadOptions().read(tmp_path)
    judge = library_class.find_class_reference(checkpoint)
    assert isinstance(judge, ClassReference)
    assert judge.title.startswith(type(model).__name__)


def test_settings_of_results_do_not_matter_and_a_class_that_fails_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_json(save_folder(make_model("bart"), tmp_path) / "config.json", return_dict=False)
    checkpoint = ReadOptions().read(tmp_path)
    assert isinstance(library_class.find_class_reference(checkpoint), ClassReference)

    def fails(*_: Any) -> None:
        raise RuntimeError("no such kernel.\nand more")

    monkeypatch.setattr(ClassReference, "encode", fails)
    assert library_class.find_class_reference(checkpoint) == (
        f"BartForConditionalGeneration of transformers {version} fails: no such kernel"
    )


@pytest.mark.no_model
@pytest.mark.parametrize(
    ("layout", "own_config"), [("bart", {}), ("fairseq", {"model_type": "fairseq"})]
)
def test_other_files_have_no_class(layout: str, own_config: dict[str, str]) -> None:
    values = {"own_config": own_config, "path": Path("a.pt"), "layout": layout}
    checkpoint: Any = type("C", (), values)
    assert library_class.find_class_reference(checkpoint) == ""
