"""The dataflow of a program: what dominates what, and linear maps that are read by running them.

A map is linear if each of its operators is in its own input. Its matrix is what it makes of unit
vectors, so that transposes, packed and sliced matrices, factors and products need no rules.

Axes: B batch, L length of one side, E width.
"""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from tfexport.export.incremental.program import Program
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.operators import (
    AXIS_ORDERS,
    GROUPED_AXES,
    JOINS,
    PARTS,
    PRODUCTS,
    REARRANGED,
    SAME_VALUES,
    SCALES,
    SELECTIONS,
    SHAPES,
    SUMS,
    aten,
)

_MOST_PLACES = 16  # of a row, by which a linear map of each of its positions is read
_SAME = 1e-5  # relative difference of products that are equal but for the order of their sums
MOST_POSITIONS = 2048  # of a table that the program computes, so that nothing bounds it


class NotRecognisedError(Exception):
    """A program, or a part of it, is none of the forms that are known; the message says where."""


# Values of one tensor, all or some, in another form.
_ARRANGES = (
    *REARRANGED, *PARTS, *GROUPED_AXES, aten.narrow.default, aten.repeat_interleave.self_int,
    aten.repeat.default, aten.movedim.int, aten.index_select.default, aten.neg.default,
    aten.view_as_complex.default, aten.view_as_real.default, operator.getitem,
)  # fmt: skip
_ASSERTS = aten._assert_tensor_metadata.default  # has no result
_BIASED = {aten.linear.default: 2, aten.conv1d.default: 2, aten.addmm.default: 0,
           aten.baddbmm.default: 0}  # fmt: skip


@dataclass(frozen=True)
class Linear:
    """A linear map from one tensor to another, with the operators in between.

    Attributes:
        source: (B, L, E), batch and length in either order.
        result: what it gives, of any shape.
        nodes: the operators, in their order.
    """

    source: fx.Node
    result: fx.Node
    nodes: tuple[fx.Node, ...]


