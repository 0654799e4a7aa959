"""Rules for operators: which rows of its inputs the last row of a result needs.

A rule rewrites one node of a program, for which only the last row along some of its target axes is
asked, as an expression in rows of its inputs. It gives None where the operator needs all rows of
its inputs; these are then computed, or read from a cache.

Axes: B batch, S source, T target.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tfexport.export.incremental.attention import attention
from tfexport.export.incremental.program import Program, Size
from tfexport.export.incremental.recurrent import is_recurrent, sequence
from tfexport.export.operators import (
    AXIS_ORDERS,
    GROUPED_AXES,
    PARTS,
    VIEWS,
    aten,
    einsum_axes,
)

Rows = tuple[int, ...]  # axes of which the last row alone is asked for; () for all rows


@dataclass(frozen=True)
class Ask:
    """Rows of a node."""

    node: fx.Node
    rows: Rows = ()


@dataclass(frozen=True)
class OperatorCall:
    """An operator, called with expressions."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningSum:
    """The sum of a row and of all rows before, which a state carries."""

    row: Ask


@dataclass(frozen=True)
class Carried:
    """A result of a recurrent layer over the target, whose state a step carries.

    Attributes:
        layer: the node of the layer.
        number: of its result: the last row of Y, then the states.
    """

    layer: fx.Node
    number: int


@dataclass(frozen=True)
class InputSize:
    """The size of an axis of an input: B or S."""

    size: Size


TOTAL: Any = object()  # the number of tokens, including the token of this step
Rule = Callable[[Program, Any, Rows], Any]
RULES: dict[Any, Rule] = {}
# Operators that move values only: a cache is made before them, which is smaller or better placed.
_PASSED = {
    aten.expand.default, aten.repeat.default, aten.permute.default, aten.transpose.int,
    aten.unsqueeze.default, aten.squeeze.dim,
}  # fmt: skip


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of torch by name; a torch without one of them has no rule."""

    def register(found: Rule) -> Rule:
        for name in names:
            packet, _, overload = name.partition(".")
            target = getattr(getattr(aten, packet, None), overload or "default", None)
            if target is not None:
                RULES[target] = found
        return found

    return register


def rule_of(node: fx.Node) -> Rule | None:
    """The rule for a node; None if its operator has none."""
    found = RULES.get(node.target)
    if found is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return _pointwise
    return found


# These move values too, and may change how many rows there are.
_MOVED = _PASSED | {
    *VIEWS, *GROUPED_AXES, *PARTS, *AXIS_ORDERS, aten.squeeze.default, aten.cat.default,
    aten.stack.default, aten.constant_pad_nd.default, aten.pad.default, aten.contiguous.default,
    aten.clone.default, aten.detach.default, aten.alias.default, operator.getitem,
}  # fmt: skip


def is_moved(node: fx.Node) -> bool:
    """Whether a node only moves the values of its inputs, and computes nothing."""
    return node.target in _MOVED and not any(map(is_recurrent, node.all_input_nodes))


def is_passed(program: Program, node: Any) -> bool:
    """Whether the cache is the input of a node, not the node."""
    if node.target not in _PASSED:
        return False
    if node.target in (aten.expand.default, aten.repeat.default):
        return True
    # Keys (B, H, d, T) grow along their last axis; (B, H, T, d) grow by rows.
    last = len(program.sizes(node)) - 1
    return program.target_axes(node) == (last,) and last > 1


def size_of(size: Size, last: bool, known: Mapping[Size, Any] | None = None) -> Any:
    """An expression for the size of an axis; None if there is none.

    Args:
        size: in all runs.
        last: the axis has one row instead of T.
        known: sizes of the tensor that is reshaped, from which torch knows that they fit.
    """
    known = known or {}
    if len(set(size)) == 1:
        return size[0]
    if Program.depends_on_length(size):
        return _size_with_length(size, last, known)
    if size in known:
        return known[size]
    batches = Program.batches()
    if not Program.depends_on_batch(size):
        return InputSize(size)
    if any(a % b for a, b in zip(size, batches, strict=True)):
        return None
    rest = size_of(tuple(a // b for a, b in zip(size, batches, strict=True)), last, known)
    return _times(known.get(batches, InputSize(batches)), rest)


def _size_with_length(size: Size, last: bool, known: Mapping[Size, Any]) -> Any:
    lengths = Program.lengths()
    if all(a % b == 0 for a, b in zip(size, lengths, strict=True)):
        others = tuple(a // b for a, b in zip(size, lengths, strict=True))
        rest = size_of(others, last, known)
        return rest if last else _times(known.get(lengths, TOTAL), rest)
    more = {a - b for a, b in zip(size, lengths, strict=True)}
    return OperatorCall(operator.add, (TOTAL, more.pop())) if len(more) == 1 and not last else None


def _times(one: Any, other: Any) -> Any:
    if other is None or other == 1:
        return None if other is None else one
    return OperatorCall(operator.mul, (one, other))


def _ask(program: Program, value: Any, rows: Rows = ()) -> Any:
    """Rows of an argument, if it is a tensor of the program."""
    return Ask(value, rows) if isinstance(value, fx.Node) else value


def _with(node: Any, *args: Any) -> OperatorCall:
    """The node's operator with other first arguments."""
    others = node.args[len(args) :]
    return OperatorCall(node.target, (*args, *_asked(others)), _asked(node.kwargs))


