"""Texts, ids, prefixes and vocabulary maps of wrong types: said in words, all at once."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.errors import ConfigError, InputError
from tfexport.runtime import Translator


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(VERSION_1, threads=1)


@pytest.mark.parametrize("wrong", [0.5, 5, None, object(), b"w5", "w5"])
def test_what_is_no_list_is_said_to_be_none(translator: Translator, wrong: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: translator.translate(wrong),
        lambda: translator.generate(wrong),
        lambda: translator.score(wrong, ["w5"]),
        lambda: translator.score(["w5"], wrong),
    ]
    for call in calls:
        with pytest.raises(InputError, match="expected a list of"):
            call()


@pytest.mark.parametrize("wrong", [0.5, 5, object(), b"w5", "w5"])
def test_prefixes_that_are_no_list_are_named_with_other_problems(
    translator: Translator, wrong: Any
) -> None:
    with pytest.raises(ConfigError, match=r"(?s)beam_size.*target_prefix: expected a list of"):
        translator.generate([[5]], target_prefix=wrong, beam_size=0)


def test_prefixes_may_come_from_any_iterable(translator: Translator) -> None:
    prefixes: Any = iter([[6]])
    found = translator.generate([[5]], target_prefix=prefixes, max_length=2)
    assert found[0].hypotheses[0].tokens[0] == 6


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([10**5000], "id .{,60} is not in the vocabulary"),
        ([1.5], "1.5 is not an integer"),
        (["5"], "'5' is not an integer"),
        (7, "expected a list of ids, found 7"),
        ("x" * 1000, "expected a list of ids, found .x+[.]+x+.$"),
    ],
)
def test_row_that_is_none_is_named_in_few_words(
    translator: Translator, row: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        translator.generate([row])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"vocabulary map: \[\] is neither a file nor ids to ids"),
        (5, "vocabulary map: 5 is neither a file nor ids to ids"),
        ("\0", "not the name of a file"),
        ("\ud800", "not the name of a file"),
        ({4: None}, "entry 4: expected a list of ids, found None"),
        ({4: ["w5"]}, "entry 4: 'w5' is not an integer"),
        ({4: [10**20]}, "entry 4: id 1000"),
        ({None: [4]}, "entry None: None is not an integer"),
        ({"w4": [[4]]}, r"entry 'w4': \[4\] is not a token; a token is mapped to tokens"),
        ({"w4": None}, "entry 'w4': expected a list of tokens, found None"),
        ({"w4": ["\ud800"]}, r"entry 'w4': '\\ud800' is not a token of the vocabulary"),
    ],
)
def test_vocabulary_map_of_a_wrong_type_is_an_input_error(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Translator(VERSION_1, threads=1, vocabulary_map=given)


def test_vocabulary_map_may_name_tokens() -> None:
    given: Any = {"w4": ["w5"], "": ["w6"]}
    assert Translator(VERSION_1, threads=1, vocabulary_map=given)


@pytest.mark.onnxruntime  # the native engine compares these sizes with its weights
def test_unknown_id_beyond_the_target_vocabulary_needs_no_suppressing(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "a.bundle")

    def change(values: dict[str, Any]) -> None:
        values["special_ids"]["unk"] = values["config"]["unk_id"] = 19
        values["limits"]["source_vocab_size"] = values["config"]["source_vocab_size"] = 20

    rewrite(tmp_path / "a.bundle", change)
    found = Translator(tmp_path / "a.bundle").generate([[5]], disable_unk=True, max_length=2)
    assert len(found[0].hypotheses[0].tokens) == 2
