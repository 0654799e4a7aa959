"""Rename and ignore tables: names of other projects mapped onto a layout."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_src.checkpoint.files import State, save
from tfexport.errors import ConfigError
from tfexport.model_src import (
    load_checkpoint,
)


def test_foreign_names_are_mapped_by_the_first_pattern_that_matches(
    state: State, tmp_path: Path
) -> None:
    foreign = {
        key.replace("transformer.", "net.core.").replace("src_tok_emb.embedding", "embed_in"): value
        for key, value in state.items()
    }
    foreign["criterion.weight"] = torch.ones(3)
    path = save(
        foreign,
        tmp_path,
        num_heads=4,
        rename=[
            [r"^net\.core\.", "transformer."],
            [r"^embed_in", "src_tok_emb.embedding"],
            [r"^net\.", "never."],
        ],
        ignore=[r"^criterion\."],
    )
    found = load_checkpoint(path)
    assert found.key_report["criterion.weight"] == ()
    assert found.key_report["embed_in.weight"] == ("source_embedding.tokens.weight",)
    expected = load_checkpoint(save(state, tmp_path), settings=["num_heads=4"])
    assert set(found.weights) == set(expected.weights)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rename": [["(", "x"]]}, "'(' is not a regular expression"),
        ({"rename": ["ab"]}, "'ab' is not a [pattern, replacement] pair"),
        ({"rename": {"a": "b"}}, "expected a list of [pattern, replacement] pairs"),
        ({"ignore": [1]}, "ignore: expected a list of patterns"),
        ({"rename": [["^generator.*", "same"]]}, "both become same"),
        ({"rename": [["^generator", r"\9"]]}, "invalid group reference"),
    ],
)
def test_bad_tables_are_refused(
    state: State, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(save(state, tmp_path, num_heads=4, **config))
    assert message in str(caught.value)


def test_a_table_needs_no_process_of_its_own(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/echo")  # as in a program that embeds Python
    wrapped = {f"net.{key}": value for key, value in state.items()}
    path = save(wrapped, tmp_path, num_heads=4, rename=[[r"^net\.", ""]], ignore=["^none"])
    assert load_checkpoint(path).state_dict.keys() == state.keys()
