"""Steps of torch's exporter that are left out change nothing of what it writes."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.support import tutorial
from tests.support.combinations import few_of
from tfexport.export.artifacts.checkpoint_source import read_for_decoding
from tfexport.export.graphs import exporter, shortcuts
from tfexport.export.graphs.exporter import export_graph_module
from tfexport.export.graphs.fused_attention import FusedAttention
from tfexport.export.graphs.transformer_graphs import export_decoder, export_encoder
from tfexport.export.ir_tools.nodes import content_key
from tfexport.graph_io import BATCH, SOURCE, GraphSpec, TensorSpec
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.model_src.transformer import Transformer

OPSET = 22


class Mixed(nn.Module):
    """Inputs of several types meet: integers, fractions, true and false."""

    def forward(self, *tensors: Tensor) -> Tensor:
        ids, mask = tensors
        share = ids / (mask.sum() + 2)
        return torch.where(mask > 0, share * ids + ids * 2.5, ids) - (ids > 1).mul(3)


def structure(model: ir.Model) -> list[tuple[Any, ...]]:
    """Every operator, what it is told and where its inputs come from, whatever names they have."""
    names = {value: value.name for value in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        names[value] = content_key(value.const_value.numpy())
    nodes: list[tuple[Any, ...]] = []
    for number, node in enumerate(model.graph):
        told = {name: content(attribute) for name, attribute in node.attributes.items()}
        # torch's way makes some into views, for whose export an axis of 0 says to keep the axis
        # that was there. Here it is the length of the same axis.
        told.pop("allowzero", None)
        given = [None if value is None else names[value] for value in node.inputs]
        nodes.append((node.domain, node.op_type, told, given))
        names |= {value: f"{number}/{i}" for i, value in enumerate(node.outputs)}
    return [*nodes, tuple(names[value] for value in model.graph.outputs)]


def content(attribute: ir.Attr) -> Any:
    value = attribute.value
    return content_key(value.numpy()) if isinstance(value, ir.TensorProtocol) else value


@pytest.mark.parametrize("export", few_of([export_encoder, export_decoder], export_decoder))
def test_graphs_are_those_of_torchs_own_way(
    export: Callable[[Transformer, int], ir.Model],
    tutorial_model: tutorial.TutorialModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not the fixture's exporter, which keeps what it made once.
    monkeypatch.setattr(exporter, "export_graph_module", export_graph_module)
    model = read_for_decoding(tutorial_model, ReadOptions(CONFIG)).build(FusedAttention)
    short = structure(export(model, OPSET))
    monkeypatch.setattr(exporter, "shortcuts", contextlib.nullcontext)
    assert structure(export(model, OPSET)) == short


class Rewritten(nn.Module):
    """Operators that ONNX lacks, each of which torch decomposes into one other."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = tensors
        mask = (x > 0) | (y > 1)
        filled = torch.zeros_like(x).masked_fill_(mask, 2.5)
        moved = (1 - x.unsqueeze(0)).movedim(0, -1)
        return filled.T.T + (x * y).add_(y), moved.mT.mT


class Written(nn.Module):
    """Writes to what others read, or to what another operator gave as it is."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = tensors
        sums = x + y
        view = sums[:, 1:]
        view.add_(1.0)
        same = (x * 2).type_as(y)
        same.mul_(y)
        return sums.add_(3.0), same, (x - y).add_(1.0).mul_(2.0)


class Converted(nn.Module):
    """Conversions that name a device or another tensor: some give their input, others a new one."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = tensors
        hidden = (x > 0).to(device=x.device, dtype=torch.float32)
        whole = (y * 4).to(x.device, torch.int64, copy=True).to(y)
        return hidden * y.to(device=x.device, dtype=x.dtype), whole, (x + y).to(x)


class Copied(nn.Module):
    """A conversion to the type that is there, which is a copy all the same."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = tensors
        return x + y, (x * y).to(torch.float32, copy=True)


class Cells(nn.Module):
    """Steps of recurrent layers, differences of neighbours, and deviations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.lstm = nn.GRUCell(4, 4), nn.LSTMCell(4, 4, bias=False)
        self.plain, self.relu = nn.RNNCell(4, 4), nn.RNNCell(4, 4, nonlinearity="relu")

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = (tensor[:, :4] for tensor in tensors)
        found = (self.gru(x, y), *self.lstm(x, (y, x)), self.plain(x, y), self.relu(x, y))
        spread = (x.std(-1, keepdim=True), torch.var(y, (1,), correction=0).unsqueeze(1))
        return *(torch.diff(each, prepend=x[:, :1]) for each in found), *spread


PAIR = (TensorSpec("x", "float32", (BATCH, SOURCE)), TensorSpec("y", "float32", (BATCH, SOURCE)))
RUN_SIZES = [{BATCH: 2, SOURCE: 5}, {BATCH: 3, SOURCE: 7}]


@pytest.mark.parametrize(
    ("module", "again"),
    [
        (Rewritten(), False),
        (Written(), True),
        (Cells(), False),
        (Converted(), False),
        (Copied(), True),
    ],
)
def test_operators_that_onnx_lacks(
    module: nn.Module, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        wanted = module(x.clone(), y.clone())
    outputs = tuple(
        TensorSpec(f"out{i}", "float32", (BATCH, "length", *each.shape[2:]))
        for i, each in enumerate(wanted)
    )
    spec, known = GraphSpec("pair", PAIR, outputs), []
    by_hand = shortcuts.decompose_by_hand

    def recorded(*given: Any) -> bool:
        known.append(by_hand(*given))
        return known[-1]

    monkeypatch.setattr(shortcuts, "decompose_by_hand", recorded)
    short = export_graph_module(module, spec, OPSET, RUN_SIZES)
    assert known == [not again]
    session = ort.InferenceSession(ir.serde.serialize_model(short).SerializeToString())
    found = session.run(None, {"x": x.numpy(), "y": y.numpy()})
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    if not isinstance(module, Cells):  # which have forms of their own, whoever decomposes
        monkeypatch.setattr(exporter, "shortcuts", contextlib.nullcontext)
        assert structure(export_graph_module(module, spec, OPSET, RUN_SIZES)) == structure(short)


class PassedThrough(nn.Module):
    """Its outputs come from operators that give their first input."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        (x,) = tensors
        return (x * 2).float(), nn.functional.dropout(x + 1, training=False), (x - 1).detach()


def test_outputs_of_operators_that_are_left_out() -> None:
    axes = (BATCH, SOURCE)
    names = ("double", "more", "less")
    spec = GraphSpec(
        "passed",
        (TensorSpec("x", "float32", axes),),
        tuple(TensorSpec(name, "float32", axes) for name in names),
    )
    made = export_graph_module(PassedThrough(), spec, OPSET)
    session = ort.InferenceSession(ir.serde.serialize_model(made).SerializeToString())
    x = torch.randn(3, 4)
    found = session.run(None, {"x": x.numpy()})
    for have, want in zip(found, PassedThrough()(x), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_inputs_of_several_types_meet_as_in_torch() -> None:
    axes = (BATCH, SOURCE)
    spec = GraphSpec(
        "mixed",
        (TensorSpec("ids", "int64", axes), TensorSpec("mask", "int64", axes)),
        (TensorSpec("out", "float32", axes),),
    )
    made = export_graph_module(Mixed(), spec, OPSET)
    session = ort.InferenceSession(ir.serde.serialize_model(made).SerializeToString())
    ids, mask = torch.arange(6).view(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    (found,) = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    np.testing.assert_allclose(found, Mixed()(ids, mask), rtol=1e-6)
