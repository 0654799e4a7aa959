"""Groups of PyTorch's operators by what they do to values.

Those who read a program, to recognise a model in it or to find its steps, share them.
"""

import operator
from typing import Any

import torch
from torch import fx

aten: Any = torch.ops.aten

# The values of one tensor, perhaps in another type or order of memory.
SAME_VALUES = (
    aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default,
    aten.to.dtype, aten._to_copy.default, aten.type_as.default, aten.to.dtype_layout,
)  # fmt: skip
# What a program does with a constant before it uses it.
CONSTANT_COPIES = (
    aten.clone.default, aten.lift_fresh_copy.default, aten.detach.default, aten.alias.default,
)  # fmt: skip
AXIS_ORDERS = (aten.transpose.int, aten.permute.default, aten.t.default)
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
GROUPED_AXES = (aten.flatten.using_ints, aten.unflatten.int)
PARTS = (
    aten.select.int, aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default,
    aten.chunk.default, aten.unbind.int,
)  # fmt: skip
# All values of one tensor, in another form; dropout is off in eval mode.
REARRANGED = (
    *SAME_VALUES, aten.dropout.default, *AXIS_ORDERS, *VIEWS, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
)  # fmt: skip
JOINS = (aten.cat.default, aten.concat.default, aten.stack.default)

# Tensors of one number, of a shape that is given, or of that of another tensor.
FILLED = (
    aten.zeros.default, aten.ones.default, aten.full.default, aten.empty.memory_format,
)  # fmt: skip
NEW_FILLED = (aten.new_zeros.default, aten.new_ones.default, aten.new_full.default)
FILLED_LIKE = (aten.ones_like.default, aten.zeros_like.default, aten.full_like.default)
# The shape of a tensor, and none of its values.
SHAPES = (
    aten.sym_size.int, aten._assert_tensor_metadata.default, *FILLED_LIKE, *NEW_FILLED,
    aten.new_empty.default, aten.empty_like.default,
)  # fmt: skip
SIZE_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv)

SUMS = (aten.add.Tensor, aten.sub.Tensor)
SCALES = (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)
WHERE = (aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther)
SELECTIONS = (*WHERE, aten.masked_fill.Scalar, aten.masked_fill.Tensor)
EQUALITIES = (aten.eq.Scalar, aten.ne.Scalar, aten.eq.Tensor, aten.ne.Tensor)
BATCHED_PRODUCTS = (aten.matmul.default, aten.bmm.default)
PRODUCTS = (
    *BATCHED_PRODUCTS, aten.linear.default, aten.mm.default, aten.addmm.default,
    aten.baddbmm.default, aten.einsum.default, aten.conv1d.default,
)  # fmt: skip
SOFTMAX = (aten.softmax.int, aten._softmax.default)
LOG_SOFTMAX = (aten.log_softmax.int, aten._log_softmax.default)


def einsum_axes(node: fx.Node) -> tuple[list[str], str] | None:
    """The letters of the axes of an einsum's operands and of its result.

    None if the result has none, or if it is not written, or if an ellipsis takes some axes.
    """
    operands, _, result = str(node.args[0]).replace(" ", "").partition("->")
    return None if "." in operands or not result else (operands.split(","), result)