def _asked(value: Any) -> Any:
    """Arguments with all rows of the tensors among them."""
    ask: Any = Ask
    return fx.map_arg(value, ask)


def plain(node: Any) -> OperatorCall:
    """A node computed from all rows of its inputs."""
    if is_recurrent(node):
        return OperatorCall(sequence, (node.target, *_asked(node.args)), _asked(node.kwargs))
    return OperatorCall(node.target, _asked(node.args), _asked(node.kwargs))


def _rank(program: Program, node: Any) -> int:
    return len(program.sizes(node))


def _kept(program: Program, node: Any, rows: Rows) -> OperatorCall:
    """A result whose axes are those of the first argument."""
    return _with(node, Ask(node.args[0], rows))


def _pointwise(program: Program, node: Any, rows: Rows) -> Any:
    rank = _rank(program, node)

    def ask(value: Any) -> Any:
        if program.is_number(value):
            return Ask(value)
        shift = rank - _rank(program, value)
        axes = program.target_axes(value)
        return Ask(value, tuple(axis - shift for axis in rows if axis - shift in axes))

    return OperatorCall(node.target, fx.map_arg(node.args, ask), fx.map_arg(node.kwargs, ask))


for _name in (
    "dropout", "contiguous", "clone", "detach", "alias", "to.dtype", "to.dtype_layout",
    "to.device", "_to_copy", "lift_fresh_copy", "type_as", "zeros_like", "ones_like", "full_like",
    "masked_fill.Scalar", "masked_fill.Tensor", "gelu", "silu", "softplus", "clamp", "celu",
    "elu", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", "relu", "leaky_relu", "mish",
    "hardtanh", "hardswish", "prelu", "logaddexp", "expand_as", "__and__.Tensor", "__or__.Tensor",
    "__xor__.Tensor", "__and__.Scalar", "__or__.Scalar", "polar", "complex",
):  # fmt: skip
    rule(_name)(_pointwise)


@rule("view_as_real", "view_as_complex")
def _complex(program: Program, node: Any, rows: Rows) -> Any:
    """The last axis, of the real and the imaginary part, comes or goes."""
    return _kept(program, node, rows)


@rule("linear")
def _linear(program: Program, node: Any, rows: Rows) -> Any:
    return _kept(program, node, rows) if _rank(program, node) - 1 not in rows else None


@rule("layer_norm", "rms_norm")
def _norm(program: Program, node: Any, rows: Rows) -> Any:
    first = _rank(program, node) - len(node.args[1])
    return _kept(program, node, rows) if all(axis < first for axis in rows) else None


@rule("glu")
def _gated(program: Program, node: Any, rows: Rows) -> Any:
    rank = _rank(program, node)
    axis = int(node.args[1]) % rank if len(node.args) > 1 else rank - 1
    return None if axis in rows else _kept(program, node, rows)


@rule("embedding")
def _embedding(program: Program, node: Any, rows: Rows) -> Any:
    table, ids, *others = node.args
    return OperatorCall(
        node.target, (_ask(program, table), _ask(program, ids, rows), *others), node.kwargs
    )


