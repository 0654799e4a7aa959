"""The table of a bundle's parameters in its file of weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tfexport.export.ir_tools.nodes import add_initializer
from tfexport.export.passes.weights import record_weights, share_weights
from tfexport.weight_table import read_weight_table


def test_masks_of_bytes_leave_weights_aligned(tmp_path: Path) -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 22}, name="g")
    wanted = {"v": np.arange(600, dtype=np.float32), "w": np.ones((40, 30), np.float32)}
    half = np.ones((3, 301), np.float16)
    given = {"mask": np.ones((1, 2501), bool), "half": half, **wanted, "more": half[:1] > 0}
    for name, array in given.items():
        add_initializer(graph, name, array)
    model = ir.Model(graph, ir_version=10)
    share_weights([model], tmp_path)
    record_weights([model], tmp_path, wanted)
    file = np.fromfile(tmp_path / "weights.bin", np.uint8)
    table = read_weight_table(tmp_path, file.size)  # which refuses what is not aligned
    for name, array in wanted.items():
        np.testing.assert_array_equal(table[name].values(file), array)
    assert file.size == sum(array.nbytes for array in given.values())  # and none is there twice
    stored: Any = graph.initializers["half"].const_value
    assert stored.offset % 2 == 0
