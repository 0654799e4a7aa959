"""Tokenizers that are exported with a bundle: of every kind, for each side, and refused ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.conftest import CONFIG, SETTINGS
from tests.support import tutorial
from tfexport.errors import ConfigError, TokenizerError
from tfexport.export import export
from tfexport.runtime import Translator

IDS = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]


def make_tokenizers(folder: Path, size: int) -> dict[str, Path]:
    """One small tokenizer of every kind."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, size))]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    vocabulary = {f"w{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    tokenizer.save(str(folder / "t.json"))
    (folder / "corpus").write_text("\n".join(f"ab{i % 3} cd{i % 3}" for i in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus"),
        model_prefix=str(folder / "sp"),
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return {
        "words": folder / "words.txt",
        "tokenizers": folder / "t.json",
        "sentencepiece": folder / "sp.model",
    }


@pytest.mark.parametrize("kind", ["words", "tokenizers", "sentencepiece"])
def test_tokenizer_of_every_kind_travels_in_the_bundle(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel, kind: str
) -> None:
    sides = {}
    for side, size in (("source", 17), ("target", 19)):
        (tmp_path / side).mkdir()
        sides[side] = make_tokenizers(tmp_path / side, size)[kind]
    export(
        tutorial_model,
        tmp_path / "a.bundle",
        config=CONFIG,
        source_tokenizer=sides["source"],
        target_tokenizer=sides["target"],
        verify=False,
    )
    translator = Translator(tmp_path / "a.bundle")
    text = "ab1 cd2" if kind == "sentencepiece" else "w5 w6 w7"
    ids = translator.encode(text)
    assert ids[-1] == 2
    assert len(ids) >= 3, "a cut-off set in the file must not shorten inputs"
    if kind != "sentencepiece":
        assert ids == [5, 6, 7, 2]
    assert isinstance(translator.translate([text], max_length=5)[0].text, str)


def test_each_side_may_have_its_own_tokenizer(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    files = make_tokenizers(tmp_path, 17)
    result = export(
        tutorial_model,
        tmp_path / "a.bundle",
        config=CONFIG,
        source_tokenizer=files["words"],
        target_tokenizer=files["tokenizers"],
        verify=False,
    )
    kinds = {side: entry.kind for side, entry in result.manifest.tokenizers.items()}
    assert kinds == {"source": "words", "target": "tokenizers"}
    assert {"source-vocab.txt", "target-tokenizer.json"} <= set(result.manifest.files)


def test_tokenizer_beside_the_checkpoint_is_taken(tmp_path: Path, tiny_checkpoint: Path) -> None:
    make_tokenizers(tmp_path, 17)["tokenizers"].rename(tmp_path / "tokenizer.json")
    shutil.copy(tiny_checkpoint, tmp_path / "model.pt")
    result = export(tmp_path, tmp_path / "a.bundle", settings=["num_heads=2", *IDS], verify=False)
    assert result.tokenizers == (tmp_path / "tokenizer.json",)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (
            {"tokenizer": "big"},
            TokenizerError,
            "ids go up to 19, the model's vocabulary ends at 16",
        ),
        ({"tokenizer": "missing"}, TokenizerError, "no such file"),
        ({"tokenizer": "broken.json"}, TokenizerError, "not a tokenizer.json"),
        ({"tokenizer": "broken.model"}, TokenizerError, "not a SentencePiece model"),
        ({"tokenizer": "twice"}, TokenizerError, "'a' is on line 1 and on line 3"),
        (
            {"source_tokenizer": "big"},
            ConfigError,
            "set both source_tokenizer and target_tokenizer",
        ),
        (
            {"tokenizer": "big", "target_tokenizer": "big"},
            ConfigError,
            "set it either for both sides",
        ),
    ],
)
def test_tokenizer_that_does_not_fit_is_refused_before_the_export(
    tmp_path: Path, choice: dict[str, str], error: type[Exception], message: str
) -> None:
    (tmp_path / "big").write_text("\n".join(f"w{i}" for i in range(20)))
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "broken.model").write_text("no model")
    (tmp_path / "twice").write_text("a\nb\na\n")
    files: dict[str, Any] = {key: tmp_path / name for key, name in choice.items()}
    with pytest.raises(error, match=message):
        export(tutorial.make(), tmp_path / "a.bundle", config=SETTINGS, **files)
    assert not (tmp_path / "a.bundle").exists()
