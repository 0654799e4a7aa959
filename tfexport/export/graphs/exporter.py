"""A wrapped module to one ONNX graph, its dynamic axes named as in ``graph_io``."""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.errors import ExportError
from tfexport.export.graphs.encoder_decoder import DecoderGraph, EncoderGraph
from tfexport.export.graphs.shortcuts import shortcuts
from tfexport.export.ir_tools.roles import (
    EMBEDDING,
    MATRIX,
    POSITIONS,
    PROJECTION,
    Role,
    write_role,
)
from tfexport.export.passes.pack_qkv import pack_projections
from tfexport.export.passes.share_weights import content_key
from tfexport.export.passes.unfuse_residual_norm import keep_residuals_apart
from tfexport.export.quiet import quiet
from tfexport.graph_io import CacheShape, GraphSpec, TensorSpec
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.embedding import Embedding
from tfexport.model_src.position import PositionTable
from tfexport.model_src.transformer import Transformer

# Sizes of the example inputs. All differ, and none is 1: an axis whose example is 1 is baked in
# as 1 without an error, and equal sizes can be taken for one axis.
_EXAMPLE = {
    graph_io.BATCH: 2,
    graph_io.SOURCE: 5,
    graph_io.TARGET: 3,
    graph_io.PAST: 4,
    graph_io.BEAMS: 6,
    graph_io.ROWS: 12,
}


def cache_shape(config: TransformerConfig) -> CacheShape:
    """The shape of a model's caches."""
    return CacheShape(config.num_decoder_layers, config.num_heads, config.head_dim)


def export_encoder(model: Transformer, opset: int) -> ir.Model:
    """Export ``encoder``: see ``graph_io.encoder_graph``."""
    spec = graph_io.encoder_graph(cache_shape(model.config), model.config.d_model)
    return export_graph_module(EncoderGraph(model), spec, opset)


def export_decoder(model: Transformer, opset: int) -> ir.Model:
    """Export ``decoder``: see ``graph_io.decoder_graph``."""
    assert model.config.target_vocab_size is not None
    spec = graph_io.decoder_graph(cache_shape(model.config), model.config.target_vocab_size)
    return export_graph_module(DecoderGraph(model), spec, opset)


def export_graph_module(module: nn.Module, spec: GraphSpec, opset: int) -> ir.Model:
    """Export one wrapped module.

    Args:
        module: takes and gives the tensors of ``spec``, in its order.
        spec: names, dtypes and axes.
        opset: of the standard operators.

    Returns:
        The graph in memory, its weights under the names of the module's parameters.

    Raises:
        ExportError: torch's exporter gave up.
    """
    dims = {name: torch.export.Dim(name, min=0, max=1 << 30) for name in _EXAMPLE}
    examples = tuple(_example(tensor) for tensor in spec.inputs)
    axes = tuple(_dynamic_axes(tensor, dims) for tensor in spec.inputs)
    try:
        with quiet(), shortcuts(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                examples,
                dynamo=True,
                dynamic_shapes=(axes,),  # the wrappers take all tensors as *args
                input_names=[tensor.name for tensor in spec.inputs],
                output_names=[tensor.name for tensor in spec.outputs],
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:
        raise ExportError(f"{spec.filename}: torch.onnx.export failed: {error}") from error
    assert program is not None
    model = program.model
    ClearMetadataAndDocStringPass()(model)
    model.graph.name = spec.name
    _name_outputs(model, spec)
    _number_operators(model)
    _name_weights(model, module)
    pack_projections(model)
    keep_residuals_apart(model)
    return model


def _example(tensor: TensorSpec) -> Tensor:
    shape = [_EXAMPLE[axis] if isinstance(axis, str) else axis for axis in tensor.axes]
    return torch.ones(shape, dtype=getattr(torch, tensor.dtype))


def _dynamic_axes(
    tensor: TensorSpec, dims: Mapping[str, torch.export.Dim]
) -> dict[int, torch.export.Dim]:
    return {i: dims[axis] for i, axis in enumerate(tensor.axes) if isinstance(axis, str)}


def _name_outputs(model: ir.Model, spec: GraphSpec) -> None:
    for value, tensor in zip(model.graph.outputs, spec.outputs, strict=True):
        value.shape = ir.Shape(tensor.axes)


def _number_operators(model: ir.Model) -> None:
    # The exporter gives every operator that torch does not have one name.
    for i, node in enumerate(node for node in model.graph if node.domain):
        node.name = f"{node.op_type}_{i}"


def _name_weights(model: ir.Model, module: nn.Module) -> None:
    """Write into the graph which parameter each weight is, and what it is for.

    The exporter transposes matrices ahead of time, once for each use, and calls the results
    ``val_56``. They get the names of the parameters they came from, so that a graph viewer and
    messages show those, and copies of one matrix become one.
    """
    graph = model.graph
    roles = _roles(module)
    folded = {}
    for name, value in list(graph.initializers.items()):
        if name in roles:
            _name(value, roles[name])
        elif value.const_value is not None and value.const_value.size > 1:
            folded[name] = value
    by_content: dict[str, Role] = {}
    for name, tensor in _state(module).items():
        array = tensor.detach().numpy()
        by_content.setdefault(content_key(array), roles[name])
        if folded and array.ndim == 2:
            by_content.setdefault(content_key(array.T), replace(roles[name], transposed=True))
    for name, value in folded.items():
        assert value.const_value is not None
        role = by_content.get(content_key(value.const_value.numpy()))
        if role is None:
            continue
        same = graph.initializers.get(_weight_name(role))
        if same is None:
            _name(value, role)
        else:
            ir.convenience.replace_all_uses_with(value, same)
            del graph.initializers[name]


def _name(value: ir.Value, role: Role) -> None:
    write_role(value, role)
    value.name = _weight_name(role)
    assert value.const_value is not None
    value.const_value.name = value.name


def _weight_name(role: Role) -> str:
    return f"{role.parameter}.T" if role.transposed else role.parameter


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _roles(module: nn.Module) -> dict[str, Role]:
    """What each parameter and buffer is, by the name that the exporter gives it."""
    kinds: dict[int, str] = {}
    for part in module.modules():
        if isinstance(part, Embedding):
            kinds[id(part.tokens.weight)] = EMBEDDING
        elif isinstance(part, PositionTable):
            kinds[id(part.table)] = POSITIONS
    for part in module.modules():
        # A table that the projection is tied to is a table first.
        if isinstance(part, Transformer) and isinstance(part.output_proj, nn.Linear):
            kinds.setdefault(id(part.output_proj.weight), PROJECTION)
    return {
        name: Role(name.removeprefix("model."), kinds.get(id(tensor), MATRIX))
        for name, tensor in _state(module).items()
    }
