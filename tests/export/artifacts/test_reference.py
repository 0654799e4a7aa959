"""Every artifact against code of the user's own: run unasked, handed in, or not run and said so."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.export.text.test_wrap import byte_level
from tests.support import own_forwards, tutorial
from tests.support.combinations import few_of
from tfexport.bundle import read_manifest
from tfexport.errors import ConfigError, ParityError
from tfexport.export import ExportResult, export, read_info, verify
from tfexport.export.parity import STAGES
from tfexport.export.report import NATIVE, NATIVE_TOKENS
from tfexport.model_src.checkpoint.read_options import ReadOptions

pytestmark = pytest.mark.slow

Export = Callable[..., ExportResult]
EXPORTS: dict[str, Export] = {
    "a.bundle": export,
    "generate.onnx": partial(export, graph="generate"),
    "forward.onnx": partial(export, graph="forward"),
    "model.ts": export,
    "model.pt2": export,
}
SENTENCE = (
    "Your own forward was not run: compared with torch.nn.Transformer built from the checkpoint. "
    "Pass reference to compare with your code."
)
HEADS = {**CONFIG, "num_heads": 2}


def scores_of(model: own_forwards.Seq2SeqTransformer) -> Callable[[Tensor, Tensor], Tensor]:
    """The tutorial's own loop: encode, decode, generator; sequence first, no padding."""

    def reference(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        source, target = input_ids.T, decoder_input_ids.T
        causal = nn.Transformer.generate_square_subsequent_mask(len(target))
        memory = model.encode(source, torch.zeros(len(source), len(source)))
        logits: Tensor = model.generator(model.decode(target, memory, causal)).transpose(0, 1)
        return logits

    return reference


@pytest.fixture(scope="module")
def right() -> own_forwards.Seq2SeqTransformer:
    return own_forwards.make(own_forwards.Seq2SeqTransformer)


@pytest.fixture(scope="module")
def wrong() -> own_forwards.Seq2SeqTransformer:
    """The same weights, and a ``forward`` without the factor sqrt(d)."""
    return own_forwards.make_unscaled()


def test_models_differ_by_a_factor_that_the_state_dict_does_not_show(
    right: own_forwards.Seq2SeqTransformer, wrong: own_forwards.Seq2SeqTransformer
) -> None:
    ours, theirs = right.state_dict(), wrong.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ids = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 9]])
    assert not torch.allclose(scores_of(right)(*ids), scores_of(wrong)(*ids), atol=0.1)


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("name", few_of(EXPORTS, "a.bundle", "generate.onnx", "model.ts"))
def test_live_module_whose_forward_differs_is_refused_and_leaves_no_file(
    tmp_path: Path, wrong: own_forwards.Seq2SeqTransformer, name: str
) -> None:
    message = r"not equal to your Seq2SeqTransformer\.forward: eager modules: .* something else"
    with pytest.raises(ParityError, match=message):
        EXPORTS[name](wrong, tmp_path / name, config=CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_shapes")
def test_config_that_says_what_the_code_does_makes_them_equal(
    tmp_path: Path, wrong: own_forwards.Seq2SeqTransformer
) -> None:
    config = {**CONFIG, "scale_embeddings": False}
    made = export(wrong, tmp_path / "g.onnx", graph="generate", config=config)
    assert made.report is not None
    assert made.report.reference == "your Seq2SeqTransformer.forward"


@pytest.mark.usefixtures("few_shapes")
def test_code_that_looks_ahead_is_refused_where_a_whole_target_is_given(
    tmp_path: Path, tiny_checkpoint: Path, right: own_forwards.Seq2SeqTransformer
) -> None:
    def looks_ahead(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        source, target = input_ids.T, decoder_input_ids.T
        memory = right.encode(source, torch.zeros(len(source), len(source)))
        free = torch.zeros(len(target), len(target))
        logits: Tensor = right.generator(right.decode(target, memory, free)).transpose(0, 1)
        return logits

    with pytest.raises(ParityError, match="not equal to your looks_ahead"):
        export(
            tiny_checkpoint,
            tmp_path / "f.onnx",
            graph="forward",
            config=HEADS,
            reference=looks_ahead,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("name", few_of(EXPORTS, "a.bundle", "generate.onnx", "model.ts"))
def test_code_that_is_handed_in_is_what_everything_is_compared_with(
    tmp_path: Path,
    tiny_checkpoint: Path,
    right: own_forwards.Seq2SeqTransformer,
    wrong: own_forwards.Seq2SeqTransformer,
    name: str,
) -> None:
    write, path = EXPORTS[name], tmp_path / name
    with pytest.raises(ParityError, match="not equal to your reference: eager modules"):
        write(tiny_checkpoint, path, config=HEADS, reference=scores_of(wrong))
    assert list(tmp_path.iterdir()) == []
    made = write(tiny_checkpoint, path, config=HEADS, reference=scores_of(right))
    assert made.report is not None
    assert (made.report.reference, made.report.own_code) == ("your reference", None)
    assert recorded_parity(path)["reference"] == "your reference"
    assert "own_code" not in recorded_parity(path)
    again = verify(path, tiny_checkpoint, config=HEADS, reference=scores_of(right))
    assert again.passed
    found, recorded = again.to_dict(), made.report.to_dict()
    # The second time the settings come from the file.
    values = [{key: it["value"] for key, it in each.pop("settings").items()}
              for each in (found, recorded)]  # fmt: skip
    assert values[0] == values[1]
    assert found == recorded
    other = verify(path, tiny_checkpoint, config=HEADS, reference=scores_of(wrong))
    failure = other.first_failure()
    assert failure is not None
    assert failure.stage == "eager modules"


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("name", few_of(EXPORTS, "a.bundle", "generate.onnx", "model.ts"))
def test_export_that_ran_no_code_of_the_users_says_so_in_report_and_file(
    tmp_path: Path, tiny_checkpoint: Path, name: str
) -> None:
    made = EXPORTS[name](tiny_checkpoint, tmp_path / name, config=HEADS)
    assert made.report is not None
    assert str(made.report.own_code) == SENTENCE
    assert made.report.to_dict()["own_code"] == SENTENCE
    assert recorded_parity(tmp_path / name)["own_code"] == SENTENCE


def recorded_parity(path: Path) -> dict[str, Any]:
    """The summary that stands in a bundle's manifest, or in a file."""
    if path.is_dir():
        found = json.loads((path / "manifest.json").read_text())["parity"]
    else:
        info = read_info(path)
        assert info is not None
        found = info.parity
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("few_shapes")
def test_live_module_that_was_not_run_is_named_with_the_reason(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    made = export(tutorial_model, tmp_path / "a.bundle", config=CONFIG)
    assert made.report is not None
    assert str(made.report.own_code) == SENTENCE.replace(
        "not run:",
        "not run (TutorialModel.forward(source, target, padding) has an unknown signature):",
    )


def test_every_stage_of_a_bundle_is_compared_over_the_whole_grid(
    tiny_bundle: Path, right: own_forwards.Seq2SeqTransformer
) -> None:
    report = verify(tiny_bundle, right, config=CONFIG)
    assert report.passed
    assert report.reference == "your Seq2SeqTransformer.forward"
    # The native engine's stages are there where it is installed.
    stages = {c.stage for c in report.comparisons} | {NATIVE, NATIVE_TOKENS}
    assert stages == set(STAGES) - {
        "text", "forward", "attention biases", "memory", "step and decode", "decoder of states",
        "alignment", "expected texts",
    }  # fmt: skip
    shapes = {(c.batch, c.source_length) for c in report.comparisons}
    assert shapes == {(b, s) for b in (1, 2, 8) for s in (1, 7, 33)} | {(1, 64)}


@pytest.mark.usefixtures("few_shapes")
def test_graph_that_differs_from_the_code_is_found_beyond_the_modules(
    tiny_bundle: Path, right: own_forwards.Seq2SeqTransformer, tmp_path: Path
) -> None:
    made = export(right, tmp_path / "g.onnx", graph="generate", config=CONFIG)
    assert made.report is not None
    assert made.report.passed
    graph = onnx.load(str(tmp_path / "g.onnx"))
    tables = [t for t in _initializers(graph.graph) if list(t.dims) == [19]]
    assert tables, "the bias of the generator"
    for tensor in tables:
        values = onnx.numpy_helper.to_array(tensor)[::-1].copy()
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(graph, str(tmp_path / "g.onnx"))
    failure = verify(tmp_path / "g.onnx", right, config=CONFIG).first_failure()
    assert failure is not None
    assert failure.stage == "generate"


def _initializers(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*graph.initializer, *(t for each in inner for t in _initializers(each))]


@pytest.mark.usefixtures("few_shapes")
def test_quantised_export_is_compared_before(
    tmp_path: Path, tiny_checkpoint: Path, wrong: own_forwards.Seq2SeqTransformer
) -> None:
    with pytest.raises(ParityError, match="not equal to your reference"):
        export(
            tiny_checkpoint,
            tmp_path / "q.bundle",
            quantize="int8",
            config=HEADS,
            reference=scores_of(wrong),
        )
    with pytest.raises(ParityError, match=r"not equal to your Seq2SeqTransformer\.forward"):
        export(wrong, tmp_path / "q.onnx", graph="generate", quantize="int8", config=CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
def test_text_graph_is_compared_with_the_code(
    tmp_path: Path, text_model: tutorial.TutorialModel
) -> None:
    def mine(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits: Tensor = text_model(input_ids.T, decoder_input_ids.T).transpose(0, 1)
        return logits

    tokenizer = byte_level(tmp_path / "tokenizer.json")
    made = export(
        text_model, tmp_path / "g.onnx", graph="generate", config=CONFIG, text=True,
        tokenizer=tokenizer, reference=mine,
    )  # fmt: skip
    assert made.report is not None
    assert made.report.reference == "your mine"
    stages = {c.stage for c in made.report.comparisons if c.compared}
    assert stages == {"eager modules", "generate", "scores", "text"}


@pytest.mark.usefixtures("few_shapes")
def test_checkpoint_that_has_been_read_takes_a_reference(
    tmp_path: Path, wrong: own_forwards.Seq2SeqTransformer, right: own_forwards.Seq2SeqTransformer
) -> None:
    read = dataclasses.replace(ReadOptions(CONFIG).read(right), module=None)
    with pytest.raises(ParityError, match="not equal to your reference"):
        export(read, tmp_path / "f.onnx", graph="forward", reference=scores_of(wrong))
    made = export(read, tmp_path / "f.onnx", graph="forward", reference=scores_of(right))
    assert made.report is not None
    assert export(read, tmp_path / "g.onnx", graph="generate").report is not None


@pytest.mark.parametrize("name", few_of(EXPORTS, "a.bundle", "generate.onnx", "model.ts"))
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "json:dumpss"}, r"reference: json:dumpss: .*did you mean 'dumps'\?$"),
        ({"reference": 3}, r"reference: 3 is not callable; expected a function or"),
        (
            {"reference": print, "verify": False},
            r"reference is only used for the comparison; omit verify=False",
        ),
    ],
)
def test_reference_that_is_none_is_refused_before_the_checkpoint_is_read(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EXPORTS[name](tmp_path / "no.pt", tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_shapes")
def test_graphs_and_weights_are_the_same_with_and_without_a_reference(
    tmp_path: Path, tiny_checkpoint: Path, right: own_forwards.Seq2SeqTransformer
) -> None:
    for name, reference in (("a", None), ("b", scores_of(right))):
        export(tiny_checkpoint, tmp_path / name, config=HEADS, reference=reference)
    a, b = (read_manifest(tmp_path / name) for name in ("a", "b"))
    assert a.files == b.files
