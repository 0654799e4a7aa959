"""A captured program without operators that write into their inputs.

``ExportedProgram.run_decompositions`` makes any program functional, and traces it twice for it:
longer than the capture itself took. Most forwards write nothing, or only into a tensor that no
other tensor shares, and these need no further trace. Of the composite operators that may return
their input, ``unflatten``, ``chunk`` (which torch's attention to a source has), permutations and
conversions become the operators that torch makes of them; ``detach_``, and a conversion to the type
that is there, become their input.
"""

from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor, fx
from torch.export import ExportedProgram

from tfexport.export import torch_names
from tfexport.export.graphs.shortcuts import (
    order_of_axes,
    replace_by_input,
    type_converted_to,
)
from tfexport.export.operators import aten

# Composite operators that may return their input. What reads programs knows them as they are.
_KNOWN = {
    aten.reshape.default, aten.contiguous.default, aten.flatten.using_ints, aten.to.dtype,
    aten.to.dtype_layout,
}  # fmt: skip
# Composite operators whose result is always a new tensor.
_NEW = {aten.matmul.default, aten.linear.default}
# Operators that write into their first input, by what computes the same as a new tensor.
_WRITING = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.masked_fill_.Tensor: aten.masked_fill.Tensor,
    aten.relu_.default: aten.relu.default,
}
_OWN_TYPE = {aten.masked_fill_.Scalar, aten.masked_fill_.Tensor}  # as its first input


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program with functional operators only; it may be changed itself.

    Args:
        program: as ``torch.export.export`` gives it.
    """
    found = _Operators()
    for node in list(program.graph.nodes):
        if node.target is aten.unflatten.int and not node.kwargs:
            _make_view(node)
        elif node.target is aten.chunk.default and not node.kwargs:
            _make_split(node)
        elif (dtype := type_converted_to(node)) is not None:
            if dtype == node.args[0].meta["val"].dtype:
                replace_by_input(program, node)
            else:
                node.target, node.args, node.kwargs = aten.to.dtype, (node.args[0], dtype), {}
        elif (order := order_of_axes(node)) is not None:
            node.target, node.args = aten.permute.default, (node.args[0], order)
        elif node.target is aten.detach_.default:  # which torch writes behind a constant
            replace_by_input(program, node)
    program.graph_module.recompile()
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(found.is_kept(node) or node.target in _WRITING for node in nodes):
        return _traced_again(program)
    places = {node: place for place, node in enumerate(program.graph.nodes)}
    # One after the other: what an operator has written into is a new tensor for the next.
    for node in nodes:
        if node.target in _WRITING:
            if not found.writes_alone(node, places):
                program.graph_module.recompile()
                return _traced_again(program)
            own: Any = node.args[0]
            node.target = _WRITING[node.target]
            own.replace_all_uses_with(node, lambda user, at=places[node]: places[user] > at)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _make_view(node: fx.Node) -> None:
    """Let a node that splits an axis be a view with the sizes of all axes."""
    given: Any = node.args
    values, axis, parts = given
    sizes = list(values.meta["val"].shape)
    with node.graph.inserting_before(node):
        for place, size in enumerate(sizes):
            if not isinstance(size, int):
                sizes[place] = node.graph.call_function(aten.sym_size.int, (values, place))
                sizes[place].meta["val"] = size
                if "stack_trace" in node.meta:
                    sizes[place].meta["stack_trace"] = node.meta["stack_trace"]
    place = axis % len(sizes)
    made = node.meta["val"].shape[place : place + len(parts)]
    known = [
        size if isinstance(size, int) else part for size, part in zip(made, parts, strict=True)
    ]
    node.target = aten.view.default
    node.args = values, [*sizes[:place], *known, *sizes[place + 1 :]]


def _make_split(node: fx.Node) -> None:
    """Let a node that cuts an axis of a known size into a number of parts say their size."""
    given: Any = node.args
    values, parts, *axis = given
    axis = axis[0] if axis else 0
    size = values.meta["val"].shape[axis]
    if isinstance(size, int) and size > 0:
        node.target, node.args = aten.split.Tensor, (values, -(-size // parts), axis)


def _traced_again(program: ExportedProgram) -> ExportedProgram:
    made: ExportedProgram = program.run_decompositions({})
    return made


class _Operators:
    """What is known of operators; of none, in a torch that has moved what tells it."""

    def __init__(self) -> None:
        self._class: Any = torch_names.find(torch_names.OPERATOR)
        self._composite: Any = torch_names.find(torch_names.COMPOSITE)

    def is_kept(self, node: fx.Node) -> bool:
        """Whether a node writes nothing, and is the same in a program that is traced again."""
        target: Any = node.target
        if self._is_operator(target):
            if target._schema.is_mutable:
                return False
            return target in _KNOWN or not (self._is_composite(target) and _may_alias(target))
        # Arithmetic with sizes, and parts of several results; not a part of the program.
        return isinstance(target, FunctionType | BuiltinFunctionType)

    def writes_alone(self, node: fx.Node, places: Mapping[fx.Node, int]) -> bool:
        """Whether a node writes into a tensor that shares its memory with none that is read."""
        own: Any = node.args[0]
        if not isinstance(own, fx.Node) or not self._is_new(own):
            return False
        before = [user for user in own.users if places[user] < places[node]]
        if not all(self._is_new(user) or not _holds_tensors(user) for user in before):
            return False
        dtypes = {
            value.dtype
            for each in node.all_input_nodes
            if isinstance(value := each.meta.get("val"), Tensor)
        }
        # Of several types the tensor that is written keeps its own; a new one has the larger.
        return len(dtypes) == 1 or node.target in _OWN_TYPE

    def _is_new(self, node: fx.Node) -> bool:
        """Whether the result of a node is a tensor that shares its memory with no other."""
        target: Any = node.target
        if not self._is_operator(target) or target._schema.is_mutable:
            return False
        return target in _NEW or not (self._is_composite(target) or _may_alias(target))

    def _is_operator(self, target: Any) -> bool:
        known = self._class is not None and self._composite is not None
        return known and isinstance(target, self._class)

    def _is_composite(self, target: Any) -> bool:
        return bool(target.has_kernel_for_dispatch_key(self._composite))


def _may_alias(target: Any) -> bool:
    return any(each.alias_info is not None for each in target._schema.returns)


def _holds_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return value is None or isinstance(value, Tensor | tuple | list)
