"""``weights.json``: written, read, and refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfexport.errors import BundleError
from tfexport.weight_table import (
    WEIGHT_TABLE,
    StoredWeight,
    read_weight_table,
    write_weight_table,
)

FLOAT = {"dtype": "float32", "offset": 8, "shape": [2, 3], "strides": [3, 1]}
INT8 = {"dtype": "int8", "offset": 0, "shape": [2, 3], "strides": [1, 2], "scales": 8}


def write(folder: Path, entry: Any) -> None:
    (folder / WEIGHT_TABLE).write_text(json.dumps({"w": entry}))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    table = {
        "a": StoredWeight("float32", 8, (2, 3), (1, 2)),
        "b": StoredWeight("int8", 0, (4,), (1,), 12),
        "a vector": StoredWeight("float32", 0, (2,), (1,)),
    }
    write_weight_table(tmp_path, table)
    assert read_weight_table(tmp_path, 32) == table


def test_values_are_views_in_the_parameters_orientation() -> None:
    file = np.arange(10, dtype=np.float32).view(np.uint8)
    transposed = StoredWeight("float32", 4, (2, 3), (1, 2)).values(file)
    assert transposed.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert np.shares_memory(transposed, file)
    scales = StoredWeight("int8", 0, (2, 4), (4, 1), 8).row_scales(file)
    assert scales is not None
    assert scales.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**FLOAT, "offset": 12}, "w: ends at byte 36 of a file of 32"),
        ({**FLOAT, "offset": 6}, "not aligned"),
        ({**FLOAT, "strides": [2**40, 1]}, "ends at byte"),
        ({**FLOAT, "strides": [-3, 1]}, "integer"),
        ({**FLOAT, "offset": -4}, "integer"),
        ({**FLOAT, "shape": [2**31, 3]}, "integer"),
        ({**FLOAT, "shape": [0, 3]}, "integer"),
        ({**FLOAT, "shape": [2]}, "one or two axes"),
        ({**FLOAT, "shape": [1, 1, 1], "strides": [1, 1, 1]}, "one or two axes"),
        ({**FLOAT, "shape": [], "strides": []}, "one or two axes"),
        ({**FLOAT, "dtype": "float64"}, "not one of float32, int8"),
        ({**FLOAT, "scales": 0}, "int8 values need scales"),
        ({key: INT8[key] for key in INT8 if key != "scales"}, "int8 values need scales"),
        ({**INT8, "scales": 28}, "ends at byte 36"),
        ({**INT8, "scales": 9}, "not aligned"),
        ({**INT8, "offset": 30}, "ends at byte"),
        ({**FLOAT, "more": 1}, "more: unknown key"),
        ({**FLOAT, "shape": [1, 3], "strides": [2**62, 1]}, "integer"),
        ({**FLOAT, "shape": [4, 4], "strides": [0, 0]}, "has more values"),
        ({}, "missing"),
        (7, "not an object"),
    ],
)
def test_what_leaves_the_file_is_refused(tmp_path: Path, entry: Any, message: str) -> None:
    write(tmp_path, entry)
    with pytest.raises(BundleError, match=message):
        read_weight_table(tmp_path, 32)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\x00", '{"w": '])
def test_no_table_at_all(tmp_path: Path, text: str) -> None:
    (tmp_path / WEIGHT_TABLE).write_text(text)
    with pytest.raises(BundleError, match=WEIGHT_TABLE):
        read_weight_table(tmp_path, 32)


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "ä"])
def test_names_are_those_that_parameters_have(tmp_path: Path, name: str) -> None:
    (tmp_path / WEIGHT_TABLE).write_text(json.dumps({name: FLOAT}))
    with pytest.raises(BundleError, match="not the name of a parameter"):
        read_weight_table(tmp_path, 64)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    entries = {"one": {**FLOAT, "offset": 1}, "two": {**FLOAT, "shape": [9, 9]}}
    (tmp_path / WEIGHT_TABLE).write_text(json.dumps(entries))
    with pytest.raises(BundleError, match=r"(?s)one.*two"):
        read_weight_table(tmp_path, 32)


def test_a_small_file_is_not_shared_by_any_number_of_parameters(tmp_path: Path) -> None:
    """What an engine makes of them is a multiple of all of them together."""
    size = 1 << 16
    entry = {"dtype": "float32", "offset": 0, "shape": [128, 128], "strides": [128, 1]}
    for count, fits in ((300, True), (3000, False)):
        table = {f"w{number}": entry for number in range(count)}
        (tmp_path / WEIGHT_TABLE).write_text(json.dumps(table))
        if fits:
            assert len(read_weight_table(tmp_path, size)) == count
            continue
        with pytest.raises(BundleError, match=f"{count * size} bytes together, .* file of {size}"):
            read_weight_table(tmp_path, size)
