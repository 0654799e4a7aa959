"""A forward as torch captures it: a functional program without checks of values.

Axes: B batch, T target, V vocabulary.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from tfexport.export import torch_names
from tfexport.export.graphs.torch_layers import exportable_layers
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.functional import functional
from tfexport.export.operators import aten
from tfexport.export.quiet import quiet
from tfexport.gc_pause import no_collecting
from tfexport.graph_io import BATCH

TARGET = "target_length"  # the axis of the target ids
NUMBERS_OF_VALUES = (aten.item.default, aten._local_scalar_dense.default)


_GUARDS = "tfexport.guards"  # in the ``meta`` of a program: the sizes that its branch is for


class ForwardCaptureError(Exception):
    """torch could not export a forward; its error is the ``__cause__``."""


class _Traced(nn.Module):
    """The forward with all tensors as positional arguments."""

    def __init__(self, own: OwnForward) -> None:
        super().__init__()
        self.model, self._own = own.model, own

    def forward(self, *tensors: Tensor) -> Tensor:
        """Inputs and target ids -> logits (B, T, V)."""
        return self._own(tensors[:-1], tensors[-1])


def capture_forward(
    own: OwnForward, inputs: Sequence[Tensor], target: Tensor
) -> torch.export.ExportedProgram:
    """The program of a forward, functional, with the layers of torch in exportable forms.

    Args:
        own: the module, in eval mode.
        inputs: an example, batch first.
        target: target ids (B, T).

    Raises:
        ForwardCaptureError: torch cannot export the forward; its error is the cause.
    """
    tensors = (*inputs, target)
    declared = (*own.batch_first, own.target)
    axes = []
    for each, tensor in zip(declared, tensors, strict=True):
        names = each.axes if each is not own.target else (BATCH, TARGET)
        axes.append({i: Dim.DYNAMIC for i in range(tensor.dim()) if isinstance(names[i], str)})
    traced = _Traced(own).eval()
    stderr = contextlib.redirect_stderr(io.StringIO())  # torch prints the graph when it fails
    try:
        with no_collecting(), quiet(), torch.no_grad(), exportable_layers(traced), stderr:
            program: Any = torch.export.export(
                traced, tensors, dynamic_shapes=(tuple(axes),), strict=False
            )
            captured = functional(program)
            captured.graph_module.meta[_GUARDS] = getattr(program, torch_names.GUARDS, None)
            return captured
    except Exception as error:  # torch's own, of any kind
        raise ForwardCaptureError(error) from error


def takes_branch(program: torch.export.ExportedProgram, tensors: Sequence[Tensor]) -> bool:
    """Whether a forward runs what was captured of it, for inputs and target ids of these sizes.

    False where the installed torch does not say for which sizes that is.
    """
    guards: list[str] | None = program.graph_module.meta[_GUARDS]
    sizes = {"L": {"tensors": tensors}}  # by which torch writes them
    return guards is not None and all(eval(guard, sizes) for guard in guards)


def drop_assertions(graph: fx.Graph) -> None:
    """Remove what only checks values, with the numbers that it alone needs.

    Checks of a number that something computes with stay: torch needs them when it traces again.
    """
    checks = {found for name in torch_names.ASSERTIONS if (found := torch_names.find(name))}
    used: set[fx.Node] = set()  # by something else than checks
    for node in reversed(list(graph.nodes)):
        if node.op == "output" or any(each in used for each in node.users):
            used.add(node)
    numbers = {node for node in used if node.target in NUMBERS_OF_VALUES}
    for node in graph.nodes:
        if node not in used and not numbers.isdisjoint(node.all_input_nodes):
            numbers.add(node)
    for node in reversed(list(graph.nodes)):
        unused = node.op == "call_function" and not node.users
        if unused and (node.target not in checks or numbers.isdisjoint(node.all_input_nodes)):
            graph.erase_node(node)
