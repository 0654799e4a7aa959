"""A torch that has moved a private name loses what uses it, and nothing else."""

import io
import re
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from tests.export.conftest import SIZES
from tests.export.graphs.test_shortcuts import Mixed, structure
from tests.support.paths import REPOSITORY
from tfexport.errors import ExportError
from tfexport.export import torch_names
from tfexport.export.artifacts.torch_file import _without_sources
from tfexport.export.artifacts.torch_programs import GreedyProgram
from tfexport.export.graphs.exporter import export_graph_module
from tfexport.graph_io import BATCH, SOURCE, GraphSpec, TensorSpec
from tfexport.model_src import TransformerConfig, build_transformer

OPSET = 22
ROWS = GraphSpec(
    "rows",
    (TensorSpec("x", "float32", (BATCH, SOURCE, 4)),),
    (TensorSpec("y", "float32", (BATCH, SOURCE, 4)),),
)
MIXED = GraphSpec(
    "mixed",
    (TensorSpec("ids", "int64", (BATCH, SOURCE)), TensorSpec("mask", "int64", (BATCH, SOURCE))),
    (TensorSpec("out", "float32", (BATCH, SOURCE)),),
)
EXAMPLES = [{BATCH: 2, SOURCE: 5}, {BATCH: 3, SOURCE: 7}]


def hide(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    """As in a torch that has moved them."""
    own = torch_names.find
    monkeypatch.setattr(torch_names, "find", lambda name: None if name in hidden else own(name))


@pytest.mark.parametrize("name", torch_names.NAMES)
def test_installed_torch_has_the_name(name: str) -> None:
    place = torch_names.owner_of(name)
    assert place is not None
    assert torch_names.find(name) is not None


def test_names_that_moved_are_not_found() -> None:
    for name in ("torch:_C.Moved.it", "torch.onnx._moved:it", "torch:nn.Moved"):
        assert torch_names.find(name) is None
        assert torch_names.owner_of(name) is None
        with pytest.raises(ExportError, match=rf"has no {name.replace(':', '.')}, which x needs"):
            torch_names.need(name, "x")


# ``torch._check`` is documented; the readers of pickles name functions as text.
PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._(?!check\b|_version__)|\b_ATEN\._[a-z]|\bfrom torch\S* import _"
)


def test_private_names_are_listed() -> None:
    found = [
        f"{path}: {line}"
        for path in (REPOSITORY / "tfexport").rglob("*.py")
        if path.name not in ("torch_names.py", "pickle_checks.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if PRIVATE.search(line)
    ]
    assert found == []


@pytest.fixture(scope="module")
def usual() -> list[tuple[Any, ...]]:
    return structure(export_graph_module(Mixed(), MIXED, OPSET))


USED = [
    torch_names.DECOMPOSE, torch_names.LIST_OPERATORS, torch_names.RUN_NODE, torch_names.PROMOTE,
    torch_names.SET_NODE, torch_names.FIND_RULE, torch_names.TRY_RULE, torch_names.COPY,
]  # fmt: skip


@pytest.mark.parametrize("hidden", [*((name,) for name in USED), torch_names.NAMES])
def test_a_graph_is_the_same_without(
    hidden: tuple[str, ...], usual: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, *hidden)
    assert structure(export_graph_module(Mixed(), MIXED, OPSET)) == usual


class Encoder(nn.Module):
    """A layer of torch's in a module of a user."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, *tensors: Tensor) -> Tensor:
        output: Tensor = self.layer(self.gru(tensors[0])[0])
        return output


@pytest.mark.parametrize(
    "hidden", [(torch_names.CAUSAL_HINT,), torch_names.NAMES], ids=["causal hint", "all"]
)
def test_a_users_module_is_exported_without(
    hidden: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, *hidden)
    module = Encoder().eval()
    made = export_graph_module(module, ROWS, OPSET, EXAMPLES)
    session = ort.InferenceSession(ir.serde.serialize_model(made).SerializeToString())
    for rows in (torch.randn(1, 9, 4), torch.randn(4, 2, 4)):
        (found,) = session.run(None, {"x": rows.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, module(rows), atol=1e-5)


def test_a_size_that_became_a_constant_is_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Baked(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return tensors[0] + torch.zeros(5, 4)

    hide(monkeypatch, *torch_names.NAMES)
    with pytest.raises(ExportError, match="the code works for the example's size only"):
        export_graph_module(Baked(), ROWS, OPSET, EXAMPLES)


def test_files_of_torch_name_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, *torch_names.NAMES)
    with pytest.raises(ExportError, match=r"no torch\._C\.PyTorchFileReader, which TorchScript"):
        _without_sources(io.BytesIO())
    model = build_transformer(TransformerConfig(**SIZES))
    with pytest.raises(ExportError, match=r"_assert_tensor_metadata\.default, which torch_export"):
        GreedyProgram(model)
