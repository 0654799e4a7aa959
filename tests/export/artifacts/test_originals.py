"""Every family of the source documents, the whole way: state dict, export, verify, decoding.

The tokens and logits of the files are held against the originals in ``tests/originals``.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from tests.conftest import SETTINGS
from tests.support import tutorial
from tests.support.combinations import few_of
from tests.support.node import in_node
from tests.support.originals import annotated, rebuilt, rmsnorm
from tests.support.originals.weights import shake
from tfexport.cli.main import cli
from tfexport.errors import ConfigError
from tfexport.export import export, verify
from tfexport.model_src import (
    TransformerConfig,
    build_transformer,
    load_checkpoint,
)
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import pad

IDS = [f"--set={key}={value}" for key, value in SETTINGS.items()]
ROWS = [[5, 6, 7], [3], [9, 4, 4, 8, 16, 11, 3, 5, 6], [12, 13]]
LIMIT = 14


def annotated_next(model: annotated.Annotated) -> Callable[[Tensor, Tensor], Tensor]:
    def scores(source: Tensor, target: Tensor) -> Tensor:
        keep = torch.ones(1, 1, source.size(1), dtype=torch.long)
        mask = annotated.target_mask(torch.ones_like(target))
        log_probs: Tensor = model(source, target, keep, mask)
        return log_probs

    return scores


def rmsnorm_next(model: rmsnorm.RMSNormModel) -> Callable[[Tensor, Tensor], Tensor]:
    def scores(source: Tensor, target: Tensor) -> Tensor:
        probabilities: Tensor = model(source, target, rmsnorm.causal(target.size(1)))
        return probabilities

    return scores


# A family: the original, how it scores a target, what --set has to say, what verify calls it.
FAMILIES: dict[str, tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], list[str], str]] = {}
# The seeds are chosen by the outputs: rows of one batch end at different steps. Biases are drawn by
# torch's own generator.
for _residual, _seed in (("pre", 199), ("res_post", 189)):
    torch.manual_seed(_seed)
    _model = shake(annotated.Annotated(layers=1, residual=_residual), seed=_seed, scale=2.0)
    FAMILIES[f"annotated-{_residual}"] = (
        _model,
        annotated_next(_model),
        ["--set=num_heads=4", f"--set=norm_placement={_residual}"],
        "The Annotated Transformer (reference formulas)",
    )
torch.manual_seed(175)
_rms = shake(rmsnorm.RMSNormModel(encoders=1, decoders=1), seed=175, scale=2.0)
FAMILIES["rmsnorm"] = (_rms, rmsnorm_next(_rms), [], "the RMSNorm Transformer (reference formulas)")


def greedy(scores: Callable[[Tensor, Tensor], Tensor], row: list[int]) -> list[int]:
    """The argmax of the last position, again and again, over the whole prefix."""
    target = torch.tensor([[SETTINGS["bos_id"]]])
    for _ in range(LIMIT):
        token = int(scores(torch.tensor([row]), target)[0, -1].argmax())
        if token == SETTINGS["eos_id"]:
            break
        target = torch.cat([target, torch.tensor([[token]])], dim=1)
    return target[0, 1:].tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes", "no_search_graphs")
@pytest.mark.parametrize("family", few_of(FAMILIES, "rmsnorm"))
def test_family_goes_from_state_dict_to_torch_free_tokens(family: str, tmp_path: Path) -> None:
    model, scores, settings, reference = FAMILIES[family]
    torch.save(model.state_dict(), tmp_path / "model.pt")
    bundle = tmp_path / "a.bundle"
    # The next command compares.
    arguments = [
        "onnx",
        "--no-verify",
        "--checkpoint",
        str(tmp_path / "model.pt"),
        "-o",
        str(bundle),
    ]
    done = CliRunner().invoke(cli, [*arguments, *settings, *IDS])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(
        cli, ["verify", str(bundle), "--checkpoint", str(tmp_path / "model.pt"), "--json"]
    )
    report = json.loads(checked.stdout)
    assert report["passed"]
    assert report["reference"] == reference
    found = Translator(bundle).generate(ROWS, max_length=LIMIT)
    expected = [greedy(scores, row) for row in ROWS]
    assert [result.hypotheses[0].tokens for result in found] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1, "outputs differ from input to input"
    ids, mask = pad(ROWS, pad_id=0)
    feeds = {"input_ids": ids, "attention_mask": mask, "max_length": LIMIT}
    in_javascript = in_node(bundle / "generate.onnx", feeds)
    assert [row[: row.index(2)] if 2 in row else row for row in in_javascript] == expected


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("family", few_of(FAMILIES, "annotated-pre"))
def test_forward_graph_gives_the_originals_log_probabilities(family: str, tmp_path: Path) -> None:
    model, scores, settings, _ = FAMILIES[family]
    torch.save(model.state_dict(), tmp_path / "model.pt")
    words = [word.removeprefix("--set=") for word in settings]
    export(
        tmp_path / "model.pt", tmp_path / "f.onnx", graph="forward", settings=words, log_probs=True
    )
    session = ort.InferenceSession(tmp_path / "f.onnx")
    source, target = torch.randint(0, 17, (1, 6)), torch.randint(0, 17, (1, 5))
    feeds = {
        "input_ids": source.numpy(),
        "attention_mask": np.ones((1, 6), np.int64),
        "decoder_input_ids": target.numpy(),
        "decoder_attention_mask": np.ones((1, 5), np.int64),
    }
    logits, log_probs = session.run(["logits", "log_probs"], feeds)
    expected = scores(source, target)
    if family == "rmsnorm":
        expected = expected.log()
    np.testing.assert_allclose(log_probs, expected, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(torch.from_numpy(logits).log_softmax(-1), log_probs, atol=1e-5)


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("separate", few_of([False, True], True), ids=["packed", "separate"])
def test_rebuilt_transformer_goes_through_forward_with_its_masks(
    tmp_path: Path, separate: bool
) -> None:
    model = shake(rebuilt.Rebuilt())
    state = model.state_dict()
    if separate:
        for key in [key for key in state if key.endswith("in_proj_weight")]:
            for part, weight in zip("qkv", state.pop(key).chunk(3), strict=True):
                state[key.replace("in_proj", f"{part}_proj")] = weight
    torch.save(state, tmp_path / "model.pt")
    settings = ["num_heads=4", "num_encoder_layers=2", "num_decoder_layers=3"]
    path = tmp_path / "f.onnx"
    done = CliRunner().invoke(
        cli,
        ["onnx", "--checkpoint", str(tmp_path / "model.pt"), "-o", str(path), "--graph", "forward",
         "--attention-biases", *(f"--set={word}" for word in settings)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "equal to nn.Transformer rebuilt" in done.stdout
    report = verify(path, tmp_path / "model.pt")
    assert report.passed
    assert {c.stage for c in report.comparisons} == {
        "eager modules",
        "forward",
        "attention biases",
    }
    src, tgt = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    blocked = torch.rand(2 * 4, 5, 6) < 0.3
    blocked[..., 0] = False
    memory_mask = torch.zeros(8, 5, 6).masked_fill(blocked, float("-inf"))
    padding = torch.tensor([[0, 0, 0, 0, 1, 1], [0] * 6]).bool()
    feeds = {
        "inputs_embeds": src.numpy(),
        "attention_mask": (~padding).long().numpy(),
        "decoder_inputs_embeds": tgt.numpy(),
        "decoder_attention_mask": np.ones((2, 5), np.int64),
        "encoder_attention_bias": np.zeros((2, 4, 6, 6), np.float32),
        "decoder_attention_bias": np.zeros((2, 4, 5, 5), np.float32),
        "cross_attention_bias": memory_mask.reshape(2, 4, 5, 6).numpy(),
    }
    session = ort.InferenceSession(path)
    (states,) = session.run(["decoder_hidden_states"], feeds)
    for name in ("attention_mask", "decoder_attention_mask"):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            session.run(None, {**feeds, name: np.ones((2, 1), np.int64)})
    expected = model(
        src,
        tgt,
        tgt_mask=rebuilt.causal(5),
        memory_mask=memory_mask,
        src_key_padding_mask=padding,
        memory_key_padding_mask=torch.zeros(2, 6).masked_fill(padding, float("-inf")),
    )
    np.testing.assert_allclose(states, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("command", [["-o", "a.bundle"], ["-o", "a.bundle", "--set=pad_id=0"]])
def test_bundle_of_a_model_without_embeddings_names_the_graph_that_can_be(
    tmp_path: Path, command: list[str]
) -> None:
    torch.save(rebuilt.Rebuilt().state_dict(), tmp_path / "model.pt")
    settings = ["--set=num_heads=4", "--set=num_encoder_layers=2", "--set=num_decoder_layers=3"]
    arguments = ["onnx", "--checkpoint", str(tmp_path / "model.pt"), *settings, *command]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "no embeddings" in done.stderr
    assert "--graph forward" in done.stderr


def test_what_the_shared_layers_cannot_say_is_asked_for(tmp_path: Path) -> None:
    torch.save(rebuilt.Rebuilt().state_dict(), tmp_path / "model.pt")
    with pytest.raises(ConfigError, match="num_heads, num_encoder_layers, num_decoder_layers"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.onnx"], "a bundle is a folder"),
        (["-o", "x.bundle", "--log-probs"], "requires --graph forward"),
        (["-o", "x.onnx", "--graph", "backward"], "'backward' is not"),
    ],
)
def test_wrong_choice_of_graph_is_a_usage_error(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["onnx", "--checkpoint", "model.pt", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.usefixtures("few_shapes")
def test_forward_file_is_whole_and_says_what_it_is(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    model, path = tutorial_model, tmp_path / "f.onnx"
    export(model, path, graph="forward", config=SETTINGS)
    assert [p.name for p in tmp_path.iterdir()] == ["f.onnx"]
    metadata = ort.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert metadata["tfexport_graph"] == "forward"
    assert json.loads(metadata["tfexport_config"])["eos_id"] == 2
    assert json.loads(metadata["tfexport_parity"])["passed"]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    state["generator.bias"] += 0.01
    torch.save(state, tmp_path / "other.pt")
    report = verify(path, tmp_path / "other.pt")
    failure = report.first_failure()
    assert failure is not None
    assert failure.stage == "forward"


def test_table_that_the_projection_is_tied_to_is_in_the_file_once(tmp_path: Path) -> None:
    config = TransformerConfig(
        d_model=64, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=16,
        source_vocab_size=500, target_vocab_size=500, tie_embeddings=True, tie_output=True,
        max_positions=40,
    )  # fmt: skip
    model = build_transformer(config)
    export(model, tmp_path / "f.onnx", graph="forward", verify=False)
    weights = sum(p.numel() * 4 for p in model.parameters()) + 40 * 64 * 4
    assert (tmp_path / "f.onnx").stat().st_size < 1.05 * weights + 256 * 1024