@rule(
    "softmax.int", "log_softmax.int", "_softmax", "_log_softmax", "mean.dim", "sum.dim_IntList",
    "var.correction", "std.correction", "var.dim", "std.dim", "amax", "amin", "argmax", "argmin",
    "logsumexp", "linalg_vector_norm", "any.dim", "all.dim", "prod.dim_int", "cumprod", "cumsum",
)  # fmt: skip
def _reduction(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    name = str(node.target).split(".")[1]
    place = 2 if name == "linalg_vector_norm" else 1
    given = node.args[place] if len(node.args) > place else node.kwargs.get("dim")
    if given is None:
        return None
    rank = _rank(program, source)
    dims = [axis % rank for axis in (given if isinstance(given, list | tuple) else [given])]
    if _rank(program, node) == rank:
        back = rows
    else:
        left = [axis for axis in range(rank) if axis not in dims]
        back = tuple(left[axis] for axis in rows)
    if any(axis in dims for axis in back):
        if name == "cumsum" and back == (dims[0],):
            return RunningSum(Ask(source, back))
        return None
    return _with(node, Ask(source, back))


@rule("matmul", "bmm", "mm")
def _matmul(program: Program, node: Any, rows: Rows) -> Any:
    left, right = node.args
    return _product(program, node, rows, left, right)


def _product(program: Program, node: Any, rows: Rows, left: Any, right: Any) -> OperatorCall | None:
    rank, of_left, of_right = (_rank(program, each) for each in (node, left, right))
    if of_left < 2 or of_right < 2:
        return None
    one = (axis - (rank - of_left) for axis in rows if axis != rank - 1)
    two = (axis - (rank - of_right) for axis in rows if axis != rank - 2)
    asked = (
        Ask(left, tuple(axis for axis in one if axis in program.target_axes(left))),
        Ask(right, tuple(axis for axis in two if axis in program.target_axes(right))),
    )
    return OperatorCall(node.target, asked)


@rule("addmm", "baddbmm")
def _added_product(program: Program, node: Any, rows: Rows) -> Any:
    added, left, right = node.args[:3]
    product = _product(program, node, rows, left, right)
    if product is None:
        return None
    shift = _rank(program, node) - _rank(program, added)
    axes = program.target_axes(added)
    kept = tuple(axis - shift for axis in rows if axis - shift in axes)
    return OperatorCall(node.target, (Ask(added, kept), *product.args), node.kwargs)


@rule("einsum")
def _einsum(program: Program, node: Any, rows: Rows) -> Any:
    equation, tensors = node.args[:2]
    operands, result = einsum_axes(node) or ([], "")
    if not result:
        return None
    asked = {result[axis] for axis in rows}
    given = []
    for letters, tensor in zip(operands, tensors, strict=True):
        axes = program.target_axes(tensor)
        given.append(
            Ask(tensor, tuple(i for i, c in enumerate(letters) if c in asked and i in axes))
        )
    return OperatorCall(node.target, (equation, given))


def _recognised(program: Program, node: Any, rows: Rows) -> Any:
    query, key, value, bias, scale = node.args
    if _rank(program, node) - 1 in rows:
        return None
    asked = [Ask(each, tuple(a for a in rows if a < 2)) for each in (key, value)]
    of_bias = program.target_axes(bias) if isinstance(bias, fx.Node) else ()
    masked = _ask(program, bias, tuple(axis for axis in rows if axis in of_bias))
    return OperatorCall(attention, (Ask(query, rows), *asked, masked, scale))


RULES[attention] = _recognised


@rule("scaled_dot_product_attention")
def _attention(program: Program, node: Any, rows: Rows) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, value = (given[name] for name in names[:3])
    rank = _rank(program, node)
    if rank - 1 in rows:
        return None
    asked = (
        Ask(query, rows),
        *(Ask(each, tuple(axis for axis in rows if axis < rank - 2)) for each in (key, value)),
    )
    others = {name: _asked(given[name]) for name in given if name not in names}
    mask, causal = given.get("attn_mask"), bool(given.get("is_causal", False))
    if rank - 2 in rows:
        if causal and not program.pure_axes(key):
            return None
        causal = False  # the last row sees all of them
    if isinstance(mask, fx.Node):
        shift = rank - _rank(program, mask)
        axes = program.target_axes(mask)
        mask = Ask(mask, tuple(axis - shift for axis in rows if axis - shift in axes))
    return OperatorCall(node.target, (*asked, mask, 0.0, causal), others)


@rule("permute")
def _permute(program: Program, node: Any, rows: Rows) -> Any:
    source, order = node.args
    rank = _rank(program, node)
    back = sorted(order[axis] % rank for axis in rows)
    return OperatorCall(node.target, (Ask(source, tuple(back)), order))


@rule("transpose.int", "t")
def _transpose(program: Program, node: Any, rows: Rows) -> Any:
    source, *axes = node.args
    rank = _rank(program, node)
    one, two = (int(axis) % rank for axis in axes) if axes else (0, 1)
    swapped = {one: two, two: one}
    back = tuple(sorted(swapped.get(axis, axis) for axis in rows))
    return OperatorCall(node.target, (Ask(source, back), *axes))


@rule("unsqueeze")
def _unsqueeze(program: Program, node: Any, rows: Rows) -> Any:
    source, axis = node.args
    new = int(axis) % _rank(program, node)
    back = tuple(each - (each > new) for each in rows)
    return OperatorCall(node.target, (Ask(source, back), axis))


@rule("squeeze.dim")
def _squeeze(program: Program, node: Any, rows: Rows) -> Any:
    source, axis = node.args
    if _rank(program, source) == _rank(program, node):
        return None
    gone = int(axis) % _rank(program, source)
    back = tuple(each + (each >= gone) for each in rows)
    return OperatorCall(node.target, (Ask(source, back), axis))


@rule("view", "reshape", "_unsafe_view", "unflatten.int", "flatten.using_ints", "_reshape_copy")
def _reshape(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    before, after = program.sizes(source), program.sizes(node)
    back = axes_before(before, after)
    if back is None or any(axis not in back for axis in rows):
        return None
    asked = Ask(source, tuple(sorted(back[i] for i in rows)))
    known = {
        size: OperatorCall(aten.sym_size.int, (asked, axis))
        for axis, size in enumerate(before)
        if axis not in asked.rows and len(set(size)) > 1
    }
    sizes = [size_of(size, i in rows, known) for i, size in enumerate(after)]
    if any(size is None for size in sizes):
        return None
    varying = [i for i, size in enumerate(sizes) if not isinstance(size, int)]
    if len(varying) == 1:  # it follows from the others
        sizes[varying[0]] = -1
    return OperatorCall(aten.reshape.default, (asked, sizes))


def axes_before(before: Sequence[Size], after: Sequence[Size]) -> dict[int, int] | None:
    """For each target axis after a reshape, the one before it; None if a row is split."""
    found: dict[int, int] = {}
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs = list[int](), list[int]()
        one, two = [1] * len(Program.lengths()), [1] * len(Program.lengths())
        while True:
            if one == two and (ins or outs):
                break
            if i < len(before) and (math.prod(one) <= math.prod(two) or j >= len(after)):
                one = [a * b for a, b in zip(one, before[i], strict=True)]
                ins.append(i)
                i += 1
            elif j < len(after):
                two = [a * b for a, b in zip(two, after[j], strict=True)]
                outs.append(j)
                j += 1
            else:
                return None
        source = [axis for axis in ins if Program.depends_on_length(before[axis])]
        result = [axis for axis in outs if Program.depends_on_length(after[axis])]
        if not source and not result:
            continue
        if len(source) != 1 or len(result) != 1:
            return None
        pure = Program.is_length(before[source[0]]) and Program.is_length(after[result[0]])
        if pure and _product_of(before, ins, source[0]) != _product_of(after, outs, result[0]):
            return None
        found[result[0]] = source[0]
    return found


def _product_of(sizes: Sequence[Size], axes: Sequence[int], end: int) -> Size:
    """The product of the sizes of a group's axes before one of them."""
    product = [1] * len(Program.lengths())
    for axis in axes:
        if axis >= end:
            break
        product = [a * b for a, b in zip(product, sizes[axis], strict=True)]
    return tuple(product)


@rule("expand", "repeat")
def _expand(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    sizes, before = program.sizes(node), program.sizes(source)
    shift = len(sizes) - len(before)
    repeated = node.target is aten.repeat.default
    wanted: list[Any] = []
    for axis, size in enumerate(sizes):
        own = before[axis - shift] if axis >= shift else None
        if own == size and (repeated or axis >= shift):
            wanted.append(1 if repeated else -1)
            continue
        if repeated and own is not None:
            size = tuple(a // b for a, b in zip(size, own, strict=True))
        wanted.append(size_of(size, axis in rows))
    if any(each is None for each in wanted):
        return None
    axes = program.target_axes(source)
    back = tuple(axis - shift for axis in rows if axis - shift in axes)
    return OperatorCall(node.target, (Ask(source, back), wanted))


@rule("slice.Tensor")
def _slice(program: Program, node: Any, rows: Rows) -> Any:
    source, given = node.args[0], list(node.args[1:])
    axis, start, _, step = given + [0, None, None, 1][len(given) :]
    axis = int(axis) % _rank(program, node)
    start = 0 if start is None else start
    if axis in program.target_axes(source):
        whole = start == 0 and program.sizes(source)[axis] == program.sizes(node)[axis]
        return Ask(source, rows) if whole else None
    if axis in program.target_axes(node):  # a part of a table, such as positions[:, :T]
        if (
            not isinstance(start, int)
            or step != 1
            or not program.is_length(program.sizes(node)[axis])
        ):
            return None
        begin = OperatorCall(operator.add, (TOTAL, start - 1)) if axis in rows else start
        stop = OperatorCall(operator.add, (TOTAL, start))
        back = tuple(each for each in rows if each != axis)
        return OperatorCall(node.target, (Ask(source, back), axis, begin, stop))
    return _with(node, Ask(source, rows))


@rule("select.int")
def _select(program: Program, node: Any, rows: Rows) -> Any:
    source, axis = node.args[:2]
    gone = int(axis) % _rank(program, source)
    if gone in program.target_axes(source):
        return None
    return _with(node, Ask(source, tuple(each + (each >= gone) for each in rows)))


@rule("cat", "concat", "concatenate", "stack")
def _cat(program: Program, node: Any, rows: Rows) -> Any:
    tensors = node.args[0]
    axis = int(node.args[1]) % _rank(program, node) if len(node.args) > 1 else 0
    if axis in rows:
        return None
    stacked = node.target is aten.stack.default
    back = tuple(each - (stacked and each > axis) for each in rows)
    given = [
        Ask(each, tuple(a for a in back if a in program.target_axes(each))) for each in tensors
    ]
    return OperatorCall(node.target, (given, axis))


@rule("chunk", "split.Tensor", "split_with_sizes", "split.sizes")
def _split(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    axis = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    if int(axis) % _rank(program, source) in program.target_axes(source):
        return None
    return _with(node, Ask(source, rows))


@rule("unbind.int")
def _unbind(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    axis = int(node.args[1]) % _rank(program, source) if len(node.args) > 1 else 0
    if axis in program.target_axes(source):
        return None
    return _with(node, Ask(source, tuple(each + (each >= axis) for each in rows)))


def _item(program: Program, node: Any, rows: Rows) -> Any:
    """One of the tensors that ``chunk``, ``split`` or ``unbind`` give; all have the same axes."""
    several, number = node.args
    if is_recurrent(several):
        causal = number != 0 or node in program.stable
        ready = (number == 0 and rows == (0,)) or (number != 0 and not rows)
        return Carried(several, int(number)) if ready and causal else None
    if several.target not in _SEVERAL:
        return None
    return OperatorCall(operator.getitem, (Ask(several, rows), number))


_SEVERAL = {
    target for target, found in RULES.items() if found in (_split, _unbind)
}  # of which each result has the same axes
RULES[operator.getitem] = _item


@rule("index.Tensor")
def _index(program: Program, node: Any, rows: Rows) -> Any:
    source, indices = node.args
    given = [i for i, each in enumerate(indices) if each is not None]
    if given != [0] or program.target_axes(source):
        return None
    ids = indices[0]
    return OperatorCall(node.target, (Ask(source), [Ask(ids, rows)]))


@rule("index_select")
def _index_select(program: Program, node: Any, rows: Rows) -> Any:
    source, axis, ids = node.args
    if program.target_axes(source) or rows != (int(axis) % _rank(program, node),):
        return None
    return OperatorCall(node.target, (Ask(source), axis, Ask(ids, (0,))))


@rule("one_hot")
def _one_hot(program: Program, node: Any, rows: Rows) -> Any:
    return _kept(program, node, rows) if len(node.args) > 1 else None


@rule("index_put")
def _index_put(program: Program, node: Any, rows: Rows) -> Any:
    """``x[mask] = number``, as a ``where`` of rows."""
    source, indices, value = node.args[:3]
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or program.sizes(value) or program.dtypes[mask] != torch.bool:
        return None
    if program.sizes(mask) != program.sizes(source) or (len(node.args) > 3 and node.args[3]):
        return None
    of_mask = Ask(mask, tuple(axis for axis in rows if axis in program.target_axes(mask)))
    return OperatorCall(aten.masked_fill.Tensor, (Ask(source, rows), of_mask, Ask(value)))


@rule("gather", "scatter_add", "scatter.src", "scatter.value")
def _gather(program: Program, node: Any, rows: Rows) -> Any:
    source, axis, *others = node.args
    if int(axis) % _rank(program, node) in rows:
        return None
    given = [
        Ask(each, tuple(a for a in rows if a in program.target_axes(each)))
        if isinstance(each, fx.Node)
        else each
        for each in (source, *others)
    ]
    if any(isinstance(e, fx.Node) and _rank(program, e) != _rank(program, node) for e in others):
        return None
    return OperatorCall(node.target, (given[0], axis, *given[1:]), node.kwargs)


@rule("arange", "arange.start")
def _arange(program: Program, node: Any, rows: Rows) -> Any:
    start = node.args[0] if node.target is aten.arange.start else 0
    if not rows or not isinstance(start, int) or not program.is_length(program.sizes(node)[0]):
        return None
    begin = OperatorCall(operator.add, (TOTAL, start - 1))
    return OperatorCall(
        aten.arange.start, (begin, OperatorCall(operator.add, (TOTAL, start))), node.kwargs
    )


@rule("full", "zeros", "ones", "empty.memory_format")
def _constant(program: Program, node: Any, rows: Rows) -> Any:
    sizes = [size_of(size, i in rows) for i, size in enumerate(program.sizes(node))]
    if any(size is None for size in sizes):
        return None
    return OperatorCall(node.target, (sizes, *node.args[1:]), node.kwargs)


@rule("new_full", "new_zeros", "new_ones", "new_empty")
def _new_constant(program: Program, node: Any, rows: Rows) -> Any:
    sizes = [size_of(size, i in rows) for i, size in enumerate(program.sizes(node))]
    if any(size is None for size in sizes):
        return None
    like = node.args[0]
    return OperatorCall(
        node.target, (Ask(like, program.target_axes(like)), sizes, *node.args[2:]), node.kwargs
    )


@rule("tril", "triu")
def _triangle(program: Program, node: Any, rows: Rows) -> Any:
    source = node.args[0]
    diagonal = node.args[1] if len(node.args) > 1 else 0
    rank = _rank(program, node)
    square = all(program.is_length(size) for size in program.sizes(node)[-2:])
    if rows != (rank - 2,) or not square:
        return None
    # Of the last row, number T - 1, the columns from T - 1 + diagonal on, or up to there.
    columns = OperatorCall(aten.arange.default, (TOTAL,))
    from_row = OperatorCall(aten.sub.Tensor, (columns, OperatorCall(operator.add, (TOTAL, -1))))
    compare = aten.ge.Scalar if node.target is aten.triu.default else aten.le.Scalar
    of_kind = program.dtypes[node]
    nothing = False if of_kind == torch.bool else 0.0 if of_kind.is_floating_point else 0
    kept = OperatorCall(compare, (from_row, diagonal))
    return OperatorCall(aten.where.ScalarOther, (kept, Ask(source, rows), nothing))


@rule("constant_pad_nd", "pad")
def _pad(program: Program, node: Any, rows: Rows) -> Any:
    source, pads = node.args[:2]
    rank = _rank(program, node)
    for axis in rows:
        before_last = rank - 1 - axis
        of_axis = pads[2 * before_last : 2 * before_last + 2]
        if len(of_axis) == 2 and of_axis[1] != 0:
            return None
    cut = [0 if rank - 1 - i // 2 in rows else amount for i, amount in enumerate(pads)]
    return OperatorCall(node.target, (Ask(source, rows), cut, *node.args[2:]), node.kwargs)
