"""A forward as an exported program: what each tensor depends on, and which axes follow the target.

The program is run at several sizes. The size of an axis is therefore known as the sizes that it had
in all runs: an axis that changes with the number of target ids alone holds a row for each of them.

Axes: B batch, S source, T target, V vocabulary.
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.export.graphs.exporter import largest_sizes, smallest_sizes
from tfexport.export.graphs.kernels import source_line
from tfexport.export.incremental.attention import attention, recognise
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.forward_capture import (
    NUMBERS_OF_VALUES,
    TARGET,
    capture_forward,
    drop_assertions,
)
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.incremental.recurrent import is_recurrent
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.source_locations import one_line
from tfexport.graph_io import BATCH

# The runs, and what is different in each from the first.
FIRST, LONGER, OTHER_TOKENS, MORE_ROWS, MORE_SOURCE, OTHER_ROW, AGAIN, THIRD_SOURCE = range(8)
LENGTHS = (3, 5, 5, 3, 3, 3, 3, 3)  # T of each run
BATCHES = (2, 2, 2, 3, 2, 2, 2, 2)  # B
RUNS = len(LENGTHS)
Size = tuple[int, ...]  # of an axis in each run
Shape = tuple[int, ...] | None  # of a tensor, or the value of a number; None for others
_NOTHING: Mapping[fx.Node, Any] = MappingProxyType({})
Part = Callable[[fx.Node], tuple[int, int | None] | None]  # an axis and rows of it; None for none
_OTHER_SIZES = (
    "Sizes that are numbers, or that hold at the example's size only, are part of the program; "
    "compute them from x.size(1), or declare an axis of fixed size by its number"
)
_TOLERANCE = 1e-4  # by which a row may change when later tokens come: other orders of sums


_FILLING = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1}  # the argument that fills
# Operators that keep a tensor whose elements are all alike so.
_KEEPING = {
    "expand", "repeat", "view", "reshape", "_unsafe_view", "permute", "transpose", "unsqueeze",
    "squeeze", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "select", "slice",
    "max", "min", "amax", "amin", "to", "_to_copy",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """The inputs and the target ids of one run."""

    inputs: tuple[Tensor, ...]
    target: Tensor


class Program:
    """An exported program of a forward, and what was seen when it ran.

    Attributes:
        own: the forward.
        examples: of all runs.
        graph: with functional operators only.
        target: the node of the target ids.
        inputs: the nodes of the inputs.
        logits: the node of the result.
        tensors: the parameters, buffers and constants, by node.
        names: of these in the module.
        longest: axes of the inputs for which the forward takes another branch from some size on,
            each with the largest size before.
        of_values: numbers that an encoder takes from the values of tensors.
        several: operators that give several tensors.
        dtypes: of each tensor, or of the first of several; sizes are known of all runs.
    """

    def __init__(self, own: OwnForward, examples: Sequence[Example]) -> None:
        """Export a forward and run it.

        Args:
            own: the module, in eval mode.
            examples: of all runs, in their order.

        Raises:
            ForwardCaptureError: torch cannot export the forward; its error is the cause.
            ModuleError: the program does not run at other sizes, or takes a number from values.
        """
        self.own, self.examples = own, examples
        self.longest: dict[str, int] = {}
        self.of_values: set[fx.Node] = set()
        self.several: set[fx.Node] = set()
        self.exported = capture_forward(own, examples[0].inputs, examples[0].target)
        self.graph = self.exported.graph
        drop_assertions(self.graph)
        signature = self.exported.graph_signature
        named: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self.tensors: dict[fx.Node, Tensor] = {}
        self.names: dict[fx.Node, str] = {}
        given: list[fx.Node] = []
        for node in self.graph.find_nodes(op="placeholder"):
            if node.name in named:
                name = named[node.name]
                held = self.exported.state_dict.get(name, self.exported.constants.get(name))
                assert isinstance(held, Tensor)
                self.tensors[node], self.names[node] = held, name.removeprefix("model.")
            else:
                given.append(node)
        *self.inputs, self.target = given
        held = ((node, each.detach()) for node, each in self.tensors.items())
        numbers = {node: x.item() for node, x in held if x.numel() == 1 and not x.is_complex()}
        recognise(self.graph, numbers)
        (output,) = self.graph.find_nodes(op="output")
        self.logits: fx.Node = output.args[0][0]
        self._run_all()

    def _replace_numbers(self) -> None:
        """Replace numbers that are taken from tensors by the sizes that fill these.

        The maximum of ``torch.full((B,), x.size(1))`` is that size. An encoder may take other
        numbers from values.

        Raises:
            ModuleError: a number depends on the target ids, or has to be the size of an axis.
        """
        for node in [node for node in self.graph.nodes if node.target in NUMBERS_OF_VALUES]:
            size = None if self.is_float(node) else self._filled_with(node.args[0])
            if size is None and node in self.of_target:
                raise self._refused_number(node)
            if size is None:
                self.of_values.add(node)
                continue
            node.replace_all_uses_with(size)
            self.graph.erase_node(node)
        drop_assertions(self.graph)  # of those that were replaced
        for name in ("of_target", "of_tokens", "of_source"):
            vars(self).pop(name, None)
        for node in self.graph.nodes:
            numbers = self.of_values.intersection(node.all_input_nodes)
            if node.target is operator.eq and numbers:  # a check: it has to be the size of an axis
                taken = (each for each in self.graph.nodes if each in self.of_values)
                raise self._refused_number(next(taken))
            if numbers and self.is_number(node):
                self.of_values.add(node)

    def _filled_with(self, value: Any) -> fx.Node | None:
        """The size that all elements of a tensor are; None if they are something else."""
        if not isinstance(value, fx.Node) or not hasattr(value.target, "_schema"):
            return None
        target: Any = value.target
        name, args = target.name().removeprefix("aten::").partition(".")[0], value.args
        if self.dtypes.get(value) not in (torch.int64, torch.int32, torch.float32):
            return None  # which may not hold it
        if name in _FILLING:
            size: Any = args[_FILLING[name]]
            whole = isinstance(size, fx.Node) and self.is_number(size) and not self.is_float(size)
            return size if whole else None
        tensors = [each for each in value.all_input_nodes if not self.is_number(each)]
        if name in _KEEPING and len(tensors) == 1:
            return self._filled_with(args[0])
        more = args[1] if len(args) > 1 else None
        if name not in ("add", "sub") or not isinstance(more, int) or value.kwargs:
            return None
        filled = self._filled_with(args[0])
        if filled is None:
            return None
        compute: Callable[..., int] = operator.add if name == "add" else operator.sub
        with self.graph.inserting_before(value):
            made: fx.Node = self.graph.call_function(compute, (filled, more))
        made.meta |= {name: each for name, each in value.meta.items() if name != "val"}
        sizes = [(compute(number, more),) for number in self.number_sizes(filled)]
        self._shapes[made], self._numbers[made] = tuple(sizes), int
        return made

    def _refused_number(self, node: fx.Node) -> ModuleError:
        return self.own.wrong(
            f"takes a size from the values of a tensor: {self.line_of(node)}. A graph knows sizes "
            "of tensors only: torch.arange(x.size(1)) < lengths[:, None] takes the place of "
            "torch.arange(lengths.max()), and pad_packed_sequence takes total_length=x.size(1)"
        )

    def _run_all(self) -> None:
        follow = self._followers()
        given = {each for node in follow for each in node.all_input_nodes} - follow
        self.dtypes, self._numbers = dict[fx.Node, torch.dtype](), dict[fx.Node, type]()
        # Values of an encoder of sound take gigabytes: what is not compared is not kept.
        first, shapes = self._run(
            self.examples[FIRST], {*follow, *given, self.logits}, see=self._see
        )
        found, shapes_of_runs = dict[int, ProgramValues](), [shapes]
        rest = {node: first[node] for node in given}
        same_shapes = {
            node: shape
            for node, shape in shapes.items()
            if node not in follow and node.op == "call_function"
        }
        for run in range(FIRST + 1, RUNS):
            example, kept = self.examples[run], {self.logits}
            if run in (LONGER, OTHER_TOKENS):  # of the others, most is seen in the logits
                kept = follow
            same = kept is follow and self._has_inputs_of_first(run)
            known = (rest, same_shapes) if same else (_NOTHING, _NOTHING)
            found[run], shapes = self._run(example, kept, *known)
            shapes_of_runs.append(shapes)
        self._shapes = {
            node: tuple(shapes.get(node) for shapes in shapes_of_runs) for node in self.graph.nodes
        }
        self._unlike = {
            run: self._changed(first, found[run], self._first_tokens)
            for run in (LONGER, OTHER_TOKENS)
        }
        parts: dict[int, Part] = {AGAIN: lambda node: (0, None), OTHER_ROW: self._first_row}
        whole: ProgramValues | None = None
        for run, part in parts.items():
            self._unlike[run] = self._changed(first, found[run], part)
            if self._unlike[run]:  # the logits differ: where does it begin?
                whole = whole or self.run(self.examples[FIRST])
                self._unlike[run] = self._changed(whole, self.run(self.examples[run]), part)
        self._replace_numbers()

    def _see(self, node: fx.Node, value: Any) -> None:
        """Note what kind of value a node has."""
        one = value[0] if isinstance(value, tuple | list) and value else value
        if one is not value:
            self.several.add(node)
        if isinstance(one, Tensor):
            self.dtypes[node] = one.dtype
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._numbers[node] = type(value)

    def _followers(self) -> set[fx.Node]:
        """Nodes that are computed from the target ids or from their number, not their batch."""
        batch = self.target, 0  # (B, T), whatever the order of the forward
        found = {self.target}
        for node in self.graph.nodes:
            # An encoder may take the size of its batch from the target.
            if any(each in found for each in node.all_input_nodes) and not (
                node.target is torch.ops.aten.sym_size.int and node.args == batch
            ):
                found.add(node)
        return found

    def _has_inputs_of_first(self, run: int) -> bool:
        pairs = zip(self.examples[FIRST].inputs, self.examples[run].inputs, strict=True)
        return all(torch.equal(one, two) for one, two in pairs)

    def _first_row(self, node: fx.Node) -> tuple[int, int | None] | None:
        axis = self.batch_axis(node)
        return None if axis is None else (axis, 1)

    def _first_tokens(self, node: fx.Node) -> tuple[int, int | None] | None:
        axes = self.pure_axes(node)
        return (axes[0], LENGTHS[FIRST]) if len(axes) == 1 else None

    def _changed(
        self,
        one: Mapping[fx.Node, Any],
        two: Mapping[fx.Node, Any],
        part: Part,
    ) -> list[fx.Node]:
        """Nodes whose values differ in two runs, in a part of an axis that both have."""
        return [
            node
            for node in self.graph.nodes
            if node not in self.tensors
            and (of_node := part(node)) is not None
            and not _alike(one.get(node), two.get(node), *of_node)
        ]

    @cached_property
    def stable(self) -> set[fx.Node]:
        """Nodes with a row for each token, whose rows stay when later tokens come."""
        return {
            node
            for node in self.graph.nodes
            if len(self.pure_axes(node)) == 1 and node not in self._moving
        }

    @cached_property
    def _moving(self) -> set[fx.Node]:
        """Nodes with a row for each token, whose rows change when later tokens come."""
        return {*self._unlike[LONGER], *self._unlike[OTHER_TOKENS]}

    def source_of_change(self, node: fx.Node) -> fx.Node:
        """The first node because of which rows of a node change when later tokens come."""
        before = [each for each in node.all_input_nodes if each in self._moving]
        return self.source_of_change(before[0]) if before else node

    def cause(self, *runs: int) -> fx.Node | None:
        """The first node that differs in a run; None if the logits do not."""
        changed = {node for run in runs for node in self._unlike[run]}
        if self.logits not in changed:
            return None
        first: fx.Node = next(node for node in self.graph.nodes if node in changed)
        return first

    def values(self, example: Example, known: Mapping[fx.Node, Any] = _NOTHING) -> ProgramValues:
        """The values for inputs and target ids, computed when they are asked for."""
        given = zip((*self.inputs, self.target), (*example.inputs, example.target), strict=True)
        return ProgramValues({**self.tensors, **dict(given), **known})

    def run(self, example: Example) -> ProgramValues:
        """The values of all nodes, for inputs and target ids."""
        return self._run(example, set(self.graph.nodes))[0]

    def run_behind(
        self, node: fx.Node, example: Example, known: Mapping[fx.Node, Any] = _NOTHING
    ) -> ProgramValues:
        """See ``run``; what a node alone needs is computed again if it is asked for.

        Args:
            node: of the graph.
            example: the inputs and target ids.
            known: values that are taken, not computed.
        """
        needed, waiting = set[fx.Node](), [node]
        while waiting:
            new = set(waiting.pop().all_input_nodes) - needed
            needed |= new
            waiting += new
        kept = {
            each
            for each in self.graph.nodes
            if each not in needed or not needed.issuperset(each.users)
        }
        return self._run(example, kept, known)[0]

    def _run(
        self,
        example: Example,
        kept: Collection[fx.Node],
        known: Mapping[fx.Node, Any] = _NOTHING,
        known_shapes: Mapping[fx.Node, Shape] = _NOTHING,
        see: Callable[[fx.Node, Any], None] = lambda node, value: None,
    ) -> tuple[ProgramValues, dict[fx.Node, Shape]]:
        """Values of the nodes that are kept, and the shapes of all.

        Args:
            example: the inputs and target ids.
            kept: the nodes whose values stay.
            known: values that are taken, not computed.
            known_shapes: of nodes that are not computed, whether their values are known or not.
            see: called with each other node and its value.

        Raises:
            ModuleError: the program does not run at these sizes; the message names the line.
        """
        values, shapes = self.values(example, known), dict(known_shapes)
        nodes = [node for node in self.graph.nodes if node not in known_shapes]
        try:
            for node, value in values.run(nodes, kept):
                shapes[node] = _shape(value)
                see(node, value)
        except RuntimeError as error:
            if example is self.examples[FIRST]:
                raise  # it was exported at these sizes
            line = self.line_of(next(node for node in nodes if node not in shapes))
            raise self.own.wrong(
                f"works at some sizes only: at {_sizes_of(self.own, example)}, "
                f"{line}: {one_line(error)}. {_OTHER_SIZES}"
            ) from error
        return values, shapes

    def largest_sizes(self) -> dict[str, int]:
        """See ``exporter.largest_sizes``."""
        return largest_sizes(self.exported, self._axes())

    def smallest_sizes(self) -> dict[str, int]:
        """See ``exporter.smallest_sizes``."""
        return smallest_sizes(self.exported, self._axes())

    def _axes(self) -> list[Sequence[int | str]]:
        return [*(each.axes for each in self.own.batch_first), (BATCH, TARGET)]

    def logits_of(self, example: Example) -> Tensor:
        """The program's logits (B, T, V) for inputs and target ids.

        Raises:
            ModuleError: it does not run at these sizes; the message names the line.
        """
        logits: Tensor = self._run(example, {self.logits})[0][self.logits]
        return logits

    # What a node depends on.

    @cached_property
    def of_target(self) -> set[fx.Node]:
        """Nodes that depend on the target ids or on their number."""
        return self._reached({self.target})

    @cached_property
    def of_tokens(self) -> set[fx.Node]:
        """Nodes that depend on the target ids, not on their number alone."""
        return self._reached({self.target}, through_sizes=False)

    @cached_property
    def of_source(self) -> set[fx.Node]:
        """Nodes that depend on the values of the inputs."""
        return self._reached(set(self.inputs), through_sizes=False)

    def _reached(self, found: set[fx.Node], through_sizes: bool = True) -> set[fx.Node]:
        found = set(found)
        for node in self.graph.nodes:
            size = node.target is torch.ops.aten.sym_size.int
            if any(each in found for each in node.all_input_nodes) and (
                not size or (through_sizes and self.depends_on_length(self.number_sizes(node)))
            ):
                found.add(node)
        return found

    # Sizes.

    def sizes(self, node: fx.Node) -> tuple[Size, ...]:
        """The size of each axis of a tensor, or of the first of several, in every run."""
        shapes = self._shapes[node]
        return tuple(zip(*shapes, strict=True)) if all(s is not None for s in shapes) else ()

    def number_sizes(self, node: fx.Node) -> Size:
        """A number in every run."""
        return tuple(0 if shape is None else int(shape[0]) for shape in self._shapes[node])

    @staticmethod
    def lengths() -> Size:
        """T in every run."""
        return LENGTHS

    @staticmethod
    def batches() -> Size:
        """B in every run."""
        return BATCHES

    @staticmethod
    def depends_on_length(size: Size) -> bool:
        """Whether a size changes with the number of target ids."""
        return size[LONGER] != size[FIRST]

    @staticmethod
    def depends_on_batch(size: Size) -> bool:
        """Whether a size changes with the number of rows."""
        return size[MORE_ROWS] != size[FIRST]

    @staticmethod
    def is_length(size: Size) -> bool:
        """Whether a size is T."""
        return size == LENGTHS

    @staticmethod
    def is_batch(size: Size) -> bool:
        """Whether a size is B."""
        return size == BATCHES

    def target_axes(self, node: fx.Node) -> tuple[int, ...]:
        """Axes that have a row for each target id, or a multiple of them."""
        return tuple(i for i, size in enumerate(self.sizes(node)) if self.depends_on_length(size))

    def pure_axes(self, node: fx.Node) -> tuple[int, ...]:
        """Axes of the size T."""
        return tuple(i for i, size in enumerate(self.sizes(node)) if self.is_length(size))

    def batch_axis(self, node: fx.Node) -> int | None:
        """The axis of the batch; None if there is none."""
        found = [i for i, size in enumerate(self.sizes(node)) if self.is_batch(size)]
        return found[0] if found else None

    def is_number(self, node: fx.Node) -> bool:
        """Whether a node is a size, not a tensor."""
        return node in self._numbers

    def is_float(self, node: fx.Node) -> bool:
        """Whether a node is a float, and not a tensor."""
        return self._numbers.get(node) is float

    def line_of(self, node: fx.Node) -> str:
        """The operator of a node and the user's line: ``softmax at a.py:1 in f: …``."""
        line = source_line(node.meta.get("stack_trace") or "")
        return f"{_operator(node)} at {line}" if line else _operator(node)

    def place_of(self, node: fx.Node) -> str:
        """The operator of a node, and where it is: ``softmax, a.py:1``."""
        if node is self.target:
            return "target ids"
        line = source_line(node.meta.get("stack_trace") or "")
        return f"{_operator(node)}, {line.partition(' in ')[0]}" if line else _operator(node)


def _operator(node: fx.Node) -> str:
    """The name of an operator; of ``getitem`` that of the operator which gives several tensors."""
    if node.target is operator.getitem:
        return _operator(node.all_input_nodes[0])
    if is_recurrent(node):
        return str(node.args[1])
    if node.target is attention:
        return "softmax"
    name = getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0].rstrip("_")


def _sizes_of(own: OwnForward, example: Example) -> str:
    """The sizes of the named axes of an example."""
    sizes = {
        axis: size
        for each, tensor in zip(own.batch_first, example.inputs, strict=True)
        for axis, size in zip(each.axes, tensor.shape, strict=True)
        if isinstance(axis, str)
    }
    sizes[TARGET] = example.target.size(1)
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def _shape(value: Any) -> Shape:
    if isinstance(value, tuple | list) and value and isinstance(value[0], Tensor):
        value = value[0]
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, int | float):
        return (int(value),) if math.isfinite(value) else (0,)
    return None


def _alike(one: Any, two: Any, axis: int, length: int | None) -> bool:
    """Whether the first rows of two tensors are equal, but for rounding."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return True
    if length is not None:
        one, two = one.narrow(axis, 0, length), two.narrow(axis, 0, length)
    if one.shape != two.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
