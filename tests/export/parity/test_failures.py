"""What a failure says: where, how much, compared with what, and possible causes."""

import pytest

from tfexport.errors import ParityError
from tfexport.export.parity import Comparison, ParityReport
from tfexport.export.report import distinct_figures


def failure(*comparisons: Comparison, not_run: str | None = "") -> str:
    found = [*comparisons]
    return str(ParityReport("theirs", found, not_run=not_run, measured_by="float64").failure())


def test_two_figures_have_as_many_digits_as_tell_them_apart() -> None:
    assert distinct_figures(1.0004e-4, 1e-4) == ("0.00010004", "0.0001")
    assert distinct_figures(0.3, 1e-4) == ("0.3", "0.0001")


def test_failure_says_how_many_times_and_beside_which_noise() -> None:
    said = failure(
        Comparison("full prefix", 2, 33, 0.003, 9, noise=2e-4), Comparison("generate", 2, 33, 0, 9)
    )
    assert "full prefix: differs by 0.003, 3 times the 0.001 that is allowed" in said
    assert "(batch 2, source length 33, drawn); no token differs." in said
    assert "theirs itself rounds by 0.0002 here (by float64), and 5 times that is allowed." in said
    assert "rounding beyond what was measured" in said


def test_config_is_no_longer_blamed_for_what_comes_after_the_modules() -> None:
    said = failure(
        Comparison("encoder states", 1, 7, 0.5, 9), Comparison("greedy tokens", 1, 7, 1.0, 9)
    )
    assert "the tokens of 1 rows differ" in said
    assert "rounding beyond" not in said
    assert "heads" not in said
    own = failure(Comparison("eager modules", 1, 7, 0.5, 9), not_run=None)
    assert "your code computes something else" in own


def test_model_that_float32_is_not_enough_for_is_named() -> None:
    hopeless = Comparison("full prefix", 1, 7, 0.05, 9, noise=0.3)
    report = ParityReport("theirs", [hopeless], measured_by="float64")
    assert hopeless.allowed == 0.01
    assert report.ill_conditioned is not None
    with pytest.raises(ParityError, match="too large for float32"):
        report.require("a.bundle")


def test_unexpected_texts_are_shown() -> None:
    wrong = Comparison("expected texts", 5, 3, 2.0, 5, near_ties=1)
    report = ParityReport("theirs", [wrong], unexpected=("'a': expected 'b', found 'c'",))
    said = str(report.failure())
    assert "expected texts: 2 of 5 lines differ:\n  'a': expected 'b', found 'c'\n" in said
    assert "the tokenizer" in said
    assert report.summary()["expected"] == {"lines": 5, "equal": 2}


@pytest.mark.parametrize(
    ("stage", "difference", "noise", "told"),
    [
        ("eager modules", 9e-5, 5e-6, True),  # what an epsilon of 1e-6 for 1e-5 changes
        ("step and decode", 9e-5, 5e-6, True),
        ("cached steps", 9e-5, 5e-6, False),  # the export of what was compared before
        ("eager modules", 9e-5, 2e-5, False),  # rounding explains it
        ("eager modules", 9e-6, 1e-7, False),  # too small to be of any importance
        ("eager modules", 9e-4, 5e-6, False),  # fails, which says more
        ("eager modules", 9e-5, 0.0, False),  # not measured
    ],
)
def test_difference_that_only_the_least_allowance_lets_pass_is_told(
    stage: str, difference: float, noise: float, told: bool
) -> None:
    compared = Comparison(stage, 2, 33, difference, 9, noise=noise)
    report = ParityReport("theirs", [Comparison(stage, 1, 7, 0.0, 9, noise=noise), compared])
    assert (report.doubt is not None) is told
    assert ("doubt" in report.summary()) is told
    if report.doubt is not None:
        assert f"{stage}: differs by 9e-05, 18 times what theirs itself rounds by" in report.doubt
        assert "(batch 2, source length 33, drawn)" in report.doubt