class Dataflow:
    """The dataflow of a program on one example.

    Attributes:
        values: of all nodes.
        side: the nodes that are looked at; others count as constants.
        norms: by their results; no linear map begins before one.
        most_places: of a row, at which a linear map of each of its positions is looked at.
    """

    def __init__(
        self,
        program: Program,
        values: ProgramValues,
        at: Callable[[int], ProgramValues],
        decoder: bool,
        memory: fx.Node | None = None,
        most_places: int = _MOST_PLACES,
    ) -> None:
        """Take a program.

        Args:
            program: of a forward.
            values: of all nodes, on one example.
            at: gives values for inputs and target ids of a length, or of the largest if it is less.
            decoder: look at what depends on the target ids; if not, at what does not.
            memory: where the side of the source begins; None for the embeddings of its ids.
            most_places: see ``Dataflow``; few where positions are many and matrices large.
        """
        self.program, self._at, self.decoder = program, at, decoder
        self._memory, self.most_places = memory, most_places
        self.values = values
        self.order = {node: i for i, node in enumerate(program.graph.nodes)}
        self._random: dict[fx.Node, Tensor] = {}
        self._rotates = False
        self.norms: Mapping[fx.Node, Any] = {}

    def of_other_side(self, node: fx.Node) -> bool:
        """Whether a node is an activation that this side takes as it is."""
        return node in self._activations and node not in self.side

    @cached_property
    def static(self) -> set[fx.Node]:
        """Nodes that depend neither on inputs nor on their sizes."""
        found: set[fx.Node] = set()
        given = {*self.program.inputs, self.program.target}
        for node in self.program.graph.nodes:
            if node not in given and all(each in found for each in node.all_input_nodes):
                found.add(node)
        return found

    @cached_property
    def _activations(self) -> set[fx.Node]:
        """Nodes that depend on vectors of ids, or on the memory."""
        found = set[fx.Node]() if self._memory is None else {self._memory}
        ids = self._of_ids if self._memory is None else self.program.of_tokens
        for node in self.program.graph.nodes:
            if node.op != "call_function" or self.program.is_number(node):
                continue
            embeds = node.target is aten.embedding.default and node.args[1] in ids
            if embeds or any(each in found for each in node.all_input_nodes):
                found.add(node)
        return found

    def is_of_values(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether nodes are computed from values of activations, not from ids and shapes alone."""
        waiting, seen = list(nodes), set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node in seen or node.target in SHAPES or self.program.is_number(node):
                continue
            seen.add(node)
            embeds = node.target is aten.embedding.default and node.args[1] in self._of_ids
            if embeds or node is self._memory:
                return True
            waiting += node.all_input_nodes
        return False

    @cached_property
    def side(self) -> set[fx.Node]:
        """The activations of this side."""
        of_target = self.program.of_tokens
        return {node for node in self._activations if (node in of_target) == self.decoder}

    def before(self, node: fx.Node) -> list[fx.Node]:
        """The activations of this side that a node takes."""
        return [each for each in _taken(node) if each in self.side]

    # Dominators.

    @cached_property
    def _dominator(self) -> dict[fx.Node, fx.Node | None]:
        """The nearest node through which all activations of a node come."""
        found: dict[fx.Node, fx.Node | None] = {}
        for node in self.program.graph.nodes:
            if node in self.side:
                before = self.before(node)
                common: fx.Node | None = before[0] if before else None
                for each in before[1:]:
                    common = self._common(found, common, each)
                found[node] = common
        return found

    def _common(
        self, found: Mapping[fx.Node, fx.Node | None], one: fx.Node | None, two: fx.Node | None
    ) -> fx.Node | None:
        while one is not two:
            if one is None or two is None:
                return None
            if self.order[one] > self.order[two]:
                one = found[one]
            else:
                two = found[two]
        return one

    def dominators(self, node: fx.Node) -> Iterator[fx.Node]:
        """Nodes that all activations of a node pass, nearest first."""
        above = self._dominator.get(node)
        while above is not None:
            yield above
            above = self._dominator[above]

    def dominates(self, one: fx.Node, two: fx.Node) -> bool:
        """Whether all that a node gets comes through another one."""
        return any(each is one for each in self.dominators(two))

    # Parts of the program.

    def between(self, source: fx.Node | Sequence[fx.Node], result: fx.Node) -> list[fx.Node]:
        """The operators from one node, or several, to another, in their order."""
        ends = {source} if isinstance(source, fx.Node) else set(source)
        found, waiting = set[fx.Node](), [result]
        while waiting:
            node = waiting.pop()
            if node not in ends and node not in found:
                found.add(node)
                waiting += self.before(node)
        return sorted(found, key=self.order.__getitem__)

    def peeled(self, node: fx.Node) -> fx.Node:
        """A node before operators that keep its values, at most with axes in another order."""
        same = (*SAME_VALUES, aten.dropout.default, *AXIS_ORDERS)
        while node in self.side and node.target in same:
            if not self.is_linear(node):
                break
            if node.target in AXIS_ORDERS and not self._last_stays(node):
                break
            (node,) = self.before(node)
        if node.target in SELECTIONS and node in self.side and self.is_linear(node):
            return self.peeled(self.before(node)[0])
        return node

    def _last_stays(self, node: fx.Node) -> bool:
        rank = self.values[node].dim()
        drawn = {self.before(node)[0]: torch.empty(*range(1, rank + 1))}
        moved = self.values.recomputed([node], drawn)
        return bool(moved.shape[-1] == rank)

    def residual(self, node: fx.Node) -> tuple[fx.Node, float, fx.Node] | None:
        """The stream, a factor of it, and what is added to it, if a node is their sum."""
        if node.target is not aten.add.Tensor or node.kwargs or len(self.before(node)) != 2:
            return None
        for one, two in (self.before(node), self.before(node)[::-1]):
            stream, factor = self.peeled(one), 1.0
            if (number := self._factor(stream)) is not None:
                stream, factor = self.peeled(self.before(stream)[0]), number
            if self.dominates(stream, two):
                return stream, factor, two
        return None

    def _factor(self, node: fx.Node) -> float | None:
        """The number that a node multiplies an activation with; None if it does not."""
        if node.target not in SCALES or node in self.norms or not self.is_linear(node):
            return None
        (activation,) = self.before(node)
        others = [each for each in node.args if each is not activation]
        if not others:
            return None
        value: Any = self.values[others[0]] if isinstance(others[0], fx.Node) else others[0]
        if isinstance(value, Tensor):
            if value.numel() != 1:
                return None
            value = value.detach()
        number = float(value)
        if not number:
            return None
        return number if "mul" in str(node.target) else 1 / number

    # Linear maps.

    def is_linear(self, node: fx.Node) -> bool:
        """Whether an operator is linear in the activations that it takes, but for a constant."""
        target, before = node.target, self.before(node)
        others = [each for each in _taken(node) if each not in before]
        if not before or _times_taken(node, before) != len(before):
            return False
        if target in SELECTIONS:
            return self._selects_nothing(node, before)
        if target in JOINS:
            return len(before) == len(node.all_input_nodes)
        if any(not self._is_constant(each) for each in others):
            return False
        if target in (aten.dropout.default,):
            return bool(node.args[2] is False or node.args[1] == 0)
        if target in _ARRANGES:
            return node.args[0] is before[0] and len(before) == 1
        if target in SUMS:
            return not node.kwargs
        if target in SCALES:
            return len(before) == 1 and ("mul" in str(target) or node.args[0] is before[0])
        if target is aten.conv1d.default:
            sizes = self.values[node.args[1]].shape  # type: ignore[index]
            return before == [node.args[0]] and sizes[-1] == 1
        if target in _BIASED and len(node.args) > _BIASED[target]:
            bias = node.args[_BIASED[target]]
            return len(before) == 1 and bias not in before and not node.kwargs
        return target in PRODUCTS and len(before) == 1

    def _is_constant(self, node: fx.Node) -> bool:
        if node in self.static or self.program.is_number(node) or node in self.placed:
            return True
        return self._rotates and node not in self._of_ids

    @contextlib.contextmanager
    def rotations(self) -> Iterator[None]:
        """Take products with numbers that depend on the position for linear inside the block."""
        self._rotates = True
        try:
            yield
        finally:
            self._rotates = False

    @cached_property
    def _of_ids(self) -> set[fx.Node]:
        return self.program.of_tokens | self.program.of_source

    @cached_property
    def placed(self) -> set[fx.Node]:
        """Nodes that depend on sizes and weights only: tables of positions, which are added."""
        return {
            node
            for node in self.program.graph.nodes
            if node not in self.static
            and node not in self._of_ids
            and all(user.target in (*SUMS, _ASSERTS) for user in node.users)
        }

    def _selects_nothing(self, node: fx.Node, before: Sequence[fx.Node]) -> bool:
        """Whether a ``where`` gives one of its tensors, as none is masked without padding."""
        if len(before) != 1 or not _is_floats(self.values[before[0]]):
            return False
        drawn = torch.rand_like(self.values[before[0]])
        return torch.equal(self.values.recomputed([node], {before[0]: drawn}), drawn)

    def leaves(self, result: fx.Node, stop: fx.Node | None = None) -> list[fx.Node]:
        """Where the linear map that gives a node begins, in the order of its operands."""
        found: dict[fx.Node, None] = {}
        seen, waiting = set[fx.Node](), [result]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            ends = node is stop or node in self.norms or self.residual(node) is not None
            if ends or not self.is_linear(node):
                found[node] = None
            else:
                waiting += reversed(self.before(node))
        return list(found)

    def only_leaf(self, result: fx.Node, stop: fx.Node | None) -> fx.Node:
        """Where the linear map that gives a node begins, if that is one node.

        Raises:
            NotRecognisedError: they are several.
        """
        found = self.leaves(result, stop)
        if len(found) != 1:
            raise NotRecognisedError(f"{self.program.line_of(result)} adds up several tensors")
        return found[0]

    def linear(self, source: fx.Node, result: fx.Node, ends: Sequence[fx.Node] = ()) -> Linear:
        """The linear map from a node to another.

        Args:
            source: where it begins.
            result: what it gives.
            ends: all nodes where the map that gives the result begins.
        """
        self._random.clear()
        return Linear(source, result, tuple(self.between([source, *ends], result)))

    def homogeneous(self, of: Linear, value: Tensor, drawn: bool = False) -> Tensor:
        """The result of a linear map for a value, without its constants.

        Args:
            of: the map.
            value: of its source; all other sources are 0.
            drawn: with positive numbers in place of its weights, so that no value is 0 by chance.
        """
        made: dict[fx.Node, Any] = {of.source: value}
        for node in of.nodes:
            made[node] = self._without_constant(node, made, drawn)
        result: Tensor = made[of.result]
        return result

    def _without_constant(self, node: fx.Node, made: dict[fx.Node, Any], drawn: bool) -> Any:
        target: Any = node.target

        def value(each: fx.Node) -> Any:
            if each in made:
                return made[each]
            found = self.values[each]
            if each in self.side:  # another source
                return _zeros(found)
            return self._draw(each) if drawn and _is_floats(found) else found

        given, kwargs = fx.map_arg((node.args, node.kwargs), value)
        args: list[Any] = list(given)
        before = self.before(node)
        if target in SUMS:
            for i, each in enumerate(node.args):
                if each not in before:
                    args[i] = torch.zeros_like(args[i]) if isinstance(args[i], Tensor) else 0
        elif target in _BIASED and len(args) > _BIASED[target]:
            i = _BIASED[target]
            args[i] = torch.zeros_like(args[i]) if isinstance(args[i], Tensor) else args[i]
        elif target in SELECTIONS:
            return made.get(before[0], _zeros(self.values[before[0]]))
        return target(*args, **kwargs)

    def _draw(self, node: fx.Node) -> Tensor:
        if node not in self._random:
            self._random[node] = torch.rand_like(self.values[node]) + 0.5
        return self._random[node]

    def constant(self, of: Linear) -> Any:
        """The result of a linear map for zeros: its constants, those of positions included."""
        zeros = torch.zeros_like(self.values[of.source])
        given: dict[fx.Node, Any] = {of.source: zeros}
        for node in of.nodes:
            for each in self.before(node):
                if each not in of.nodes:
                    given[each] = _zeros(self.values[each])
        return self.values.recomputed(of.nodes, given) if of.nodes else zeros

    @contextlib.contextmanager
    def at(self, length: int) -> Iterator[None]:
        """Take the values for a length, or for the largest if it is less, inside the block."""
        here, self.values = self.values, self._at(length)
        try:
            yield
        finally:
            self.values = here

    def longest(self, compute: Callable[[], Tensor]) -> Tensor:
        """The result of a computation for the largest length at which it does not fail."""
        found, least, most = None, 1, MOST_POSITIONS
        length = most
        while least <= most:
            try:
                with self.at(length):
                    found = compute()
                least = length + 1
            except (IndexError, RuntimeError):
                most = length - 1
            length = (least + most) // 2
        if found is None:
            raise NotRecognisedError("positions that cannot be computed")
        return found

    # Positions.

    def canonical(self, node: fx.Node, value: Tensor | None = None) -> Tensor:
        """The values of a node, as (B, L, E).

        Raises:
            NotRecognisedError: its axes are others.
        """
        found: Tensor = self.values[node] if value is None else value
        axis = self.program.batch_axis(node)
        if found.dim() != 3 or axis not in (0, 1):
            raise NotRecognisedError(
                f"{self.program.line_of(node)} gives no vector for each position"
            )
        return found.transpose(0, 1) if axis == 1 else found

    def places(self, node: fx.Node) -> list[tuple[int, int]]:
        """Batch and position of its vectors; of long rows some, the first and the last too."""
        batch, length = self.canonical(node).shape[:2]
        count = min(length, self.most_places)
        positions = torch.linspace(0, length - 1, count).round().int().tolist()
        return [(b, t) for b in range(batch) for t in positions]

    def reached(self, of: Linear, place: tuple[int, int]) -> Tensor:
        """Whether each value of the result depends on the vector at a place."""
        value = torch.zeros_like(self.values[of.source])
        self.canonical(of.source, value)[place] = 1.0
        return self.homogeneous(of, value, drawn=True) != 0

    def read(
        self, of: Linear, indices: Sequence[Tensor], first_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The matrix (N, E) and the constant (N,) of a linear map of each position.

        Args:
            of: the map.
            indices: for each place, the indices (N,) of its values in the flat result.
            first_only: read it at the first position; it is another one at others.

        Raises:
            NotRecognisedError: the constant is another at another position.
        """
        if first_only:
            places = self.places(of.source)
            indices = [at for at, place in zip(indices, places, strict=True) if place[1] == 0]
        constants = self.constant(of).flatten()
        bias = constants[indices[0]]
        if any(not torch.allclose(constants[each], bias, rtol=1e-5, atol=1e-6) for each in indices):
            line = self.program.line_of(of.result)
            raise NotRecognisedError(f"{line} adds to some positions only")
        return self._matrix(of, indices, first_only), bias

    def _matrix(self, of: Linear, indices: Sequence[Tensor], first_only: bool = False) -> Tensor:
        """The matrix (N, E) of a linear map; see ``read``."""
        like = self.values[of.source]
        places = [each for each in self.places(of.source) if each[1] == 0 or not first_only]
        width = like.shape[-1]
        drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
        made = self.homogeneous(of, drawn).flatten()
        given = torch.stack([self.canonical(of.source, drawn)[place] for place in places])
        if (held := self.held_matrix(of, given, made[torch.stack(list(indices))])) is not None:
            return held
        matrix = torch.empty(len(indices[0]), width)
        for first in range(0, width, len(places)):
            value = torch.zeros_like(like)
            used = [(i, place) for i, place in enumerate(places) if first + i < width]
            for i, place in used:
                self.canonical(of.source, value)[place][first + i] = 1.0
            made = self.homogeneous(of, value).flatten()
            for i, _ in used:
                matrix[:, first + i] = made[indices[i]]
        return matrix

    def held_matrix(self, of: Linear, given: Tensor, made: Tensor) -> Tensor | None:
        """The matrix (N, E) of the program that makes drawn vectors (P, N) of others (P, E).

        None if it is not one as it is: transposed, sliced or scaled ones are read by unit vectors.
        """
        shape = made.shape[1], given.shape[1]
        for node in of.nodes:
            for each in node.all_input_nodes:
                value = self.values[each] if each in self.static else None
                if isinstance(value, Tensor) and value.shape == shape and _is_floats(value):
                    wanted = given @ value.detach().T
                    if (wanted - made).abs().max() <= _SAME * made.abs().max():
                        return value.detach().clone()
        return None

    def read_vectors(self, source: fx.Node, result: fx.Node) -> tuple[Tensor, Tensor]:
        """The matrix (N, E) and the constant (N,) from vectors to vectors of the same places."""
        of = self.linear(source, result)
        return self.read(of, self._of_same_places(of))

    def read_matrix(self, source: fx.Node, result: fx.Node) -> Tensor:
        """The matrix (N, E) from vectors to vectors of the same places, without constants."""
        of = self.linear(source, result)
        return self._matrix(of, self._of_same_places(of))

    def _of_same_places(self, of: Linear) -> list[Tensor]:
        """The indices of the vector of each place in the flat result.

        Raises:
            NotRecognisedError: it depends on the vectors of other places.
        """
        like = self.values[of.result]
        by_place = self.canonical(of.result, torch.arange(like.numel()).view_as(like))
        found = []
        for place in self.places(of.source):
            at, reached = by_place[place], self.reached(of, place)
            if int(reached.sum()) != int(reached.flatten()[at].sum()):
                line = self.program.line_of(of.result)
                raise NotRecognisedError(f"{line} mixes the values of several positions")
            found.append(at)
        return found


def _taken(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values a node takes; ``type_as`` takes the type alone of its second."""
    given = node.all_input_nodes
    return given[:1] if node.target is aten.type_as.default else given


def _times_taken(node: fx.Node, before: Sequence[fx.Node]) -> int:
    """How often a node takes activations: x * x takes one twice."""
    taken: list[fx.Node] = []
    args = node.args[:1] if node.target is aten.type_as.default else node.args
    fx.map_arg((args, node.kwargs), lambda each: taken.append(each) if each in before else None)
    return len(taken)


def _is_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _zeros(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_zeros(each) for each in value)
    return torch.zeros_like(value)
