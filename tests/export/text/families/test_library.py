"""Folders of tokenizers of the library ``tokenizers``: languages, and what is wrong with some."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tests.support import tokenizer_folders as folders
from tfexport.errors import TfexportWarning, TokenizerError
from tfexport.export.text.tokenizer_files import choose_tokenizers
from tfexport.languages import Languages

MOVED, PIECES = "sentencepiece.bpe.model", "spiece.model"
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]


def languages(folder: Path) -> Languages:
    found = choose_tokenizers(folder=folder).languages
    assert found is not None
    return found


def nllb(folder: Path, **settings: Any) -> Path:
    made = folders.spaced_bpe(FIRST, ["eng_Latn", "fra_Latn", "<mask>"])
    values = {"tokenizer_class": "NllbTokenizer", **settings}
    return folders.tokenizer_json_folder(folder, "m2m_100", made, **values)


def test_languages_go_where_each_family_has_them(tmp_path: Path) -> None:
    mbart = folders.model_file_folder(tmp_path / "a", "mbart", MOVED, tgt_lang="ro_RO")
    with pytest.warns(TfexportWarning, match="transformers 5 leaves out rules of this model"):
        found = languages(mbart)
    assert (found.source_place, found.target_place) == ("after", "start")
    assert (found.source, found.target, len(found.ids)) == ("en_XX", "ro_RO", 25)
    with pytest.warns(TfexportWarning):
        source, _ = folders.load_both(mbart)
    assert found.ids["ar_AR"] == source.find("ar_AR") == source.size - 26

    settings = {"tokenizer_class": "MBart50Tokenizer"}
    found = languages(folders.model_file_folder(tmp_path / "b", "mbart", MOVED, **settings))
    assert (found.source_place, found.target_place, len(found.ids)) == ("before", "first", 52)

    found = languages(nllb(tmp_path / "c"))
    assert found == Languages(
        {"eng_Latn": 150, "fra_Latn": 151}, "before", "first", "eng_Latn", None
    )
    found = languages(nllb(tmp_path / "d", legacy_behaviour=True, src_lang="fra_Latn"))
    assert (found.source_place, found.source) == ("after", "fra_Latn")

    found = languages(folders.m2m100_folder(tmp_path / "e"))
    assert (found.source_place, found.target_place, found.source) == ("before", "first", "en")
    assert found.ids["af"] == 101
    found = languages(folders.plbart_folder(tmp_path / "f", src_lang="__python__"))
    assert (found.source_place, found.target_place, found.source) == ("after", "start", "python")
    assert [*found.ids] == ["java", "python", "en_XX"]


def test_target_languages_of_madlad_are_pieces_of_the_text(tmp_path: Path) -> None:
    folder = folders.madlad_folder(tmp_path / "model")
    assert choose_tokenizers(folder=folder).languages is None
    judge = sentencepiece.SentencePieceProcessor(model_file=str(folder / PIECES))
    source, target = folders.load_both(folder)
    for text in ("<2de> the house is small.", "<2zh_Hant> x", "<2en>we", "  <2de> a <2en> b"):
        assert source.encode(text) == judge.encode(text)
        assert judge.piece_to_id("<2de>") == 3
        assert source.decode(judge.encode(text)) == judge.decode(judge.encode(text))
    assert source.encode("<2de> x")[:2] == [judge.piece_to_id("▁"), 3]  # no token alone
    assert target.decode([3, *judge.encode("the house")]).endswith("the house")


def t5(folder: Path) -> Path:
    return folders.model_file_folder(folder, "t5", PIECES)


def other(folder: Path, **settings: Any) -> Path:
    return folders.tokenizer_json_folder(folder, "t5", folders.spaced_bpe(FIRST), **settings)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (t5, {"extra_ids": "x"}, "extra_ids 'x' is not of type int"),
        (t5, {"extra_ids": 10**9}, "extra_ids 1000000000 is not a number of tokens from 0"),
        (t5, {"split_special_tokens": True}, "split_special_tokens True is not supported"),
        (
            t5,
            {"tokenizer_class": "MarianTokenizer"},
            r"source\.spm and target\.spm and vocab\.json",
        ),
        (t5, {"tokenizer_class": "RobertaTokenizer"}, "adds a start token before every text"),
        (t5, {"extra_special_tokens": [5]}, "neither a string nor a token"),
        (
            t5,
            {"added_tokens_decoder": {"9": {"content": "<x>"}}},
            "with the id 9, but would get 228",
        ),
        (t5, {"tokenizer_class": "PreTrainedTokenizerFast"}, r"tokenizer\.json of the tokenizer"),
        (other, {}, r"type 'BPE'; the tokenizer of this model is Unigram"),
        (nllb, {"src_lang": "xxx_Latn"}, "src_lang 'xxx_Latn' is not a language"),
        (nllb, {"legacy_behaviour": "yes"}, "legacy_behaviour 'yes' is not of type bool"),
    ],
)
def test_folder_with_something_wrong_is_one_error(
    tmp_path: Path, make: Any, settings: dict[str, Any], message: str
) -> None:
    folder = make(tmp_path / "a")
    path = folder / "tokenizer_config.json"
    folders.write_json(path, {**json.loads(path.read_text()), **settings})
    with pytest.raises(TokenizerError, match=message):
        folders.load_both(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("spiece.model", b"", "spiece.model: the file is empty"),
        ("spiece.model", b"garbage", "not a SentencePiece model"),
        ("tokenizer.json", b"{}", "its model is of type None"),
        ("tokenizer.json", b"[]", "is not an object"),
        ("tokenizer.json", b'{"model": {"type": "Unigram"}}', "not the vocabulary of a Unigram"),
        ("tokenizer.json", b'{"model": {"type": "Unigram", "vocab": [["a"]]}}', "not the vocab"),
        ("tokenizer.json", b'{"model": {"type": "Unigram", "vocab": []}}', "not the files of a T5"),
        ("tokenizer_config.json", b"[", "not JSON"),
    ],
)
def test_file_that_is_damaged_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    folder = t5(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        folders.load_both(folder)


def test_ids_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="ids go up to 227, the model's vocabulary ends at 99"):
        folders.load_both(t5(tmp_path), 100)


def test_end_token_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = t5(tmp_path)
    folders.write_json(folder / "config.json", {"model_type": "t5", "eos_token_id": 2})
    with pytest.raises(TokenizerError, match=r"'</s>' has the id 1.*eos_token_id 2"):
        folders.load_both(folder)
    folders.write_json(folder / "config.json", {"model_type": "t5", "eos_token_id": [2, 1]})
    folders.load_both(folder)


def test_files_alone_that_transformers_makes_nothing_of_are_refused(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "NllbTokenizer"}
    folder = folders.model_file_folder(tmp_path / "a", "m2m_100", MOVED, **settings)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        folders.load_both(folder)
    folder = folders.model_file_folder(tmp_path / "b", "umt5", PIECES)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json of the tokenizer is missing"):
        folders.load_both(folder)
