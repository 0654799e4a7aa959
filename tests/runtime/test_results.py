"""The JSON form of results."""

import json
import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfexport.runtime import Hypothesis, TranslationResult, Translator


def test_a_result_says_its_best_hypothesis() -> None:
    result = TranslationResult("w5", [Hypothesis([5], -0.5)], [6, 2], ["w5"])
    expected = {"text": "w5", "tokens": [5], "score": -0.5, "finished": True}
    assert result.to_dict() == expected
    assert result.to_dict(hypotheses=True) == {**expected, "hypotheses": [expected]}


def test_several_hypotheses_are_listed_unless_one_is_asked_for() -> None:
    made = [Hypothesis([5], -0.5), Hypothesis([], -1.0, finished=False)]
    result = TranslationResult("w5", made, [6, 2], ["w5", ""])
    assert result.to_dict()["hypotheses"] == [
        {"text": "w5", "tokens": [5], "score": -0.5, "finished": True},
        {"text": "", "tokens": [], "score": -1.0, "finished": False},
    ]
    assert "hypotheses" not in result.to_dict(hypotheses=False)


def test_ids_have_no_text_and_scores_that_were_left_out_are_null() -> None:
    values = TranslationResult(None, [Hypothesis([5], math.nan)], [6]).to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == {
        "text": None, "tokens": [5], "score": None, "finished": True,
    }  # fmt: skip


def test_attention_comes_with_its_source_and_an_alignment() -> None:
    attention = np.array([[0.1, 0.7, 0.2]], np.float32)
    made = Hypothesis([5], -0.5, attention, [-0.25, -0.75])
    values = TranslationResult("w5", [made], [4, 6, 2], ["w5"], (1, 1)).to_dict()
    assert values["token_scores"] == [-0.25, -0.75]
    assert values["source_tokens"] == [4, 6, 2]
    assert values["attention"] == [[0.1, 0.7, 0.2]]
    assert values["alignment"] == "0-0"


def test_all_that_can_be_asked_for_is_json(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, threads=1)
    options: dict[str, Any] = {
        "max_length": 4, "return_attention": True, "return_token_scores": True,
    }  # fmt: skip
    for made in translator.translate(["w5 w6", ""], beam_size=2, num_hypotheses=2, **options):
        values = made.to_dict()
        assert json.loads(json.dumps(values)) == values
        assert values["tokens"] == made.hypotheses[0].tokens
    (scored,) = translator.score(["w5"], ["w6"], return_token_scores=True)
    assert scored.to_dict()["tokens"] == scored.tokens


@pytest.mark.parametrize("asynchronous", [False, True])
def test_unknown_tokens_of_the_source_are_counted(tiny_bundle: Path, asynchronous: bool) -> None:
    """Words of other alphabets, of which the model sees nothing."""
    translator = Translator(tiny_bundle, 1)
    texts = ["w5 w6", "w5 слово w6 <b>", ""]
    made: Any = translator.translate(texts, max_length=3, asynchronous=asynchronous)  # type: ignore[call-overload]
    results = made.result(60) if isinstance(made, Future) else made
    assert [result.unknown_tokens for result in results] == [0, 2, 0]
    assert results[1].to_dict()["unknown_tokens"] == 2
    assert "unknown_tokens" not in results[0].to_dict()
    unk = translator.manifest.special_ids.unk
    assert unk is not None
    (of_ids,) = translator.generate([[5, unk, unk, unk]], max_length=3)
    assert of_ids.unknown_tokens == 3
