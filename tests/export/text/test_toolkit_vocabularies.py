"""Vocabularies of toolkits: fairseq's dictionaries, and those inside checkpoints of OpenNMT-py."""

from pathlib import Path

import pytest

from tests.support.toolkits import opennmt_py
from tfexport.errors import TokenizerError
from tfexport.export.text.tokenizer_files import TokenizerFiles, kind_of
from tfexport.export.text.vocabularies import read_vocabulary_file
from tfexport.model_src import load_checkpoint


def dictionary(folder: Path, text: str) -> Path:
    path = folder / "dict.de.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_dictionary_has_four_words_before_its_lines(tmp_path: Path) -> None:
    path = dictionary(tmp_path, "a@@ 9\nä 7\nmadeupword0000 0\n")
    found = read_vocabulary_file(path)
    assert found.words == ["<s>", "<pad>", "</s>", "<unk>", "a@@", "ä", "madeupword0000"]
    assert (found.default, found.split) == (3, "whitespace")
    assert kind_of(path) == "vocabulary"


@pytest.mark.parametrize("text", ["a 9\nb\n", "a 9\n\nb 1\n", "a 9\na 3\n", "a 9\nb c\n"])
def test_dictionary_with_something_wrong_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TokenizerError, match=r"dict\.de\.txt: "):
        read_vocabulary_file(dictionary(tmp_path, text))


def test_list_of_that_name_without_counts_stays_a_list(tmp_path: Path) -> None:
    assert kind_of(dictionary(tmp_path, "a\nb\n")) == "words"


@pytest.mark.parametrize("version", [2, 3])
def test_words_inside_a_checkpoint_are_split_at_white_space(tmp_path: Path, version: int) -> None:
    case = opennmt_py.write(4, tmp_path, version)
    files = TokenizerFiles(Path(f"{case.path}:src"), Path(f"{case.path}:tgt"))
    source, target = files.load(load_checkpoint(case.path).config)
    assert source.encode("w3 w0 other") == [7, 4, 0]
    assert target.decode([5, 4]) == "w1 w0"
    assert (source.size, target.size) == case.vocab
