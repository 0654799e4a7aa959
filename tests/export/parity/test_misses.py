"""Parity has to notice. Each test breaks one thing and asks which stage says so."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import CONFIG, SETTINGS
from tests.support import tutorial
from tfexport.bundle import SpecialIds, read_manifest, write_manifest
from tfexport.errors import ParityError
from tfexport.export import ParityReport, export, verify
from tfexport.export.parity import STAGES, Comparison
from tfexport.export.parity.compare import compare_tokens
from tfexport.export.parity.eager_run import NEW_TOKENS, EagerRun
from tfexport.export.report import NATIVE, NATIVE_TOKENS
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.interface import BeamRecord
from tfexport.runtime.model.onnxruntime_model import OnnxModel


def break_weight(bundle: Path, graph: str, name: str, amount: float) -> None:
    """Change one weight of one graph, as a wrong exporter would."""
    path = bundle / graph
    model = onnx.load(str(path))
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] += amount
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
    path.unlink()
    onnx.save(model, str(path))
    manifest = read_manifest(bundle)
    (bundle / "manifest.json").unlink()
    write_manifest(bundle, manifest)


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_bundle, tmp_path / "copy.bundle")
    return tmp_path / "copy.bundle"


def compare(bundle: Path, model: tutorial.TutorialModel) -> ParityReport:
    return verify(bundle, model, config=SETTINGS)


def test_report_covers_the_grid_against_torch_itself(
    tiny_bundle: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    report = compare(tiny_bundle, tutorial_model)
    assert report.passed
    assert report.reference == "torch.nn.Transformer"
    shapes = {(c.batch, c.source_length) for c in report.comparisons}
    assert shapes == {(b, s) for b in (1, 2, 8) for s in (1, 7, 33)} | {(1, 64)}
    stages = {c.stage for c in report.comparisons}
    of_others = {
        "text", "forward", "attention biases", "memory", "step and decode", "decoder of states",
        "alignment", "expected texts",
    }  # fmt: skip
    assert stages | {NATIVE, NATIVE_TOKENS} == set(STAGES) - of_others
    summary = report.summary()
    assert summary["tokens"] > 8 * NEW_TOKENS
    assert json.loads(json.dumps(report.to_dict()))["passed"] is True


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    ("graph", "weight", "stage"),
    [
        ("encoder.onnx", "encoder.layers.0.feed_forward.up_proj.weight.T", "encoder states"),
        ("encoder.onnx", "decoder.layers.0.cross_attn.k_proj.weight.T", "full prefix"),
        ("decoder.onnx", "decoder.layers.0.self_attn.out_proj.weight.T", "full prefix"),
        ("decoder.onnx", "output_proj.bias", "full prefix"),
    ],
)
def test_wrong_weight_is_found_where_it_acts(
    copy: Path, tutorial_model: tutorial.TutorialModel, graph: str, weight: str, stage: str
) -> None:
    break_weight(copy, graph, weight, 0.05)
    report = compare(copy, tutorial_model)
    failure = report.first_failure()
    assert not report.passed
    assert failure is not None
    assert failure.stage == stage
    with pytest.raises(ParityError, match=stage):
        report.require("x.bundle")


@pytest.mark.usefixtures("few_shapes")
def test_wrong_module_is_found_before_the_graphs_are_blamed(
    copy: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda *args: forward(*args) + 0.01)
    failure = compare(copy, tutorial_model).first_failure()
    assert failure is not None
    assert failure.stage == "eager modules"


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("setting", ["norm_placement=pre", "activation=gelu", "num_heads=4"])
def test_wrong_config_is_found(tiny_bundle: Path, tiny_checkpoint: Path, setting: str) -> None:
    report = verify(tiny_bundle, tiny_checkpoint, settings=[setting])
    assert not report.passed


@pytest.mark.usefixtures("few_shapes")
def test_cache_that_forgets_is_found(
    copy: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfexport.runtime.model.onnxruntime_model import OnnxModel

    step = OnnxModel.step

    def forgetful(self: OnnxModel, ids, state, candidates=None):  # type: ignore[no-untyped-def]
        past = state.past
        logits = step(self, ids, state, candidates)
        if next(iter(past.values())).shape()[2] == 3:
            state.past = past  # the fourth position is lost
        return logits

    monkeypatch.setattr(OnnxModel, "step", forgetful)
    failure = compare(copy, tutorial_model).first_failure()
    assert failure is not None
    assert failure.stage == "cached steps"


@pytest.mark.parametrize("part", ["tokens", "parents", "log_probs"])
def test_beam_that_overlooks_or_miscounts_is_found(
    part: str,
    tiny_bundle: Path,
    tutorial_model: tutorial.TutorialModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = OnnxModel.beam

    def wrong(self: OnnxModel, *args: Any) -> BeamRecord:
        record = search(self, *args)
        values = getattr(record, part).copy()
        values[-1, 0] = values[-1, 0, ::-1] if part == "parents" else values[-1, 0] + 1
        return record._replace(**{part: values % 17 if part == "tokens" else values})

    monkeypatch.setattr(OnnxModel, "beam", wrong)
    failure = compare(tiny_bundle, tutorial_model).first_failure()
    assert failure is not None
    assert failure.stage == "beam"


@pytest.mark.usefixtures("few_shapes")
def test_miss_fails_the_export_and_leaves_nothing(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.export.report.MOST_ALLOWED", 1e-12)
    with pytest.raises(ParityError, match=r"not equal to torch\.nn\.Transformer: eager modules"):
        export(tutorial_model, tmp_path / "a.bundle", config=CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_nan_never_passes() -> None:
    assert not Comparison("full prefix", 1, 1, float("nan"), 3).passed
    report = ParityReport("x", [Comparison("full prefix", 1, 1, float("nan"), 3)])
    assert not report.passed
    assert not ParityReport("x").passed, "nothing compared is nothing proven"


def tokens(ours: list[int], theirs: list[int], logits: list[list[float]]) -> Comparison:
    eager: Any = SimpleNamespace(special_ids=SpecialIds(pad=0, bos=1, eos=2))
    values = np.array([logits], np.float32)
    run = EagerRun(eager, [[1]], (1, 1), tokens=np.array([theirs]), logits=values)
    return compare_tokens(run, [ours])


def test_near_tie_is_counted_and_followed_no_further() -> None:
    clear, near = [0.0, 0.0, 0.0, 5.0, 1.0], [0.0, 0.0, 0.0, 5.0, 5.0001]
    equal = tokens([3, 3], [3, 3, 2], [clear, clear, clear])
    assert (equal.difference, equal.near_ties, equal.compared) == (0, 0, 3)
    tie = tokens([3, 3, 3], [3, 4, 4], [clear, near, clear])
    assert (tie.difference, tie.near_ties, tie.compared) == (0, 1, 2)
    assert tie.passed
    wrong = tokens([3, 4, 4], [3, 3, 3], [clear, clear, clear])
    assert (wrong.difference, wrong.near_ties) == (1, 0)
    assert not wrong.passed


def test_ending_early_and_ending_late_are_differences() -> None:
    clear = [0.0, 0.0, 0.0, 5.0, 1.0]
    ends = [0.0, 0.0, 5.0, 0.0, 0.0]
    assert tokens([3], [3, 3, 3], [clear] * 3).difference == 1
    assert tokens([3, 3, 3], [3, 2, 3], [clear, ends, clear]).difference == 1
    assert tokens([3], [3, 2, 4], [clear, ends, clear]).difference == 0
