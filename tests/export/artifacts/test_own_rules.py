"""A file that decodes by itself is refused where it would not decode as its model's files say."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf_models import change_json, make_model, save_folder
from tests.support.tokenizer_folders import m2m100_folder
from tfexport.errors import ConfigError
from tfexport.export import export
from tfexport.export.artifacts.checkpoint_source import (
    check_greedy_file,
    needs_language,
    read_for_decoding,
)
from tfexport.export.text.model_tokenizers import find_in_folder
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(name="bart")
def _bart(tmp_path: Path) -> Path:
    return save_folder(make_model("bart"), tmp_path / "bart")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3"),
        ({"min_length": 12, "max_length": 30}, "min_length=11"),
        ({"repetition_penalty": 1.5}, r"repetition_penalty=1\.5"),
        ({"do_sample": True}, "sampling=True"),
        ({"begin_suppress_tokens": [7]}, r"suppress_first_tokens=\[7\]"),
    ],
)
def test_rules_that_a_file_would_lose_are_named(
    bart: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    change_json(bart / "generation_config.json", **settings)
    with pytest.raises(ConfigError, match=rf"a single file cannot contain .*: {message}"):
        export(bart, tmp_path / "out", graph="generate")
    with pytest.raises(ConfigError, match=rf"a single file cannot contain .*: {message}"):
        export(bart, tmp_path / "out", graph="torchscript")
    assert not (tmp_path / "out").exists()


def test_rules_that_it_keeps_are_no_problem(bart: Path) -> None:
    change_json(
        bart / "generation_config.json", num_beams=4, bad_words_ids=[[1]], forced_bos_token_id=0,
        forced_eos_token_id=2, length_penalty=2.0, early_stopping=True,
    )  # fmt: skip
    check_greedy_file(load_checkpoint(bart))


def test_decoding_starts_where_generation_config_says(bart: Path) -> None:
    change_json(bart / "generation_config.json", decoder_start_token_id=9)
    found = read_for_decoding(bart, ReadOptions())
    assert found.special_ids.decoder_start == 9
    assert found.origins["start_id"] == "generation_config.json"


def test_a_target_language_that_every_call_names(tmp_path: Path) -> None:
    text = m2m100_folder(tmp_path / "text")
    tokenizers = find_in_folder(text)
    assert tokenizers is not None
    assert tokenizers.languages is not None
    last = max(tokenizers.languages.ids.values())
    folder = save_folder(make_model("m2m_100", vocab_size=last + 1), tmp_path / "model")
    for file in text.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    assert needs_language(load_checkpoint(folder))
    with pytest.raises(ConfigError, match="the target language, which each call sets"):
        check_greedy_file(load_checkpoint(folder))
    change_json(folder / "generation_config.json", forced_bos_token_id=last)
    check_greedy_file(load_checkpoint(folder))
