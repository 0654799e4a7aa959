"""The file of the greedy loop: whole, small, and refused where it says something else."""

import json
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch

from tests.conftest import CONFIG
from tests.export.conftest import large
from tests.support import tutorial
from tfexport.errors import ConfigError, ParityError
from tfexport.export import export, verify


@pytest.fixture
def path(tiny_graph: Path) -> Path:
    return tiny_graph


def test_file_is_whole_and_says_how_to_use_it(path: Path) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    domains = {entry.domain: entry.version for entry in model.opset_import}
    operators = {node.op_type for node in model.graph.node if node.domain}
    fused = path.stem == "fused"
    assert domains == ({"": 22, "com.microsoft": 1} if fused else {"": 20})
    assert operators == ({"MultiHeadAttention"} if fused else set())
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    (inner,) = [node for node in body.node if node.op_type == "Loop"]
    (step,) = [attribute.g for attribute in inner.attribute if attribute.name == "body"]
    weights = {tensor.name for tensor in step.initializer}
    read = {name for node in step.node if node.op_type == "MatMul" for name in node.input}
    read = {name for name in read if "weight" in name}
    assert read
    assert read <= weights, "onnxruntime packs what belongs to the node's own graph"
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "input_ids": ["batch", "source_length"],
        "attention_mask": ["batch", "source_length"],
        "max_length": [],
        "sequences": ["batch", "target_length"],
        "scores": ["batch"],
    }
    metadata = ort.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert metadata["tfexport_graph"] == "generate"
    config = json.loads(metadata["tfexport_config"])
    assert (config["pad_id"], config["bos_id"], config["eos_id"]) == (0, 1, 2)
    assert config["max_positions"] == 64
    assert metadata["tfexport_minimum_onnxruntime"] == ("1.21" if fused else "1.18")
    assert json.loads(metadata["tfexport_parity"])["passed"]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_file_is_hardly_larger_than_its_weights(tmp_path: Path, tied: bool) -> None:
    model = large(tied)
    export(model, tmp_path / "g.onnx", graph="generate", verify=False)
    weights = sum(p.numel() * 4 for p in model.parameters()) + 40 * 32 * 4
    assert (tmp_path / "g.onnx").stat().st_size < 1.05 * weights + 256 * 1024


@pytest.mark.usefixtures("few_shapes")
def test_another_checkpoint_is_found_out(
    path: Path, tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    state = {key: value.clone() for key, value in tutorial_model.state_dict().items()}
    torch.save(state, tmp_path / "same.pt")
    assert verify(path, tmp_path / "same.pt").passed
    state["transformer.encoder.layers.0.linear1.bias"] += 0.3
    torch.save(state, tmp_path / "other.pt")
    failure = verify(path, tmp_path / "other.pt").first_failure()
    assert failure is not None
    assert failure.stage in ("generate", "scores")


@pytest.mark.usefixtures("few_shapes")
def test_miss_leaves_no_file(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.export.report.MOST_ALLOWED", -1.0)
    with pytest.raises(ParityError):
        export(tutorial_model, tmp_path / "g.onnx", graph="generate", config=CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_forward_graph_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log_probs requires graph='forward'"):
        export(tutorial.make(), tmp_path / "g.onnx", graph="generate", log_probs=True)
    with pytest.raises(ConfigError, match="'backward' is not one of 'generate', 'forward'"):
        export(tutorial.make(), tmp_path / "g.onnx", graph="backward")
    with pytest.raises(ConfigError, match="pad_id, bos_id, eos_id"):
        export(tutorial.make(), tmp_path / "g.onnx", graph="generate")
