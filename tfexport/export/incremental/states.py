"""Memory, caches and other states of a program, and what each step computes again.

From the last row of the logits backwards, each node is asked for its last row or for all rows. A
tensor of which all rows are needed, and whose rows stay when later tokens come, is a cache. A
tensor without the target is memory.

Axes: B batch, S source, T target.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tfexport.errors import ExportError
from tfexport.export.incremental.program import (
    AGAIN,
    FIRST,
    LONGER,
    OTHER_ROW,
    OTHER_TOKENS,
    Program,
    Size,
)
from tfexport.export.incremental.recurrent import padded
from tfexport.export.incremental.rules import (
    TOTAL,
    Ask,
    Carried,
    InputSize,
    OperatorCall,
    Rows,
    RunningSum,
    is_moved,
    is_passed,
    plain,
    rule_of,
    size_of,
)
from tfexport.export.operators import aten

_END = (1 << 63) - 1
# What is seen when a forward runs again, and what to do about it.
_REFUSED = {
    (AGAIN,): (
        "its logits differ each time that it is called, as with random numbers or dropout",
        "Layers are made in __init__, whose weights are then the same in every call, and F.dropout "
        "takes training=self.training",
    ),
    (OTHER_ROW,): (
        "the logits of a row depend on other rows of its batch",
        "Norms and sums are to be taken over each row by itself",
    ),
    (LONGER, OTHER_TOKENS): (
        "the logits of a token change when later ones come, so that it cannot be decoded step by "
        "step; is its mask missing?",
        "A decoder takes a causal mask, such as "
        "nn.Transformer.generate_square_subsequent_mask(tgt.size(1)); forward= says how yours is "
        "called with one",
    ),
}
RECOMPUTED: Rows = (-1,)  # all rows, computed from all rows of the inputs in every step
_PADDED = "the target is padded to one length, all of which each step computes"
_NO_RULE = "there is no rule that gives its last row alone"


class NoStepsError(ExportError):
    """No step was found; the message names the tensor."""


@dataclass(frozen=True)
class State:
    """A tensor that a step takes and returns.

    Attributes:
        node: of the program.
        axis: the axis that grows by a row; None for a running sum or a recurrent state.
        dtype: its type.
        start: the memory that it begins with; None for zeros.
        carried: number of a recurrent layer's state; None for other states.
    """

    node: fx.Node
    axis: int | None
    dtype: torch.dtype
    start: fx.Node | None = None
    carried: int | None = None


def sizes_of(program: Program, state: State) -> tuple[Size, ...]:
    """The size of each axis of a state, as it is after all tokens."""
    sizes = program.sizes(state.node)
    return sizes if state.carried is None else sizes[1:]  # (D, B, H) of a result Y (T, D, B, H)


@dataclass(frozen=True)
class NextState:
    """How a step gets a state: a cache with a row after its rows, a running sum plus the row.

    Attributes:
        row: of this token.
        number: of the state.
    """

    row: Ask
    number: int


@dataclass(frozen=True)
class Stepped:
    """How a step gets a result of a recurrent layer: by one step of the layer.

    Attributes:
        layer: of the program.
        number: of the result.
        tensors: the row of the input, and the weights and biases.
        states: numbers of the layer's states.
    """

    layer: fx.Node
    number: int
    tensors: tuple[Ask | None, ...]
    states: tuple[int, ...]


def _parts(expression: Any) -> Iterator[Any]:
    """An expression and all expressions in it."""
    yield expression
    if isinstance(expression, OperatorCall):
        for each in (*expression.args, *expression.kwargs.values()):
            yield from _parts(each)
    elif isinstance(expression, NextState):
        yield expression.row
    elif isinstance(expression, Stepped):
        yield from (each for each in expression.tensors if each is not None)
    elif isinstance(expression, list | tuple):
        for each in expression:
            yield from _parts(each)


def asks_of(expression: Any) -> Iterator[Ask]:
    """The rows of other nodes that an expression needs."""
    return (each for each in _parts(expression) if isinstance(each, Ask))


def _with_numbers(program: Program, expression: Any) -> Any:
    """An expression in which numbers that a rule took over are asked for, as tensors are.

    None if a rule took over a tensor: only it knows which rows of that are meant.
    """
    nodes = [each for each in _parts(expression) if isinstance(each, fx.Node)]
    if any(not program.is_number(node) for node in nodes):
        return None

    def asked(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return Ask(value)
        if isinstance(value, OperatorCall):
            kwargs = {name: asked(each) for name, each in value.kwargs.items()}
            return OperatorCall(value.target, tuple(map(asked, value.args)), kwargs)
        if isinstance(value, list | tuple):
            return type(value)(map(asked, value))
        return value

    return asked(expression) if nodes else expression


def _input_sizes(expression: Any) -> Iterator[InputSize]:
    return (each for each in _parts(expression) if isinstance(each, InputSize))


def _has_total(expression: Any) -> bool:
    return any(each is TOTAL for each in _parts(expression))


@dataclass
class StateAnalysis:
    """The states found in a program.

    Attributes:
        program: the program that was searched.
        memory: nodes that the encoder returns.
        states: tensors that a step takes and returns.
        again: nodes of which every step computes all rows, each with the reason. What is computed
            from them is not among them, unless it has no rule either.
        plans: how a step gets rows of a node: an expression of other rows.
    """

    program: Program
    memory: list[fx.Node] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    again: dict[fx.Node, str] = field(default_factory=dict)
    plans: dict[tuple[fx.Node, Rows], Any] = field(default_factory=dict)
    _without_rule: set[fx.Node] = field(default_factory=set)

    @classmethod
    def of(cls, program: Program) -> "StateAnalysis":
        """Search a program.

        Raises:
            ModuleError: the forward cannot be decoded step by step.
            NoStepsError: an operator has no rule where it needs one.
        """
        analysis = cls(program)
        analysis._check_forward()
        analysis._search()
        return analysis

    def _check_forward(self) -> None:
        """Refuse random numbers, rows that depend on others, and tokens that see later ones."""
        program = self.program
        for runs, (reason, remedy) in _REFUSED.items():
            cause = program.cause(*runs)
            if cause is not None:
                raise program.own.wrong(f"{reason}: {program.line_of(cause)}. {remedy}")

    def _search(self) -> None:
        program = self.program
        waiting: dict[fx.Node, set[Rows]] = {program.logits: {(1,)}}
        for node in reversed(program.graph.nodes):
            asked = waiting.pop(node, set())
            # A plan may ask for other rows of the same node.
            todo, done = list(asked), set[Rows]()
            while todo:
                rows = todo.pop()
                if rows in done:
                    continue
                done.add(rows)
                plan = self.plans[node, rows] = self._plan(node, rows)
                for ask in asks_of(plan):
                    if ask.node is node:
                        todo.append(ask.rows)
                    else:
                        waiting.setdefault(ask.node, set()).add(ask.rows)
        self._add_lengths()
        self._find_again()

    def _plan(self, node: fx.Node, rows: Rows) -> Any:
        """An expression for rows of a node."""
        program = self.program
        if program.is_number(node):
            return self._plan_number(node)
        if node in program.tensors:
            return node
        if node not in program.of_target:
            if node in program.of_source and program.batch_axis(node) is not None:
                self.memory.append(node)
                return node
            expression = self._by_rule(node, ())
            return plain(node) if expression is None else expression
        if node is program.target and rows == (1,):
            return node
        axes = program.target_axes(node)
        if rows == RECOMPUTED:
            return plain(node)
        if rows == () and axes and self._is_cache(node):
            (axis,) = axes
            self.states.append(State(node, axis, program.dtypes[node]))
            return NextState(Ask(node, (axis,)), len(self.states) - 1)
        expression = self._by_rule(node, rows)
        if expression is not None:
            return expression
        if not rows:
            return plain(node)
        return self._last_of_all(node, rows)

    def _by_rule(self, node: fx.Node, rows: Rows) -> Any:
        """An expression by the rule of the operator; None without one."""
        program, found = self.program, rule_of(node)
        expression = None if found is None else found(program, node, rows)
        expression = _with_numbers(program, expression)
        if isinstance(expression, Carried):
            return self._carry(expression)
        if not isinstance(expression, RunningSum):
            return expression
        if node not in program.stable:
            return None
        self.states.append(State(node, None, program.dtypes[node]))
        return NextState(expression.row, len(self.states) - 1)

    def _last_of_all(self, node: fx.Node, rows: Rows) -> Any:
        """The last row of a node that is computed from all rows of its inputs."""
        program = self.program
        if any(axis not in program.pure_axes(node) for axis in rows):
            raise NoStepsError(f"there is no rule for {program.line_of(node)}")
        if node in program.several:
            raise NoStepsError(f"there is no rule for {program.line_of(node)}")
        self._without_rule.add(node)
        last: Any = Ask(node, RECOMPUTED if self._is_cache(node) else ())
        for axis in rows:
            last = OperatorCall(aten.slice.Tensor, (last, axis, -1, _END))
        return last

    def _carry(self, result: Carried) -> "Stepped | None":
        """One step of a recurrent layer; None if its first state depends on the target."""
        program, layer = self.program, result.layer
        tensors: Any = layer.args[0]
        x, w, r, b, lengths, *begun = padded(list(tensors))
        count = 2 if layer.args[1] == "LSTM" else 1
        begun = begun[:count]
        if lengths is not None or any(each in program.of_target for each in begun if each):
            return None
        numbers = [
            i
            for i, state in enumerate(self.states)
            if state.node is layer and state.carried is not None
        ]
        if not numbers:
            dtype = program.dtypes[x]
            for i, start in enumerate(begun):
                if start is not None and start not in self.memory:
                    self.memory.append(start)
                self.states.append(State(layer, None, dtype, start, i))
            numbers = list(range(len(self.states) - count, len(self.states)))
        asked = tuple(None if each is None else Ask(each) for each in (w, r, b))
        return Stepped(layer, result.number, (Ask(x, (0,)), *asked), tuple(numbers))

    def _is_cache(self, node: fx.Node) -> bool:
        program = self.program
        return (
            node in program.of_tokens
            and node in program.stable
            and program.target_axes(node) == program.pure_axes(node)
            and program.batch_axis(node) is not None
            and not is_passed(program, node)
            and not program.dtypes[node].is_complex  # which no graph takes
        )

    def _plan_number(self, node: fx.Node) -> Any:
        program = self.program
        if node in program.of_values:
            raise NoStepsError(f"a step needs a number from values: {program.line_of(node)}")
        size = program.number_sizes(node)
        if program.is_float(node):
            return plain(node)
        found = size_of(size, False)
        if node.target is aten.sym_size.int or found is not None:
            return found
        return plain(node)

    def _add_lengths(self) -> None:
        """Add an input to the memory for each size that no tensor of the memory has."""
        program = self.program
        for size in {each.size for plan in self.plans.values() for each in _input_sizes(plan)}:
            if program.is_batch(size) or any(size in program.sizes(node) for node in self.memory):
                continue
            holder = next((each for each in program.inputs if size in program.sizes(each)), None)
            holder = holder or self._holder_of(size)
            if holder is None:
                raise NoStepsError(f"a size of {size[FIRST]} follows from no input")
            self.memory.append(holder)
        self.memory.sort(key=list(program.graph.nodes).index)
        if not self.memory:
            self.memory.append(program.inputs[0])
        if not any(state.axis is not None for state in self.states) and any(
            _has_total(plan) for plan in self.plans.values()
        ):
            self.states.append(State(program.target, 1, torch.int64))
            self.plans[program.target, ()] = NextState(
                Ask(program.target, (1,)), len(self.states) - 1
            )
            self.plans.setdefault((program.target, (1,)), program.target)

    def _holder_of(self, size: Size) -> fx.Node | None:
        """The first tensor of the encoder that has an axis of a size."""
        program = self.program
        holders = (
            node
            for node in program.graph.nodes
            if node in program.of_source - program.of_target - program.several
            and program.batch_axis(node) is not None
        )
        return next((node for node in holders if size in program.sizes(node)), None)

    def _find_again(self) -> None:
        """Find the nodes from which on steps compute all rows again."""
        program, computed = self.program, set[fx.Node]()
        padded = self._find_padded()
        asked = {
            node
            for (node, rows), plan in self.plans.items()
            if rows in ((), RECOMPUTED)
            and isinstance(plan, OperatorCall)
            and (program.target_axes(node) or node in padded)
        }
        for node in program.graph.nodes:
            if node not in asked or node not in program.of_tokens:
                continue
            follows = any(each in computed for each in node.all_input_nodes)
            if is_moved(node):
                if follows:
                    computed.add(node)
                continue
            reason = _PADDED if node in padded else self._reason(node)
            dtype = program.dtypes.get(node)
            if reason != _NO_RULE and not (dtype and dtype.is_floating_point):
                continue  # a mask of the ids, say
            computed.add(node)
            if reason == _NO_RULE or not follows:
                self.again[node] = reason

    def _find_padded(self) -> set[fx.Node]:
        """Nodes with a row for each place of a target that is padded to one length."""
        program, padded = self.program, set[fx.Node]()
        for node in program.graph.nodes:
            if node not in program.of_tokens or program.target_axes(node):
                continue
            begins = is_moved(node) and any(map(program.target_axes, node.all_input_nodes))
            if begins or not padded.isdisjoint(node.all_input_nodes):
                padded.add(node)
        return padded

    def _reason(self, node: fx.Node) -> str:
        """Why a node is computed again."""
        program = self.program
        of_tokens = program.target_axes(node) == program.pure_axes(node)
        if of_tokens and node not in program.stable:
            cause, text = program.source_of_change(node), "its rows change when later tokens come"
            return text if cause is node else f"{text}, as do those of {program.place_of(cause)}"
        if node in self._without_rule:
            return _NO_RULE
        if not of_tokens:
            return "it has not one row for each token"
        return "the batch is not a separate axis"
