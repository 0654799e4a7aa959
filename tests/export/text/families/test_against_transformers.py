"""Tokenizers of folders of every family against those that transformers makes of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.support import tokenizer_folders as folders
from tests.support.awkward_text import (
    decode_differences,
    encode_differences,
    framing_differences,
)

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
MOVED, PIECES = "sentencepiece.bpe.model", "spiece.model"
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
LANGUAGES = ["eng_Latn", "fra_Latn", "zho_Hans"]
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
WMT21 = ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": True}
MASK |= {"normalized": False, "single_word": False}


def model_file(model_type: str, name: str, **settings: Any) -> Callable[[Path], Path]:
    return lambda folder: folders.model_file_folder(folder, model_type, name, **settings)


def merges(model_type: str, first: list[str], **settings: Any) -> Callable[[Path], Path]:
    return lambda folder: folders.merges_folder(folder, model_type, first, **settings)


def nllb(**settings: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        folder.mkdir()
        made = folders.spaced_bpe(FIRST, [*LANGUAGES, "<mask>"])
        rules = tokenizers.normalizers.Precompiled(folders.charsmap_of(folder))
        made.normalizer = tokenizers.normalizers.Sequence([rules])
        values = {"tokenizer_class": "NllbTokenizer", **settings}
        return folders.tokenizer_json_folder(folder, "m2m_100", made, **values)

    return make


def as_it_is(model_type: str, **settings: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        first = [*FIRST, "<extra_id_1>", "<extra_id_0>"]
        made = folders.spaced_bpe(first)
        made.enable_truncation(3)
        return folders.tokenizer_json_folder(folder, model_type, made, **settings)

    return make


CASES: dict[str, Callable[[Path], Path]] = {
    "m2m100": folders.m2m100_folder,
    "m2m100 of wmt21, special languages": lambda folder: folders.m2m100_folder(
        folder,
        language_codes="wmt21",
        clean_up_tokenization_spaces=True,
        additional_special_tokens=[f"__{code}__" for code in WMT21],
    ),
    "plbart": folders.plbart_folder,
    "plbart of programs": lambda folder: folders.plbart_folder(
        folder, language_codes="multi", clean_up_tokenization_spaces=False
    ),
    "t5": model_file("t5", PIECES),
    "t5, cleaned up": model_file(
        "t5", PIECES, clean_up_tokenization_spaces=True, extra_ids=7, tokenizer_class="T5Tokenizer"
    ),
    "t5 with sentinels": model_file(
        "t5", PIECES, additional_special_tokens=SENTINELS, bos_token="<s>"
    ),
    "mt5": model_file("mt5", PIECES, extra_ids=0, tokenizer_class="T5TokenizerFast"),
    "umt5": as_it_is("umt5", tokenizer_class="T5Tokenizer", eos_token="</s>", pad_token="<new>"),
    "pegasus": model_file("pegasus", PIECES),
    "pegasus, moved less": model_file(
        "pegasus", PIECES, mask_token="<mask_2>", mask_token_sent="<mask_1>", offset=20
    ),
    "mbart": model_file("mbart", MOVED, src_lang="fr_XX", mask_token=MASK),
    "mbart50": model_file("mbart", MOVED, tokenizer_class="MBart50Tokenizer"),
    "nllb": nllb(additional_special_tokens=LANGUAGES, legacy_behaviour=True),
    "bart": merges("bart", [*FIRST, "<mask>"], clean_up_tokenization_spaces=True),
    "bart with a space before": merges("bart", [*FIRST, "<mask>"], add_prefix_space=True),
    "blenderbot": merges("blenderbot", ["<s>", "</s>", "<pad>", "<unk>"]),
    "blenderbot-small": folders.blenderbot_small_folder,
    "byt5 without a file": folders.byt5_folder,
    "byt5 with settings": lambda folder: folders.byt5_folder(
        folder, extra_ids=2, pad_token={**MASK, "content": "<pad>", "lstrip": False}
    ),
    "of no class": as_it_is(
        "bart", tokenizer_class="PreTrainedTokenizerFast", mask_token="<mask>", image_token="<n>"
    ),
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
NAMED |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
# Without lists in tokenizer_config.json: special_tokens_map.json, and tokens behind the vocabulary.
OLDER: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "bart": ("bart", {"additional_special_tokens": ["<n>"]}, {"<n>": 330, "@@": 331}),
    "marian": ("marian", {"additional_special_tokens": [">>fra<<"]}, {"<n>": 141, "__en__": 142}),
    "mbart": ("mbart", {"additional_special_tokens": ["<n>", "ar_AR"]}, {}),
    "pegasus": ("pegasus", {"additional_special_tokens": ["<mask_1>", "<unk_2>"]}, {}),
    "t5": ("t5", {"additional_special_tokens": SENTINELS}, {}),
    "m2m100": ("m2m100", {"additional_special_tokens": ["__af__", "__am__"]}, {}),
}
SAVED_AGAIN = [
    "m2m100",
    "plbart",
    "t5",
    "pegasus",
    "mbart",
    "mbart50",
    "nllb",
    "bart",
    "of no class",
]


def compare(folder: Path, judge: Any) -> None:
    source, target = folders.load_both(folder)
    assert encode_differences(source, judge) == []
    assert framing_differences(source, judge) == []
    assert decode_differences(target, judge, range(source.size)) == []


@pytest.mark.parametrize("name", CASES)
def test_text_in_and_out_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = CASES[name](tmp_path / "made")
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    compare(folder, judge)
    if name in SAVED_AGAIN:
        saved = folders.saved_again(judge, folder, tmp_path / "saved")
        compare(saved, transformers.AutoTokenizer.from_pretrained(saved))


@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read_as_transformers_reads_them(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    case, tokens, added = OLDER[name]
    make = folders.marian_folder if case == "marian" else CASES[case]
    folder = make(tmp_path)
    names = {key: NAMED[key] for key in ("eos_token", "unk_token", "pad_token")}
    names = NAMED if case in ("bart", "mbart") else names
    folders.write_json(folder / "special_tokens_map.json", {**names, **tokens})
    folders.write_json(folder / "added_tokens.json", added)
    compare(folder, transformers.AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("lower", [False, True])
def test_fsmt_is_that_of_transformers(tmp_path: Path, lower: bool) -> None:
    pytest.importorskip("sacremoses")
    transformers = pytest.importorskip("transformers")
    folder = folders.fsmt_folder(tmp_path, do_lower_case=lower)
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    source, target = folders.load_both(folder)
    assert encode_differences(source, judge) == []
    assert decode_differences(target, judge, range(target.size)) == []
