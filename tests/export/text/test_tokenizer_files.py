"""Vocabularies chosen for an export: with how text is split, and only with it."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.tutorial_text import SPECIALS
from tfexport.cli.console import spell
from tfexport.errors import ConfigError, TfexportError, TokenizerError
from tfexport.export.text.tokenizer_files import Splits, TokenizerFiles, choose_tokenizers
from tfexport.model_src.config import TransformerConfig
from tfexport.runtime.text.tokenizer import load_tokenizer

WORDS = [*SPECIALS, "iglu", "hund"]
IDS: dict[str, Any] = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}


def config(source: int = 6, target: int = 6, **values: Any) -> TransformerConfig:
    sizes = {"source_vocab_size": source, "target_vocab_size": target}
    return TransformerConfig(8, 2, 1, 1, 12, **{**IDS, **sizes, **values})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the same words in three files, and a foreign tokenizer."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(WORDS))
    (tmp_path / "sp.model").write_bytes(b"\n\x0e")
    return tmp_path


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.json", "vocab.pkl"])
def test_vocabulary_is_written_with_how_text_is_split(folder: Path, name: str) -> None:
    files = choose_tokenizers(folder / name, splits=Splits("basic_english"))
    files.check(config())
    source, _ = files.load(config())
    assert source.encode("Iglu,Katze") == [4, 0, 0]
    (folder / "out").mkdir()
    written = files.copy(folder / "out")
    assert written["source"] == written["target"]
    assert (written["source"].kind, written["source"].file) == ("vocabulary", "vocab.json")
    again = load_tokenizer(folder / "out" / "vocab.json", "vocabulary", 6, 0)
    assert again.encode("Iglu,Katze") == [4, 0, 0]


def test_each_side_may_be_split_in_its_own_way(folder: Path) -> None:
    splits = Splits(source="basic_english", target="whitespace")
    files = choose_tokenizers(folder / "vocab.pkl", splits=splits)
    source, target = files.load(config())
    assert (source.encode("Iglu"), target.encode("Iglu")) == ([4], [0])
    names = {side: entry.file for side, entry in files.copy(folder).items()}
    assert names == {"source": "source-vocab.json", "target": "target-vocab.json"}


def test_list_of_characters_has_the_space_as_a_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, " ", "j", "a", "d"]))
    model = config(8, 8)
    with pytest.raises(TokenizerError, match=r"line 5, ' ', can never.* set split='characters'"):
        choose_tokenizers(tmp_path / "vocab.txt").load(model)
    files = choose_tokenizers(tmp_path / "vocab.txt", splits=Splits("characters"))
    files.check(model)
    source, target = files.load(model)
    assert source.encode("ja da") == [5, 6, 4, 7, 6]
    assert target.decode([2, 5, 6, 4, 7, 6, 3]) == "ja da"


def test_list_of_words_without_a_split_is_copied_as_it_is(folder: Path) -> None:
    files = choose_tokenizers(folder / "vocab.txt")
    (folder / "out").mkdir()
    assert files.copy(folder / "out")["source"].kind == "words"
    assert (folder / "out" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_vocabulary_of_which_is_not_said_how_text_is_split_is_refused(folder: Path) -> None:
    for name in ("vocab.json", "vocab.pkl"):
        with pytest.raises(TokenizerError, match="how text is split") as caught:
            choose_tokenizers(folder / name).check(config())
        told = caught.value.message.spelled(spell)
        assert "--split, or --source-split and --target-split: whitespace, " in told
        assert "\n" not in told, "it is said once for both sides"


def test_problems_of_both_sides_are_told_at_once(folder: Path) -> None:
    files = choose_tokenizers(None, folder / "vocab.pkl", folder / "missing")
    with pytest.raises(TokenizerError, match=r"2 problems:\n.*how text is split.*\n.*no such file"):
        files.check(config())


def test_vocabulary_beside_a_checkpoint_is_not_taken_by_itself(folder: Path) -> None:
    assert choose_tokenizers(folder=folder).source == folder / "vocab.txt"
    (folder / "vocab.txt").unlink()
    assert choose_tokenizers(folder=folder) == TokenizerFiles()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"both": "sp.model", "splits": Splits("whitespace")}, TokenizerError, "splits text itse"),
        ({"both": "no.pkl:de", "splits": Splits("whitespace")}, TokenizerError, "no such file"),
        ({"both": "vocab.pkl", "splits": Splits("moses")}, TokenizerError, "'moses' is not a kno"),
        (
            {"both": "vocab.pkl", "splits": Splits("a", "b")},
            ConfigError,
            "split: set it either for bo",
        ),
        ({"splits": Splits(target="whitespace")}, ConfigError, "split requires tokenizer"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    folder: Path, arguments: dict[str, Any], error: type[TfexportError], message: str
) -> None:
    if "both" in arguments:
        arguments = {**arguments, "both": folder / arguments["both"]}
    with pytest.raises(error, match=message):
        choose_tokenizers(**arguments).check(config())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": 7}, "6 words for the 7 ids of the source vocabulary; each id needs a word"),
        ({"target": 5}, "ids go up to 5, the model's vocabulary ends at 4"),
        ({"unk_id": None}, "id 0 is '<unk>', but the model has no unk_id.*'unk_id=0"),
    ],
)
def test_vocabulary_that_cannot_be_the_models_is_refused(
    folder: Path, values: dict[str, Any], message: str
) -> None:
    files = choose_tokenizers(folder / "vocab.pkl", splits=Splits("whitespace"))
    with pytest.raises(TokenizerError, match=message):
        files.check(config(**values))


def test_a_pipe_or_a_pointer_in_place_of_a_tokenizer_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    pointer = b"version https://git-lfs.github.com/spec/v1\nsize 5\n"
    for name, split in (
        ("a.json", ()),
        ("a.model", ()),
        ("v.txt", ()),
        ("v.pkl", ("whitespace",) * 2),
    ):
        (tmp_path / name).write_bytes(pointer)
        with pytest.raises(TokenizerError, match=f"{name}: a Git LFS pointer"):
            TokenizerFiles(tmp_path / name, tmp_path / name, *split).load(config())
    with pytest.raises(TokenizerError, match=r"pipe\.json: a named pipe, and a file is expected"):
        TokenizerFiles(tmp_path / "pipe.json", tmp_path / "pipe.json").load(config())
