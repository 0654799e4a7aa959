"""Marian's tokenizers of a folder against those of transformers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.awkward_text import decode_differences, encode_differences
from tests.support.tokenizer_folders import load_both, marian_folder, write_json
from tfexport.errors import MissingDependencyError, TokenizerError
from tfexport.export.text.tokenizer_files import choose_tokenizers


def judge(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("separate", [False, True])
def test_text_in_and_out_are_those_of_transformers(tmp_path: Path, separate: bool) -> None:
    folder = marian_folder(tmp_path, separate)
    source, target = load_both(folder)
    other = judge(folder)
    assert encode_differences(source, other) == []
    assert encode_differences(target, other, target=True) == []
    assert decode_differences(target, other, range(target.size)) == []


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_settings_of_the_folder_are_followed(tmp_path: Path) -> None:
    """White space around an added token, tokens without an id, punctuation that is cleaned up."""
    mask = {"content": "<mask>", "lstrip": True, "rstrip": True, "single_word": False}
    eos = {"content": "</s>", "lstrip": False, "rstrip": True, "single_word": False}
    folder = marian_folder(
        tmp_path,
        clean_up_tokenization_spaces=True,
        mask_token="<mask>",
        added_tokens_decoder={
            "0": {**eos, "normalized": False, "special": True},
            "200": {**mask, "normalized": False, "special": True},
        },
    )
    source, target = load_both(folder)
    other = judge(folder)
    assert source.find("<mask>") == 200
    assert encode_differences(source, other) == []
    assert decode_differences(target, other, range(141)) == []


def test_languages_are_the_codes_of_the_vocabulary(tmp_path: Path) -> None:
    found = choose_tokenizers(folder=marian_folder(tmp_path)).model
    assert found is not None
    assert found.languages is not None
    assert found.languages.ids == {"fra": 2, "deu": 3}
    assert (found.languages.source_place, found.languages.target_place) == (None, "source")
    separate = choose_tokenizers(folder=marian_folder(tmp_path / "two", separate=True)).model
    assert separate is not None
    assert separate.languages is None


def change(name: str, **values: Any) -> Any:
    def write(folder: Path) -> None:
        old = json.loads((folder / name).read_text(encoding="utf-8"))
        write_json(folder / name, {**old, **values})

    return write


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "vocab.json").unlink(), r"vocab\.json of the tokenizer is missing"),
        (lambda f: [(f / n).unlink() for n in ("source.spm", "target.spm")], "spm and target.spm"),
        (lambda f: write_json(f / "vocab.json", {"<unk>": 0, "a": 2}), "id 1 has none"),
        (lambda f: write_json(f / "vocab.json", {"a": 0}), "has no '<unk>'"),
        (lambda f: write_json(f / "vocab.json", {"a": "0"}), "'a' has '0', not an id"),
        (lambda f: write_json(f / "vocab.json", ["a"]), "is not an object"),
        (lambda f: (f / "vocab.json").write_text("{"), "not JSON"),
        (lambda f: (f / "source.spm").write_bytes(b"xx"), "not a SentencePiece model"),
        (change("config.json", share_encoder_decoder_embeddings=False), "separate_vocabs"),
        (change("tokenizer_config.json", separate_vocabs=True), r"target_vocab\.json"),
        (change("tokenizer_config.json", separate_vocabs=1), "is not of type bool"),
        (
            change("tokenizer_config.json", tokenizer_class="BertTokenizer"),
            "the tokenizer class .* is not supported",
        ),
        (change("tokenizer_config.json", sp_model_kwargs={"alpha": 0.1}), "sp_model_kwargs"),
        (change("tokenizer_config.json", unk_token=5), "neither a string nor a token"),
        (change("tokenizer_config.json", added_tokens_decoder={"x": "a"}), "'x' is not an id"),
        (change("tokenizer_config.json", added_tokens_decoder={"7000": {"content": "a"}}), "7000"),
    ],
)
def test_folder_with_something_wrong_is_one_error(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = marian_folder(tmp_path)
    spoil(folder)
    with pytest.raises(TokenizerError, match=message):
        load_both(folder)


def test_folder_without_a_tokenizer_is_one_of_ids(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "marian"})
    assert choose_tokenizers(folder=tmp_path).paths == ()


def test_a_missing_library_and_a_damaged_file_are_told_by_the_names_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = marian_folder(tmp_path)
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(MissingDependencyError) as caught:
            load_both(folder)
    assert f"{folder / 'source.spm'} needs the sentencepiece library. Install it" in str(
        caught.value
    )
    (folder / "target.spm").write_bytes(b"garbage")
    with pytest.raises(TokenizerError) as damaged:
        load_both(folder)
    assert f"{folder / 'target.spm'}: not a SentencePiece model" in str(damaged.value)
    assert "target.model" not in f"{caught.value}{damaged.value}"
