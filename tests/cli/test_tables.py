"""Tables that commands print."""

from tfexport.cli.reports import parity_table
from tfexport.export import ParityReport
from tfexport.export.parity import Comparison


def test_table_keeps_its_columns_where_a_stage_lacks_a_shape_or_has_it_twice() -> None:
    comparisons = [
        Comparison("generate", 8, 7, 0.0, 20),
        Comparison("scores", 8, 7, 1e-6, 8),
        Comparison("text", 8, 40, 0.0, 30),
        Comparison("text", 8, 40, 1.0, 12, near_ties=2),
    ]
    table = parity_table(ParityReport("eager", comparisons), "g.onnx")
    cells = [list(column.cells) for column in table.columns]
    assert [[str(cell) for cell in column] for column in cells[2:]] == [
        ["20 equal", ""],
        ["1.0e-06", ""],
        ["", "✗ 1 rows differ, 2 near ties"],
    ]
    assert getattr(cells[4][1], "style", None) == "bold red"
