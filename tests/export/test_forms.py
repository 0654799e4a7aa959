"""The registry of graph forms: a form that is entered there is all that a new graph takes."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.support import tutorial
from tfexport.bundle import read_manifest
from tfexport.cli.onnx_command import onnx
from tfexport.errors import BundleError, ConfigError, ExportError, ParityError
from tfexport.export import export, forms, verify
from tfexport.export.checkpoint_subject import CheckpointSubject, Extras
from tfexport.export.graph_options import GraphOptions
from tfexport.export.graphs import exporter
from tfexport.export.parity.compare import compare_values
from tfexport.export.parity.eager_run import EagerRun
from tfexport.export.parity.opened import OpenBundle, OpenFile
from tfexport.export.report import Comparison
from tfexport.export.subject import Form
from tfexport.graph_io import ATTENTION_MASK, BATCH, INPUT_IDS, SOURCE, GraphSpec, TensorSpec
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime import Translator


class MeanState(nn.Module):
    """The toy form's module: a sentence to the mean of its encoder states."""

    def __init__(self, model: Transformer, error: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.error = error

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """input_ids, attention_mask -> mean (B, E)."""
        ids, mask = tensors
        hidden, _ = self.model.encode(ids, mask)
        kept = mask.unsqueeze(-1)
        return ((hidden * kept).sum(1) / kept.sum(1) + self.error,)


def spec_of(subject: CheckpointSubject) -> GraphSpec:
    return spec(subject.checkpoint.config.d_model)


def spec(width: int) -> GraphSpec:
    return GraphSpec(
        "toy",
        inputs=(
            TensorSpec(INPUT_IDS, "int64", (BATCH, SOURCE)),
            TensorSpec(ATTENTION_MASK, "int64", (BATCH, SOURCE)),
        ),
        outputs=(TensorSpec("mean", "float32", (BATCH, width)),),
    )


def export_toy(subject: CheckpointSubject, error: float = 0.0) -> ir.Model:
    module = MeanState(subject.model(), error)
    return exporter.export_graph_module(module, spec_of(subject), subject.opset)


def compare_toy(run: EagerRun, artifact: OpenBundle | OpenFile) -> Iterator[Comparison]:
    assert run.memory is not None
    feeds = run.eager.feeds(run.rows)
    if isinstance(artifact, OpenFile):
        (mean,) = artifact.run(feeds)
    else:
        (mean,) = artifact.graph(spec(run.memory[0][0].size(-1))).run(["mean"], feeds)
    expected = torch.stack([states.mean(0) for (states,) in run.memory])
    yield compare_values("toy mean", run.shape, mean, expected.numpy())


TOY = Form("toy", export_toy, compare_toy, spec=spec_of)


@pytest.fixture
def bundle_with_toy(
    tmp_path: Path,
    tutorial_model: tutorial.TutorialModel,
    monkeypatch: pytest.MonkeyPatch,
    few_shapes: None,
) -> Path:
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, TOY))
    export(tutorial_model, tmp_path / "toy.bundle", config=CONFIG)
    return tmp_path / "toy.bundle"


def test_form_is_exported_listed_and_compared_through_the_registry_alone(
    bundle_with_toy: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    manifest = read_manifest(bundle_with_toy)
    assert manifest.graphs["toy"] == "toy.onnx"
    assert "toy.onnx" in manifest.files
    assert manifest.parity is not None
    assert manifest.parity["largest_difference"]["toy mean"] < 1e-4
    report = verify(bundle_with_toy, tutorial_model, config=CONFIG)
    assert report.passed
    assert report.stages()[-1] == "toy mean"
    assert "toy mean" in json.dumps(report.to_dict())


def test_bundle_with_a_graph_of_an_unknown_role_decodes_and_is_not_called_equal(
    bundle_with_toy: Path,
    tiny_bundle: Path,
    tutorial_model: tutorial.TutorialModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = tuple(form for form in forms.FORMS if form is not TOY)
    monkeypatch.setattr(forms, "FORMS", known)
    rows = [[5, 6, 7, 2]]
    expected = Translator(tiny_bundle).generate(rows, max_length=9)
    assert Translator(bundle_with_toy).generate(rows, max_length=9) == expected
    with pytest.raises(BundleError, match="cannot compare with eager PyTorch: toy"):
        verify(bundle_with_toy, tutorial_model, config=CONFIG)


@pytest.mark.usefixtures("few_shapes")
def test_wrong_graph_of_a_form_fails_the_export(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Form("toy", lambda subject: export_toy(subject, error=0.01), compare_toy)
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, wrong))
    with pytest.raises(ParityError, match="toy mean: differs by"):
        export(tutorial_model, tmp_path / "toy.bundle", config=CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_shapes")
def test_form_of_a_file_is_exported_and_verified_through_the_registry_alone(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toy.onnx"
    with pytest.raises(ConfigError, match="'toy' is not one of 'generate', 'forward'"):
        export(tutorial_model, path, graph="toy", config=CONFIG)
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, TOY))
    export(tutorial_model, path, graph="toy", config=CONFIG)
    report = verify(path, tutorial_model, config=CONFIG)
    assert report.passed
    assert report.stages() == ["toy mean"]
    other = tutorial.make(
        seed=1, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12
    )
    assert not verify(path, other, config=CONFIG).passed


def test_command_line_offers_every_form_of_a_file() -> None:
    (option,) = [param for param in onnx.params if param.name == "graph"]
    assert isinstance(option.type, click.Choice)
    assert set(option.type.choices) == set(forms.file_forms())


def test_every_form_stands_behind_what_it_needs() -> None:
    names = [form.name for form in forms.FORMS]
    assert len(set(names)) == len(names)
    for place, form in enumerate(forms.FORMS):
        assert set(form.needs) <= set(names[:place])


def test_form_before_what_it_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    early = Form("early", lambda subject, late: late, compare_toy, needs=("late",))
    monkeypatch.setattr(forms, "FORMS", (early,))
    checkpoint: Any = None
    subject = CheckpointSubject(
        checkpoint=checkpoint, special_ids=None, generation=Generation(), options=GraphOptions()
    )
    with pytest.raises(ExportError, match=r"early\.onnx: is made from late"):
        forms.export_forms(subject, lambda *_: None)


@pytest.mark.parametrize("name", forms.file_forms())
@pytest.mark.parametrize("extra", ["none", "output_attentions", "attention_biases", "log_probs"])
def test_extras_of_a_file_are_told_from_its_inputs_and_outputs(name: str, extra: str) -> None:
    sizes = {"d_model": 8, "num_heads": 2}
    vocabularies = {"source_vocab_size": 9, "target_vocab_size": 9}
    config = TransformerConfig.from_dict(
        {**sizes, **vocabularies, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 8}
    )
    asked = Extras() if extra == "none" else Extras(**{extra: True})
    checkpoint: Any = SimpleNamespace(config=config)
    subject = CheckpointSubject(
        checkpoint=checkpoint, special_ids=None, generation=Generation(), options=GraphOptions(),
        extras=asked,
    )  # fmt: skip
    to_spec = forms.file_form(name).spec
    assert to_spec is not None
    spec = to_spec(subject)
    found = Extras.of([tensor.name for tensor in (*spec.inputs, *spec.outputs)])
    assert to_spec(dataclasses.replace(subject, extras=found)) == spec
