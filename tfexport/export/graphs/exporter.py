"""Export of one module to an ONNX graph with the names and dynamic axes of ``graph_io``.

Callers use ``exporter.export_graph_module``, not an imported name, so that tests can replace it.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import functional

from tfexport import graph_io
from tfexport.errors import ExportError
from tfexport.export.graphs.kernels import fit_kernels, run_once, runnable, source_line
from tfexport.export.graphs.shortcuts import shortcuts
from tfexport.export.ir_tools.nodes import EMBEDDING, MATRIX, POSITIONS, PROJECTION, Role
from tfexport.export.passes import AFTER_EXPORT
from tfexport.export.passes.after_export import Parameter, set_parameters
from tfexport.export.quiet import quiet
from tfexport.graph_io import CacheShape, GraphSpec, TensorSpec
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.embedding import Embedding, PositionTable
from tfexport.model_src.transformer import Transformer

# Sizes of the example inputs. None is 1, since torch.export makes such an axis a constant without
# an error; and all differ, since it may take axes of equal size for the same one.
_EXAMPLE = {
    graph_io.BATCH: 2,
    graph_io.SOURCE: 5,
    graph_io.TARGET: 3,
    graph_io.PAST: 4,
    graph_io.BEAMS: 6,
    graph_io.ROWS: 12,
    graph_io.BUFFER: 7,
    graph_io.SOURCE_BUFFER: 9,
}


# The operator in torch's message: the node's name and its target.
_UNTRANSLATED = re.compile(r"translating node %(\w+) : .*?target=torch\.ops\.([\w.]+)\]")
LARGEST_SIZES = "tfexport.largest_sizes"  # in the ``meta`` of a user's graph; not saved
_ANY_SIZE = 1 << 30


class CaptureError(ExportError):
    """torch's exporter failed; its error is the ``__cause__``."""


def cache_shape(config: TransformerConfig) -> CacheShape:
    """The shape of a model's caches."""
    sizes = config.decoder
    return CacheShape(config.num_decoder_layers, sizes.num_heads, sizes.head_dim)


def export_graph_module(
    module: nn.Module,
    spec: GraphSpec,
    opset: int,
    sizes: Sequence[Mapping[str, int]] | None = None,
) -> ir.Model:
    """Export one module.

    Args:
        module: its inputs and outputs are the tensors of ``spec``, in that order.
        spec: names, dtypes and axes.
        opset: the opset version of the standard operators.
        sizes: for a custom module: sizes of named axes, first of the example that torch runs, at
            least 2 each, then of further examples, which only onnxruntime runs.

    Returns:
        The graph in memory; its initializers have the names of the module's parameters.

    Raises:
        ExportError: torch.onnx.export failed, or onnxruntime has no such operators.
    """
    runs = [tuple(_example(tensor, each) for tensor in spec.inputs) for each in sizes or [_EXAMPLE]]
    examples = runs[0]
    axes = tuple(_dynamic_axes(tensor, sizes is None) for tensor in spec.inputs)
    captured, programs = None, list[torch.export.ExportedProgram]()
    try:
        layers = contextlib.nullcontext() if sizes is None else _exportable_layers(module)
        with quiet(), shortcuts(sizes is not None) as programs, torch.no_grad(), layers:
            captured = None if sizes is None else _captured(module, examples, axes)
            program = torch.onnx.export(
                module.eval() if captured is None else captured,
                examples,
                dynamo=True,
                dynamic_shapes=(axes,),  # the wrappers take all tensors as *args
                input_names=[tensor.name for tensor in spec.inputs],
                output_names=[tensor.name for tensor in spec.outputs],
                opset_version=opset,
                verbose=False,
            )
    except ExportError as error:  # of a layer, which names it, or of an axis
        raise ExportError(with_axis_names(str(error), spec.inputs)) from error
    except Exception as error:
        if captured is not None and (reason := _untranslated(programs, str(error))):
            raise ExportError(reason) from error
        raise CaptureError(f"{spec.filename}: torch.onnx.export failed: {error}") from error
    assert program is not None
    model = program.model
    model.graph.name = spec.name
    for value, tensor in zip(model.graph.outputs, spec.outputs, strict=True):
        value.shape = ir.Shape(tensor.axes)
    if captured is not None:
        axes_of_inputs = [tensor.axes for tensor in spec.inputs]
        model.meta[LARGEST_SIZES] = largest_sizes(captured, axes_of_inputs)
        for value, tensor in zip(model.graph.inputs, spec.inputs, strict=True):
            value.shape = ir.Shape(tensor.axes)
    set_parameters(model, _parameters(module))
    if sizes is not None:
        with runnable(model):
            fit_kernels(model)
            run_once(model, module, spec, runs)
    AFTER_EXPORT(model)
    return model


def _exportable_layers(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """See ``torch_layers``, which uses private parts of torch that only custom modules need."""
    try:
        from tfexport.export.graphs.torch_layers import exportable_layers  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"torch {torch.__version__} lacks what the export of custom modules needs: "
            f"{error}; install an earlier one"
        ) from error
    return exportable_layers(module)


def _captured(
    module: nn.Module, examples: tuple[Tensor, ...], axes: tuple[dict[int, Any], ...]
) -> torch.export.ExportedProgram:
    """Export a custom module as a program; errors then name the line of the user's code."""
    # torch prints the graph so far when it fails.
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        program = torch.export.export(module.eval(), examples, dynamic_shapes=(axes,), strict=False)
    return program


