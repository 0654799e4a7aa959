"""The JSON form of results."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

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
