"""A user's graph is tried in onnxruntime at once: types are widened, and faults have a line."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from tests.support.layer_export import Called
from tfexport.errors import ExportError
from tfexport.export.graphs.exporter import export_graph_module
from tfexport.graph_io import GraphSpec, TensorSpec

Call = Callable[[nn.Module, Tensor], Tensor]
SIZES = ({"batch": 2, "length": 5}, {"batch": 3, "length": 7})
IDS = TensorSpec("ids", "int64", ("batch", "length"))


def export(call: Call) -> ir.Model:
    found = TensorSpec("found", "float32", ("batch", "length"))
    spec = GraphSpec("values", (IDS,), (found,))
    module = Called(nn.Identity(), lambda layer, ids: (call(layer, ids).float(),)).eval()
    return export_graph_module(module, spec, 22, SIZES)


def to(kind: torch.dtype, call: Callable[[Tensor], Tensor]) -> Call:
    return lambda _, ids: call(ids.to(kind))


BYTES, SHORT, BOOL, HALF = torch.uint8, torch.int16, torch.bool, torch.float16
# Of types for some of which onnxruntime 1.31 has no such operator.
LACKING: dict[str, Call] = {
    "triu of bytes": to(BYTES, lambda x: x.unsqueeze(1).expand(-1, x.size(1), -1).triu(1).sum(1)),
    "a running sum of half precision": to(HALF, lambda x: x.cumsum(1)),
    "where of truth values": to(BOOL, lambda x: torch.where(x.flip(1), x, torch.tensor(False))),
    "masked_fill of truth values": to(BOOL, lambda x: x.masked_fill(x.flip(1), True)),
    "sums beyond a byte": to(BYTES, lambda x: (x * 90 + x).clamp(min=7)),
    "sums below zero of a byte": to(torch.int8, lambda x: -(x * 90)),
    "sums of 16 bits": to(SHORT, lambda x: x * 20000),
    "the largest of 16 bits": to(SHORT, lambda x: x.amax(1, keepdim=True).expand(x.shape)),
    "sorted 16 bits": to(SHORT, lambda x: x.sort(1)[0]),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_type_without_a_kernel_is_computed_by_a_wider_one(name: str) -> None:
    data = ir.serde.serialize_model(export(LACKING[name])).SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    for shape in ((1, 1), (2, 5), (3, 9)):
        ids = torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(0))
        (found,) = session.run(["found"], {"ids": ids.numpy()})
        np.testing.assert_array_equal(found, LACKING[name](nn.Identity(), ids).float().numpy())


def test_a_condition_is_not_widened_with_what_it_chooses() -> None:
    (where,) = (
        node
        for node in export(LACKING["where of truth values"]).graph
        if node.op_type == "Where" and node.name == "node_where"
    )
    kinds = [value.dtype for value in where.inputs if value is not None]
    assert kinds == [ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.INT64]


@pytest.mark.messages
def test_an_operator_without_any_kernel_is_refused_with_its_line() -> None:
    def convolved(_layer: nn.Module, ids: Tensor) -> Tensor:
        rows = ids[:, None].double()
        return nn.functional.conv1d(rows, torch.ones(1, 1, 1, dtype=torch.float64))[:, 0]

    with pytest.raises(
        ExportError, match=r"has no Conv of double at .*convert to float32"
    ) as caught:
        export(convolved)
    assert "test_kernels.py:" in str(caught.value)
    assert "in convolved: return nn.functional.conv1d" in str(caught.value)


@pytest.mark.messages
def test_an_operator_that_fails_at_run_time_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = import_module("tfexport.export.graphs.torch_layers.functions")
    own = forms._without_own(torch.repeat_interleave)
    monkeypatch.setattr(forms, "_repeat_interleave", own)

    def repeated(_layer: nn.Module, ids: Tensor) -> Tensor:
        each = torch.repeat_interleave(ids[:, 0], ids.size(1))
        return each.reshape(ids.shape)

    with pytest.raises(ExportError, match="fails in onnxruntime") as caught:
        export(repeated)
    assert "test_kernels.py:" in str(caught.value)
    assert "in repeated: each = torch.repeat_interleave" in str(caught.value)


def test_an_example_that_the_code_itself_refuses_is_not_counted() -> None:
    def first_of_nothing(_layer: nn.Module, ids: Tensor) -> Tensor:
        return ids.gather(1, ids + 100)  # no such column

    export(first_of_nothing)


def test_an_operator_that_onnx_lacks_is_refused_with_its_line() -> None:
    def singular(_layer: nn.Module, ids: Tensor) -> Tensor:
        return torch.erfinv(ids / 100)  # which torch writes as another

    with pytest.raises(ExportError, match="no ONNX form") as caught:
        export(singular)
    assert "in singular: return torch.erfinv(ids / 100)" in str(caught.value)


def test_only_modules_of_ones_own_need_the_private_parts_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in a version of torch that has moved what it imports.
    hidden = "import sys; sys.modules['tfexport.export.graphs.torch_layers'] = None"
    subprocess.run([sys.executable, "-c", f"{hidden}; import tfexport.export"], check=True)
    monkeypatch.setitem(sys.modules, "tfexport.export.graphs.torch_layers", None)
    spec = GraphSpec("values", (IDS,), (TensorSpec("found", "float32", ("batch", "length")),))
    spec = spec._replace(inputs=(IDS._replace(axes=("batch", "source_length")),))
    module = Called(nn.Identity(), lambda _, ids: (ids.float(),))
    assert export_graph_module(module, spec, 22) is not None
    with pytest.raises(ExportError, match="lacks what the export of custom modules needs"):
        export(lambda _, ids: ids)
