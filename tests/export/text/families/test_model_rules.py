"""Rules of a SentencePiece model that transformers leaves out: said, and kept if asked for."""

import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tests.support.scripts import script_texts
from tests.support.tokenizer_folders import model_file_folder, train_pieces, write_json
from tfexport.errors import TfexportWarning
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer

SIZE = 700
MBART = "sentencepiece.bpe.model"
TEXTS = [
    "the house  is   small", " Is WORLD ", "ＦＵＬＬ ﬁ ½", "日本 мир größe", "e\u0301te\u0301",
    *script_texts(60),
]  # fmt: skip


def t5_folder(folder: Path, **options: Any) -> Path:
    """T5 with a model of other rules than those of the class."""
    folder.mkdir()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    train_pieces(folder / "spiece.model", 400, **ids, **options)
    write_json(folder / "config.json", {"model_type": "t5"})
    write_json(folder / "tokenizer_config.json", {"extra_ids": 10})
    return folder


def written(files: Any, folder: Path) -> Tokenizer:
    folder.mkdir()
    entry = files.copy(folder)["source"]
    return load_tokenizer(folder / entry.file, entry.kind, SIZE, None)


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "bytes": ({"byte_fallback": True}, "unknown characters are bytes"),
    "merges": ({"model_type": "bpe"}, "made by merges"),
    "no prefix": ({"add_dummy_prefix": False}, "no space is put before a text"),
    "spaces": ({"remove_extra_whitespaces": False}, "several spaces in a row are kept"),
    "suffix": ({"treat_whitespace_as_suffix": True}, "a space belongs to the word before it"),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_that_are_left_out_are_said_and_kept_if_asked_for(tmp_path: Path, name: str) -> None:
    options, said = RULES[name]
    folder = t5_folder(tmp_path / "t5", **options)
    with pytest.warns(TfexportWarning, match=said):
        left_out = written(choose_tokenizers(folder=folder), tmp_path / "library")
    path = folder / "spiece.model"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = written(choose_tokenizers(path, folder=folder), tmp_path / "model")
    judge = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert [kept.encode(text) for text in TEXTS] == [judge.encode(text) for text in TEXTS]
    assert [left_out.encode(text) for text in TEXTS] != [judge.encode(text) for text in TEXTS]
    rows = [[i for i in judge.encode(text) if i != judge.unk_id()] for text in TEXTS]
    assert [kept.decode(row) for row in rows] == [judge.decode(row).strip() for row in rows]
    # The tokens after the pieces have the ids of the folder in both.
    assert kept.find("<extra_id_0>") == left_out.find("<extra_id_0>") == judge.get_piece_size() + 9
    assert kept.encode("a<extra_id_0>")[-1] == kept.find("<extra_id_0>")


def test_normalization_of_mbart_is_said_and_kept_with_moved_ids(tmp_path: Path) -> None:
    folder = model_file_folder(tmp_path / "mbart", "mbart", MBART)
    with pytest.warns(TfexportWarning, match="characters are normalized"):
        left_out = written(choose_tokenizers(folder=folder), tmp_path / "library")
    files = choose_tokenizers(folder / MBART, folder=folder)
    assert files.languages == choose_tokenizers_of(folder).languages
    kept = written(files, tmp_path / "model")
    judge = sentencepiece.SentencePieceProcessor(model_file=str(folder / MBART))
    moved = [[i + 1 if i else 3 for i in judge.encode(text)] for text in TEXTS]
    assert [kept.encode(text) for text in TEXTS] == moved
    full = unicodedata.normalize("NFKC", "ＦＵＬＬ")
    assert kept.encode("ＦＵＬＬ") == kept.encode(full) != left_out.encode("ＦＵＬＬ")
    assert kept.find("en_XX") == left_out.find("en_XX")


def choose_tokenizers_of(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return choose_tokenizers(folder=folder)


def test_a_usual_model_is_read_without_a_word(tmp_path: Path) -> None:
    folder = t5_folder(tmp_path / "t5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_tokenizers(folder=folder)
