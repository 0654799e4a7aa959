"""Text in, text out: one call of a file that holds the tokenizer too."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import sentencepiece
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.export.conftest import TEXT_SIZE
from tests.support import tutorial
from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.cli.main import cli
from tfexport.errors import ConfigError, MissingDependencyError, TokenizerError
from tfexport.export import export, verify
from tfexport.export.text import text_graphs
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.model_src import load_checkpoint
from tfexport.runtime.text.tokenizer import load_tokenizer

extensions = pytest.importorskip("onnxruntime_extensions")
CONFIG: dict[str, Any] = {
    "pad_id": 1,
    "bos_id": 2,
    "eos_id": 3,
    "unk_id": 0,
    "add_source_bos": True,
    "add_source_eos": True,
}
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]


def lines() -> list[str]:
    text = (REPOSITORY / "examples" / "de-en" / "test.tsv").read_text(encoding="utf-8")
    return [line.partition("\t")[0] for line in text.splitlines()]


def byte_level(path: Path, prefix_space: bool = False, lower: bool = False) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.save(str(path))
    return path


def pieces(path: Path) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=model,
        vocab_size=TEXT_SIZE,
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("kind", few_of(["sentencepiece", "byte-level"], "byte-level"))
def test_one_call_takes_and_gives_text(
    tmp_path: Path, kind: str, text_model: tutorial.TutorialModel
) -> None:
    tokenizer = (
        pieces(tmp_path / "tokenizer.model")
        if kind == "sentencepiece"
        else byte_level(tmp_path / "tokenizer.json")
    )
    samples = tmp_path / "samples.txt"
    samples.write_text("".join(f"{line}\n" for line in lines()[:50]), encoding="utf-8")
    result = export(
        text_model,
        tmp_path / "g.onnx",
        graph="generate",
        config=CONFIG,
        text=True,
        tokenizer=tokenizer,
        samples=samples,
    )
    assert result.report is not None
    stages = {c.stage for c in result.report.comparisons if c.compared}
    assert stages == {"generate", "scores", "text"}
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    session = ort.InferenceSession(tmp_path / "g.onnx", options)
    assert [(v.name, v.shape) for v in session.get_outputs()] == [
        ("translations", ["batch"]),
        ("scores", ["batch"]),
    ]

    def call(texts: list[str], limit: int = 8) -> list[str]:
        feeds = {"texts": np.array(texts, dtype=object), "max_length": np.array(limit)}
        found: list[str] = session.run(["translations"], feeds)[0].tolist()
        return found

    library = load_tokenizer(
        tokenizer, "sentencepiece" if kind == "sentencepiece" else "tokenizers", TEXT_SIZE, 0
    )
    texts = lines()[50:90]
    rows = [[2, *library.encode(text), 3] for text in texts]
    expected = [library.decode(tutorial.greedy(text_model, row, 8, bos=2, eos=3)) for row in rows]
    whole = [i for i, text in enumerate(expected) if "\ufffd" not in text]
    assert len({expected[i] for i in whole}) > 3
    assert call([texts[i] for i in whole]) == [expected[i] for i in whole]
    assert call(["", texts[whole[0]], " \u00a0"]) == ["", expected[whole[0]], ""]
    assert call([texts[0]], 0) == [""]
    assert call([]) == []

    torch.save(text_model.state_dict(), tmp_path / "model.pt")
    given: dict[str, Any] = {"settings": ["num_heads=2"]}
    report = verify(tmp_path / "g.onnx", tmp_path / "model.pt", **given)
    assert report.passed
    assert {c.stage for c in report.comparisons} == {"text"}
    (tmp_path / "real.txt").write_text("".join(f"{line}\n" for line in texts), encoding="utf-8")
    given["samples"] = tmp_path / "real.txt"
    more = verify(tmp_path / "g.onnx", tmp_path / "model.pt", **given)
    assert more.passed
    assert sum(c.batch for c in more.comparisons) > sum(c.batch for c in report.comparisons)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_space": True}, "does not reproduce it: .*becomes"),
        ({"lower": True}, "'Good morning!' becomes"),
    ],
)
def test_tokenizer_that_comes_out_differently_is_refused(
    tmp_path: Path, text_model: tutorial.TutorialModel, options: dict[str, bool], message: str
) -> None:
    tokenizer = byte_level(tmp_path / "tokenizer.json", **options)
    with pytest.raises(TokenizerError, match=f"(?s){message}"):
        export(
            text_model,
            tmp_path / "g.onnx",
            graph="generate",
            config=CONFIG,
            text=True,
            tokenizer=tokenizer,
        )
    assert not (tmp_path / "g.onnx").exists()


def test_kinds_that_no_operator_reproduces_are_refused(
    tmp_path: Path, text_model: tutorial.TutorialModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = REPOSITORY / "examples" / "de-en"
    arguments = ["onnx", "--graph", "generate", "--text", "-o", str(tmp_path / "g.onnx")]
    done = CliRunner().invoke(cli, [*arguments, "--checkpoint", str(demo)])
    assert done.exit_code == 1
    assert "BPE with Metaspace is not reproduced exactly" in done.output
    (tmp_path / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(TEXT_SIZE)))
    for tokenizer, message in (
        (tmp_path / "vocab.txt", "words is not reproduced"),
        (None, "need a tokenizer"),
    ):
        with pytest.raises(TokenizerError, match=message):
            export(
                text_model,
                tmp_path / "g",
                graph="generate",
                config=CONFIG,
                text=True,
                tokenizer=tokenizer,
            )
    with pytest.raises(ConfigError, match="text needs 20 or more, not 18"):
        export(
            text_model,
            tmp_path / "g",
            graph="generate",
            config=CONFIG,
            text=True,
            portable=True,
            opset=18,
        )
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(MissingDependencyError, match="pip install 'onnxruntime-extensions>="):
        text_graphs.check_reproduced(TokenizerFiles(demo, demo), load_checkpoint(demo).config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text"], "--text requires --graph generate"),
        (["--graph", "forward", "--text"], "--text requires --graph generate"),
        (
            ["--graph", "generate", "--samples", "x"],
            "--samples requires a bundle, --text or --quantize",
        ),
        (["--graph", "generate", "--tokenizer", "t.json"], "contains no tokenizer"),
        (["--graph", "forward", "--attention"], "--attention requires"),
        (["--graph", "generate", "--text", "--attention"], "no ids as inputs and outputs"),
    ],
)
def test_contradictory_options_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["onnx", "--checkpoint", "x", "-o", "y", *arguments])
    assert done.exit_code == 2
    assert message in done.output
