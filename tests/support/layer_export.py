"""Export of one layer with dynamic axes, and its comparison with eager PyTorch at other sizes.

Axes: B batch, S source length, T target length, P past length, W width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor, nn

from tfexport.export.graphs.shortcuts import shortcuts
from tfexport.export.graphs.torch_layers import exportable_layers
from tfexport.export.quiet import quiet

# None is 1, and all differ: see tfexport/export/graphs/exporter.py.
EXAMPLE = {"B": 2, "S": 5, "T": 3, "P": 4, "W": 12}
SIZES: Sequence[Mapping[str, int]] = (
    {"B": 1, "S": 1, "T": 1, "P": 0, "W": 8},
    {"B": 1, "S": 7, "T": 4, "P": 6, "W": 17},
    {"B": 3, "S": 9, "T": 1, "P": 1, "W": 24},
    {"B": 4, "S": 4, "T": 6, "P": 0, "W": 9},
    {"B": 2, "S": 5, "T": 5, "P": 5, "W": 5},
)
opset = 22
DYNAMIC = torch.export.Dim.DYNAMIC


@dataclass(frozen=True)
class Axes:
    """One input: its axes by name or size, and what it holds.

    Attributes:
        axes: of the tensor.
        kind: "normal", "ids" (0 to 6), "lengths" (1 to S), "padding" (True past a length),
            "scattered" (a mask that leaves the first position), or "mask" (any mask).
    """

    axes: tuple[str | int, ...]
    kind: str = "normal"

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
        """A tensor of these axes."""
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.axes]
        if self.kind == "normal":
            return torch.randn(shape, generator=generator)
        if self.kind == "ids":
            return torch.randint(0, 7, shape, generator=generator)
        if self.kind == "lengths":
            return torch.randint(1, sizes["S"] + 1, shape, generator=generator)
        if self.kind == "padding":
            lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator)
            return torch.arange(shape[-1]) >= lengths.unsqueeze(-1)
        mask = torch.rand(shape, generator=generator) < 0.5
        if self.kind == "scattered":
            mask[..., 0] = False
        return mask


def normal(*axes: str | int) -> Axes:
    """An input of random numbers."""
    return Axes(axes)


class Called(nn.Module):
    """A module with all inputs as ``*args``, as the exporter calls it."""

    def __init__(self, layer: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        """Call the layer."""
        return self.call(self.layer, *tensors) if self.call else self.layer(*tensors)


def export(module: nn.Module, inputs: Sequence[Axes]) -> ir.Model:
    """Export a module; all named axes are dynamic."""
    generator = torch.Generator().manual_seed(0)
    axes = tuple(
        {i: DYNAMIC for i, axis in enumerate(given.axes) if isinstance(axis, str)}
        for given in inputs
    )
    examples = tuple(given.draw(EXAMPLE, generator) for given in inputs)
    with quiet(), shortcuts(), exportable_layers(module), torch.no_grad():
        captured = torch.export.export(
            module.eval(), examples, dynamic_shapes=(axes,), strict=False
        )
        program = torch.onnx.export(
            captured,
            examples,
            dynamo=True,
            dynamic_shapes=(axes,),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    for value, given in zip(program.model.graph.inputs, inputs, strict=True):
        assert value.shape is not None
        baked = [
            axis
            for axis, size in zip(given.axes, value.shape, strict=True)
            if isinstance(axis, str) and isinstance(size, int)
        ]
        assert not baked, f"{value.name}: the size of the example became a constant: {baked}"
    return program.model


def check(
    layer: nn.Module,
    inputs: Sequence[Axes],
    call: Callable[..., Any] | None = None,
    sizes: Sequence[Mapping[str, int]] = SIZES,
) -> ir.Model:
    """Export a layer and compare the graph with eager PyTorch."""
    module = Called(layer, call).eval()
    model = export(module, inputs)
    assert model.opset_imports[""] == opset
    compare(module, model, inputs, sizes)
    return model


def compare(
    module: nn.Module,
    model: ir.Model,
    inputs: Sequence[Axes],
    sizes: Sequence[Mapping[str, int]] = SIZES,
) -> None:
    """Compare a graph with eager PyTorch, which runs without exportable_layers."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString(), options)
    used = {value.name for value in session.get_inputs()}
    generator = torch.Generator().manual_seed(1)
    for current in sizes:
        tensors = [given.draw(current, generator) for given in inputs]
        with torch.no_grad():
            wanted = [
                tensor
                for tensor in torch.utils._pytree.tree_leaves(module(*tensors))
                if tensor is not None
            ]
        feeds = {
            value.name: tensor.numpy()
            for value, tensor in zip(model.graph.inputs, tensors, strict=True)
            if value.name in used
        }
        found = session.run(None, feeds)
        for want, have in zip(wanted, found, strict=True):
            assert want.shape == have.shape, current
            np.testing.assert_allclose(have, want, atol=1e-5, rtol=1e-5, err_msg=str(current))


def operators(model: ir.Model) -> list[str]:
    """The operators of a graph."""
    return [node.op_type for node in model.graph]
