"""Checkpoint to quantised bundle or file: compared in float32, then the same weights in both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner, Result

from tests.conftest import SETTINGS
from tests.export.conftest import TEXT_SIZE, make_wide
from tests.support import tutorial
from tfexport.cli.main import cli
from tfexport.errors import BundleError, ConfigError, QualityError
from tfexport.export import export, quantize, verify
from tfexport.export.ir_tools.quantization import quantize_per_row
from tfexport.export.quantization.quality import Quality
from tfexport.runtime.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("few_shapes")

FEEDS = {
    "input_ids": np.array([[5, 6, 7, 40, 9], [8, 22, 61, 0, 0], [9, 4, 4, 11, 88]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    "max_length": np.array(12),
}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "ids.txt"
    rows = np.random.default_rng(0).integers(3, 90, size=(12, 7))
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def decode(path: Path) -> tuple[Any, ...]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return tuple(ort.InferenceSession(path, options).run(["sequences", "scores"], FEEDS))


def test_file_says_what_the_bundle_says(
    tmp_path: Path, wide: tutorial.TutorialModel, wide_bundle: Path
) -> None:
    file = tmp_path / "q.onnx"
    written = export(wide, file, graph="generate", quantize="int4", config=SETTINGS)
    assert written.quality is None
    assert (written.kind, written.weights, written.size) == (
        "generate",
        "int4",
        file.stat().st_size,
    )
    assert written.report is not None
    assert written.report.passed
    quantize(wide_bundle, tmp_path / "q.bundle", "int4")
    found, wanted = decode(file), decode(tmp_path / "q.bundle" / "generate.onnx")
    assert (found[0] == wanted[0]).all()
    assert found[1] == pytest.approx(wanted[1], abs=1e-5)
    assert found[1] != pytest.approx(decode(wide_bundle / "generate.onnx")[1], abs=1e-4)
    names = [value.name for value in ort.InferenceSession(file).get_overridable_initializers()]
    assert not names, "onnxruntime warns of inputs that need not be fed"
    with pytest.raises(BundleError, match=r"int4 weights.*verify a float32 export"):
        verify(file, wide, config=SETTINGS)


def test_a_tied_table_is_in_the_file_once(tmp_path: Path) -> None:
    file, model = tmp_path / "q.onnx", make_wide(tied=True)
    export(model, file, graph="generate", quantize="int8", config=SETTINGS, verify=False)
    table = model.tgt_tok_emb.embedding.weight.detach().numpy()
    rows = quantize_per_row(table)[0]
    content = file.read_bytes()
    assert content.count(rows.tobytes()) == 1
    assert content.count(np.ascontiguousarray(rows.T).tobytes()) == 0
    assert content.count(table.tobytes()) == 0


@pytest.mark.exhaustive
def test_what_hurts_stays_float32_in_the_file_too(
    tmp_path: Path,
    wide: tutorial.TutorialModel,
    wide_bundle: Path,
    samples: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A bar that only a model without its worst two parameters quantised takes.
    rounds: list[int] = []

    def passed(self: Quality) -> bool:
        rounds.append(1)
        return len(rounds) > 2

    monkeypatch.setattr(Quality, "passed", property(passed))
    file = tmp_path / "q.onnx"
    judged = export(
        wide,
        file,
        graph="generate",
        quantize="int8",
        samples=samples,
        config=SETTINGS,
        verify=False,
    )
    assert len(judged.kept) == 2
    rounds.clear()
    made = quantize(wide_bundle, tmp_path / "q.bundle", samples=samples)
    assert made.kept == judged.kept
    found, wanted = decode(file), decode(tmp_path / "q.bundle" / "generate.onnx")
    assert (found[0] == wanted[0]).all()
    assert found[1] == pytest.approx(wanted[1], abs=1e-5)
    shown = CliRunner().invoke(cli, ["inspect", str(file)]).stdout
    assert ", before quantising" in shown
    assert f"in float32: {', '.join(judged.kept)}" in shown
    facts = json.loads(CliRunner().invoke(cli, ["inspect", str(file), "--json"]).stdout)
    assert facts["quantization"] == made.manifest.quantization


@pytest.mark.exhaustive
def test_failing_the_gate_leaves_nothing(
    tmp_path: Path, wide: tutorial.TutorialModel, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfexport.export.quantization.quality.LEAST_AGREEMENT", 1.1)
    monkeypatch.setattr("tfexport.export.quantization.bundle.MOST_KEPT", 1)
    with pytest.raises(QualityError, match="int8 weights change too much"):
        export(wide, tmp_path / "q.onnx", graph="generate", quantize="int8", samples=samples,
                               config=SETTINGS)  # fmt: skip
    assert list(tmp_path.iterdir()) == [samples]
    for name, graph in (("q.onnx", "generate"), ("q.bundle", None)):
        made = export(
            wide, tmp_path / name, graph=graph, quantize="int8", samples=samples, accept_loss=True,
            config=SETTINGS,
        )  # fmt: skip
        assert made.quality is not None
        assert not made.quality.passed
        assert len(made.kept) == 1


def test_what_cannot_be_quantised_is_refused(tmp_path: Path, wide: tutorial.TutorialModel) -> None:
    with pytest.raises(ConfigError, match="'int3' is not one of int8, int4"):
        export(wide, tmp_path / "q.onnx", graph="generate", quantize="int3", config=SETTINGS)
    with pytest.raises(ConfigError, match="quantize requires a bundle or graph='generate'"):
        export(wide, tmp_path / "q.onnx", graph="forward", quantize="int8", config=SETTINGS)
    with pytest.raises(ConfigError, match="accept_loss requires quantize"):
        export(wide, tmp_path / "q.bundle", accept_loss=True, config=SETTINGS)
    for name, graph in (("q.bundle", None), ("q.onnx", "generate")):
        with pytest.raises(ConfigError, match="accept_loss requires samples"):
            export(wide, tmp_path / name, graph=graph, quantize="int8", accept_loss=True,
                                                                 config=SETTINGS)  # fmt: skip
    with pytest.raises(ConfigError, match="own operators; omit portable"):
        export(
            wide,
            tmp_path / "q.onnx",
            graph="generate",
            quantize="int8",
            config=SETTINGS,
            portable=True,
        )
    assert not list(tmp_path.iterdir())


def command(tmp_path: Path, *args: str) -> Result:
    settings = [f"--set={key}={value}" for key, value in {**SETTINGS, "num_heads": 4}.items()]
    return CliRunner().invoke(
        cli, ["onnx", "--checkpoint", str(tmp_path / "model.pt"), *settings, *args]
    )


def test_one_command_for_a_bundle(tmp_path: Path, wide: tutorial.TutorialModel) -> None:
    torch.save(wide.state_dict(), tmp_path / "model.pt")
    made = tmp_path / "q.bundle"
    done = command(tmp_path, "-o", str(made), "--quantize", "int4")
    assert done.exit_code == 0, done.output
    assert "equal to torch.nn.Transformer" in done.stdout
    assert "int4 weights, not compared with the original" in done.stdout
    assert "Quality not checked" in done.stderr
    manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["parity"]["passed"] is True
    assert manifest["quantization"]["weights"] == "int4"
    for extra in (["--graph", "forward"], ["--portable"], ["--graph", "generate", "--portable"]):
        wrong = command(tmp_path, "-o", str(tmp_path / "x"), "--quantize", "int8", *extra)
        assert wrong.exit_code == 2, wrong.output
        assert "--quantize" in wrong.stderr


@pytest.mark.exhaustive
def test_one_command_for_a_file(
    tmp_path: Path, wide: tutorial.TutorialModel, samples: Path
) -> None:
    torch.save(wide.state_dict(), tmp_path / "model.pt")
    made = str(tmp_path / "q.onnx")
    args = ["-o", made, "--graph", "generate", "--quantize", "int8", "--samples", str(samples)]
    done = command(tmp_path, *args)
    assert done.exit_code == 0, done.output
    assert "q.onnx, before quantising: not compared with your code; equal to torch" in done.stdout
    assert "int8 weights, " in done.stdout
    assert "tokens agree" in done.stdout
    assert "Quality not checked" not in done.stderr


def test_a_quantised_file_takes_and_gives_text(
    tmp_path: Path, text_model: tutorial.TutorialModel
) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    from tests.export.text.test_wrap import CONFIG, lines, pieces

    made, tokenizer = tmp_path / "q.onnx", pieces(tmp_path / "tokenizer.model")
    written = export(
        text_model,
        made,
        graph="generate",
        quantize="int8",
        text=True,
        config=CONFIG,
        tokenizer=tokenizer,
    )
    assert written.report is not None
    assert any("text" in found.stage for found in written.report.comparisons)
    of_ids = tmp_path / "ids.onnx"
    export(text_model, of_ids, graph="generate", quantize="int8", config=CONFIG, verify=False)
    library = load_tokenizer(tokenizer, "sentencepiece", TEXT_SIZE, 0)
    loaded = ort.SessionOptions()
    loaded.log_severity_level = 3
    loaded.register_custom_ops_library(extensions.get_library_path())
    session, exact = ort.InferenceSession(made, loaded), ort.InferenceSession(of_ids, loaded)
    for text in lines()[:6]:
        ids = np.array([[2, *library.encode(text), 3]])
        limit = {"max_length": np.array(12)}
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **limit}
        row = exact.run(["sequences"], feeds)[0][0].tolist()
        wanted = library.decode(row[: row.index(3)] if 3 in row else row)
        assert session.run(["translations"], {"texts": np.array([text]), **limit})[0] == [wanted]
