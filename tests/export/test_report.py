"""Reports of comparisons: their order, their notes, and what a manifest keeps of them."""

from tfexport.cli.reports import parity_table
from tfexport.export.parity import STAGES, Comparison, ParityReport


def at(stage: str, difference: float = 0.0, batch: int = 1) -> Comparison:
    return Comparison(stage, batch, 7, difference, 3)


def test_stages_come_in_the_order_of_the_data_and_unknown_ones_last() -> None:
    report = ParityReport("x", [at("of a new form"), at("beam"), at("encoder states"), at("beam")])
    assert report.stages() == ["encoder states", "beam", "of a new form"]
    assert [column.header for column in parity_table(report, "a").columns][2:] == report.stages()


def test_first_failure_is_the_one_nearest_to_the_input_whatever_came_first() -> None:
    report = ParityReport("x", [at("of a new form", 1), at("beam", 1), at("full prefix", 1)])
    failure = report.first_failure()
    assert failure is not None
    assert failure.stage == "full prefix"
    only = ParityReport("x", [at("full prefix"), at("of a new form", 1)]).first_failure()
    assert only is not None
    assert only.stage == "of a new form"


def test_report_without_an_original_says_so_in_one_line() -> None:
    report = ParityReport("tfexport's own modules, uncached", [at("beam")], "there is none")
    assert report.note is not None
    assert report.note.startswith("No original was run")
    assert report.note.endswith("there is none.")
    assert "\n" not in report.note
    assert report.summary()["no_original"] == "there is none"
    assert str(parity_table(report, "a").caption).endswith(report.note)


def test_report_with_an_original_has_no_such_line() -> None:
    report = ParityReport("torch.nn.Transformer", [at("beam")])
    assert report.note is None
    assert "no_original" not in report.summary()
    assert "No original" not in str(parity_table(report, "a").caption)


def test_stages_are_named_once() -> None:
    assert len(set(STAGES)) == len(STAGES)