def _untranslated(programs: Sequence[torch.export.ExportedProgram], text: str) -> str | None:
    """The operator that torch could not translate, and its line; None if none."""
    found = _UNTRANSLATED.search(text)
    if found is None:
        return None
    name, operator = found.groups()
    nodes = [node for program in programs for node in program.graph.nodes if node.name == name]
    lines = [source_line(node.meta.get("stack_trace") or "") for node in nodes]
    place = next((f" at {line}" for line in lines if line), "")
    if "No ONNX function found" in text:
        remedy = "write it with operators that ONNX has"
        return f"torch has no ONNX form of {operator}{place}; {remedy}"
    reason = text.partition("## Exception summary")[2].strip().partition("\n")[0]
    return f"torch cannot translate {operator}{place}: {reason}"


def largest_sizes(
    program: torch.export.ExportedProgram, axes: Sequence[Sequence[int | str]]
) -> dict[str, int]:
    """The maximum size of each axis for which torch captured the branch that the code takes.

    Args:
        program: where the code takes another branch from a size on, it has that of its example.
        axes: of the inputs, in order: a name for one that varies.

    Returns:
        Name of an axis to that size, without those that may have any.
    """
    found: dict[str, int] = {}
    for axis, bounds in _axis_bounds(program, axes):
        if bounds.upper < _ANY_SIZE:
            found[axis] = min(int(bounds.upper), found.get(axis, _ANY_SIZE))
    return found


def smallest_sizes(
    program: torch.export.ExportedProgram, axes: Sequence[Sequence[int | str]]
) -> dict[str, int]:
    """The minimum size of each axis for which torch captured the branch; see ``largest_sizes``.

    Code need not act otherwise on smaller ones: torch takes an inner axis of one row for another.
    """
    found: dict[str, int] = {}
    for axis, bounds in _axis_bounds(program, axes):
        found[axis] = max(int(bounds.lower), found.get(axis, 0))
    return found


def _axis_bounds(
    program: torch.export.ExportedProgram, axes: Sequence[Sequence[int | str]]
) -> Iterator[tuple[str, Any]]:
    """The named axes of the inputs that vary, each with the bounds of its sizes."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes
              if node.op == "placeholder"}  # fmt: skip
    for names, node in zip(axes, program.graph_signature.user_inputs, strict=True):
        for axis, size in zip(names, values[str(node)].shape, strict=True):
            if isinstance(axis, str) and isinstance(size, torch.SymInt):
                bounds = program.range_constraints.get(size.node.expr)
                if bounds is not None:
                    yield axis, bounds


def with_axis_names(text: str, tensors: Sequence[TensorSpec]) -> str:
    """Replace torch's names of the axes of ``*tensors`` in a message by their own."""
    for i, tensor in enumerate(tensors):
        for place, axis in enumerate(tensor.axes):
            name = f"{tensor.name}'s {axis}"
            text = text.replace(f"L['tensors'][{i}].size()[{place}]", name)
    return text


def _example(tensor: TensorSpec, sizes: Mapping[str, int]) -> Tensor:
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes]
    return torch.ones(shape, dtype=getattr(torch, tensor.dtype))


def _dynamic_axes(tensor: TensorSpec, named: bool) -> dict[int, Any]:
    """The dynamic axes of an input, by index; if not ``named``, torch infers their bounds."""
    return {
        i: torch.export.Dim(axis, min=0, max=_ANY_SIZE) if named else torch.export.Dim.DYNAMIC
        for i, axis in enumerate(tensor.axes)
        if isinstance(axis, str)
    }


def _parameters(module: nn.Module) -> dict[str, Parameter]:
    """The parameters and buffers that are arrays, by the names that the exporter gives them."""
    kinds: dict[int, str] = {}
    for part in module.modules():
        if isinstance(part, Embedding):
            kinds[id(part.tokens.weight)] = EMBEDDING
        elif isinstance(part, PositionTable):
            kinds[id(part.table)] = POSITIONS
    for part in module.modules():
        # A tied table keeps the role of the embedding.
        if isinstance(part, Transformer) and isinstance(part.output_proj, nn.Linear):
            kinds.setdefault(id(part.output_proj.weight), PROJECTION)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {
        name: Parameter(
            Role(name.removeprefix("model."), kinds.get(id(tensor), MATRIX)),
            values,
        )
        for name, tensor in tensors.items()
        if (values := _array(tensor)) is not None
    }


def _array(tensor: Tensor) -> Any:
    """A tensor as an array; None for one that numpy cannot hold, such as a sparse one."""
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):
        return None


def checked_ids(ids: Tensor, vocab_size: int | None) -> Tensor:
    """Replace negative ids, which Gather counts from the end, by one that makes it fail."""
    assert vocab_size is not None
    return torch.where(ids < 0, vocab_size, ids)


def checked_mask(mask: Tensor, like: Tensor) -> Tensor:
    """The mask; the graph fails if its shape is not that of ``like``, instead of broadcasting."""
    # One longer on each axis: onnxruntime leaves an empty tensor out of a Concat, and unchecked.
    longer = [functional.pad(tensor, (0, 1, 0, 1)) for tensor in (mask, like.to(mask.dtype))]
    return torch.stack(longer)[0, :-1, :-1]
