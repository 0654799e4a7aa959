"""Encoder and step of a program: what is memory, what is cache, and what is computed again.

From the last row of the logits backwards, each node is asked for its last row or for all rows. A
tensor of which all rows are needed, and whose rows stay when later tokens come, is a cache. A
tensor without the target is memory.

Axes: B batch, S source, T target.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from tfexport.errors import ExportError
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.fused import PAST_AXIS, find_head, lighten, shapes_of
from tfexport.export.incremental.program import (
    AGAIN,
    FIRST,
    LONGER,
    MORE_ROWS,
    MORE_SOURCE,
    OTHER_ROW,
    OTHER_TOKENS,
    Program,
    Size,
)
from tfexport.export.incremental.recurrent import (
    activation_of,
    is_recurrent,
    one_step,
    padded,
    sequence,
)
from tfexport.export.incremental.rules import (
    TOTAL,
    Ask,
    Call,
    Carried,
    InputSize,
    Rows,
    RunningSum,
    is_moved,
    is_passed,
    plain,
    rule_of,
    size_of,
)
from tfexport.export.modules.contract import ByForward, Head

aten: Any = torch.ops.aten
_END = (1 << 63) - 1
_REFUSED = {
    (AGAIN,): "its logits differ each time that it is called, as with random numbers or dropout",
    (OTHER_ROW,): "the logits of a row depend on other rows of its batch",
    (LONGER, OTHER_TOKENS): "the logits of a token change when later ones come, so that it cannot "
    "be decoded step by step; is its mask missing?",
}
_SHAPED = (FIRST, LONGER, MORE_ROWS, MORE_SOURCE)  # runs in which sizes differ
_AGAIN: Rows = (-1,)  # all rows, computed from all rows of the inputs
_NO_RULE = "there is no rule that gives its last row alone"


class NoStepsError(ExportError):
    """No step was found; the message says for which tensor."""


@dataclass(frozen=True)
class State:
    """A tensor that a step takes and gives.

    Attributes:
        node: of the program.
        axis: along which it grows by a row; None for a running sum or a recurrent state.
        dtype: of it.
        start: the memory that it begins as; None for zeros.
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
class Start:
    """A state before the first token.

    Attributes:
        dtype: of it.
        shape: of zeros: numbers, or a tensor of the memory and its axis.
        memory: the tensor of the memory that it is; None for zeros.
    """

    dtype: torch.dtype
    shape: tuple[int | tuple[int, int], ...] = ()
    memory: int | None = None


@dataclass
class Found:
    """What was found in a program.

    Attributes:
        program: searched.
        memory: nodes that the encoder gives.
        states: tensors that a step takes and gives.
        again: nodes of which every step computes all rows, each with the reason. What is computed
            from them is not among them, unless it has no rule either.
    """

    program: Program
    memory: list[fx.Node] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    again: dict[fx.Node, str] = field(default_factory=dict)
    _plans: dict[tuple[fx.Node, Rows], Any] = field(default_factory=dict)
    _without_rule: set[fx.Node] = field(default_factory=set)

    @classmethod
    def of(cls, program: Program) -> "Found":
        """Search a program.

        Raises:
            ModuleError: the forward cannot be decoded step by step.
            NoStepsError: an operator has no rule where it needs one.
        """
        found = cls(program)
        found._check_forward()
        found._search()
        return found

    def _check_forward(self) -> None:
        """Refuse random numbers, rows that depend on others, and tokens that see later ones."""
        program = self.program
        for runs, text in _REFUSED.items():
            cause = program.cause(*runs)
            if cause is not None:
                raise program.own.wrong(f"{text}: {program.line_of(cause)}")

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
                plan = self._plans[node, rows] = self._plan(node, rows)
                for ask in _asks(plan):
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
        if rows == _AGAIN:
            return plain(node)
        if rows == () and axes and self._is_cache(node):
            (axis,) = axes
            self.states.append(State(node, axis, program.dtypes[node]))
            return _Grown(Ask(node, (axis,)), len(self.states) - 1)
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
        if isinstance(expression, Carried):
            return self._carry(expression)
        if not isinstance(expression, RunningSum):
            return expression
        if node not in program.stable:
            return None
        self.states.append(State(node, None, program.dtypes[node]))
        return _Summed(expression.row, len(self.states) - 1)

    def _last_of_all(self, node: fx.Node, rows: Rows) -> Any:
        """The last row, of a node that is computed from all rows of its inputs."""
        program = self.program
        if any(axis not in program.pure_axes(node) for axis in rows):
            raise NoStepsError(f"there is no rule for {program.line_of(node)}")
        self._without_rule.add(node)
        last: Any = Ask(node, _AGAIN if self._is_cache(node) else ())
        for axis in rows:
            last = Call(aten.slice.Tensor, (last, axis, -1, _END))
        return last

    def _carry(self, result: Carried) -> "_Stepped | None":
        """A recurrent layer, one step of it; None if its first state depends on the target."""
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
        return _Stepped(layer, result.number, (Ask(x, (0,)), *asked), tuple(numbers))

    def _is_cache(self, node: fx.Node) -> bool:
        program = self.program
        return (
            node in program.of_tokens
            and node in program.stable
            and program.target_axes(node) == program.pure_axes(node)
            and program.batch_axis(node) is not None
            and not is_passed(program, node)
        )

    def _plan_number(self, node: fx.Node) -> Any:
        program = self.program
        size = program.number_sizes(node)
        if program.is_float(node):
            return plain(node)
        found = size_of(size, False)
        if node.target is aten.sym_size.int or found is not None:
            return found
        return plain(node)

    def _add_lengths(self) -> None:
        """Keep an input for each size that no tensor of the memory has."""
        program = self.program
        for size in {each.size for plan in self._plans.values() for each in _input_sizes(plan)}:
            if program.is_batch(size) or any(size in program.sizes(node) for node in self.memory):
                continue
            holder = next((each for each in program.inputs if size in program.sizes(each)), None)
            if holder is None:
                raise NoStepsError(f"a size of {size[FIRST]} follows from no input")
            self.memory.append(holder)
        self.memory.sort(key=list(program.graph.nodes).index)
        if not self.memory:
            self.memory.append(program.inputs[0])
        if not any(state.axis is not None for state in self.states) and any(
            _has_total(plan) for plan in self._plans.values()
        ):
            self.states.append(State(program.target, 1, torch.int64))
            self._plans[program.target, ()] = _Grown(
                Ask(program.target, (1,)), len(self.states) - 1
            )
            self._plans.setdefault((program.target, (1,)), program.target)

    def _find_again(self) -> None:
        """Note where steps begin to compute all rows."""
        program, computed = self.program, set[fx.Node]()
        whole = {
            node
            for (node, rows), plan in self._plans.items()
            if rows in ((), _AGAIN) and isinstance(plan, Call) and program.target_axes(node)
        }
        for node in program.graph.nodes:
            if node not in whole or node not in program.of_tokens:
                continue
            follows = any(each in computed for each in node.all_input_nodes)
            if is_moved(node):
                if follows:
                    computed.add(node)
                continue
            reason = self._reason(node)
            dtype = program.dtypes.get(node)
            if reason != _NO_RULE and not (dtype and dtype.is_floating_point):
                continue  # a mask of the ids, say
            computed.add(node)
            if reason == _NO_RULE or not follows:
                self.again[node] = reason

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
        return "the batch is no axis of its own"

    @torch.no_grad()
    def module(self, longest: int, fused: bool = True) -> "FoundSteps":
        """The encoder and the step as a module.

        Args:
            longest: tokens of a row.
            fused: compute attention by an operator of onnxruntime.
        """
        step, encoder = _Emitter(self).step(), _encoder(self)
        examples = [self.program.examples[run] for run in _SHAPED]
        lighten(encoder, [each.inputs for each in examples], 0, fused)
        memory: dict[Any, Sequence[Tensor]] = {}  # by the sizes of the inputs
        for each in examples:
            sizes = tuple(tensor.shape for tensor in each.inputs)
            if sizes not in memory:
                memory[sizes] = encoder(*each.inputs)
        given = [self._given(run, memory) for run in _SHAPED]
        lighten(step, given, longest, fused)
        head = find_head(step, shapes_of(step, given)) if fused else None
        return FoundSteps(self, step, encoder, head)

    def _given(self, run: int, memory: Mapping[Any, Sequence[Tensor]]) -> list[Tensor]:
        """What a step of a run is given, but for values."""
        program, states = self.program, []
        for state in self.states:
            shape = []
            for axis, size in enumerate(sizes_of(program, state)):
                if not program.depends_on_length(size):
                    shape.append(size[run])
                else:
                    shape.append(size[run] - 1 if axis == state.axis else 1)
            states.append(torch.zeros(shape, dtype=state.dtype))
        example = program.examples[run]
        sizes = tuple(tensor.shape for tensor in example.inputs)
        return [example.target[:, :1], *states, *memory[sizes]]


@dataclass(frozen=True)
class _Grown:
    """A cache with the row of this token."""

    row: Ask
    number: int


@dataclass(frozen=True)
class _Summed:
    """A running sum with the row of this token."""

    row: Ask
    number: int


@dataclass(frozen=True)
class _Stepped:
    """A result of one step of a recurrent layer."""

    layer: fx.Node
    number: int
    tensors: tuple[Ask | None, ...]
    states: tuple[int, ...]


def _parts(expression: Any) -> Iterator[Any]:
    """An expression and all expressions in it."""
    yield expression
    if isinstance(expression, Call):
        for each in (*expression.args, *expression.kwargs.values()):
            yield from _parts(each)
    elif isinstance(expression, _Grown | _Summed):
        yield expression.row
    elif isinstance(expression, _Stepped):
        yield from (each for each in expression.tensors if each is not None)
    elif isinstance(expression, list | tuple):
        for each in expression:
            yield from _parts(each)


def _asks(expression: Any) -> Iterator[Ask]:
    return (each for each in _parts(expression) if isinstance(each, Ask))


def _input_sizes(expression: Any) -> Iterator[InputSize]:
    return (each for each in _parts(expression) if isinstance(each, InputSize))


def _has_total(expression: Any) -> bool:
    return any(each is TOTAL for each in _parts(expression))


class _Emitter:
    """Writes the graph of a step."""

    def __init__(self, found: Found) -> None:
        self.found, self.program = found, found.program
        self.graph = fx.Graph()
        self.made: dict[tuple[fx.Node, Rows], Any] = {}
        self.after: dict[int, fx.Node] = {}
        self.stepped: dict[fx.Node, fx.Node] = {}

    def step(self) -> fx.GraphModule:
        """Token (B, 1), state, memory -> logits (B, V), next state."""
        found, program = self.found, self.program
        self.token = self.graph.placeholder("token")
        self.past = [self.graph.placeholder(f"state_{i}") for i in range(len(found.states))]
        for placeholder, state in zip(self.past, found.states, strict=True):
            if state.axis is not None:
                placeholder.meta[PAST_AXIS] = state.axis
        self.held = {
            node: self.graph.placeholder(f"memory_{i}") for i, node in enumerate(found.memory)
        }
        self.total: fx.Node | None = None
        for node in program.graph.nodes:
            plans = [rows for known, rows in found._plans if known is node]
            # The last row and all rows computed again are asked for by a node itself.
            for rows in sorted(plans, key=_order):
                self._make(node, rows)
        logits = self.graph.call_function(aten.select.int, (self.made[program.logits, (1,)], 1, 0))
        after = tuple(self.after[i] for i in range(len(found.states)))
        self.graph.output((logits, after))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(_holder(program), self.graph)

    def _make(self, node: fx.Node, rows: Rows) -> None:
        if (node, rows) in self.made:
            return
        plan = self.found._plans[node, rows]
        for ask in _asks(plan):  # other rows of the node itself
            if ask.node is node:
                self._make(node, ask.rows)
        self.made[node, rows] = made = self._emit(plan)
        if isinstance(made, fx.Node) and "stack_trace" in node.meta:
            made.meta.setdefault("stack_trace", node.meta["stack_trace"])

    def _emit(self, plan: Any) -> Any:
        program = self.program
        if isinstance(plan, fx.Node):
            if plan in program.tensors:
                return self.graph.get_attr(_attribute(program, plan))
            return self.token if plan is program.target else self.held[plan]
        if isinstance(plan, Ask):
            return self.made[plan.node, plan.rows]
        if isinstance(plan, _Grown):
            state = self.found.states[plan.number]
            row = self.made[plan.row.node, plan.row.rows]
            made = self.graph.call_function(
                aten.cat.default, ([self.past[plan.number], row], state.axis)
            )
            self.after[plan.number] = made
            return made
        if isinstance(plan, _Summed):
            row = self.made[plan.row.node, plan.row.rows]
            made = self.graph.call_function(aten.add.Tensor, (self.past[plan.number], row))
            self.after[plan.number] = made
            return made
        if isinstance(plan, _Stepped):
            return self._emit_stepped(plan)
        if isinstance(plan, InputSize):
            return self._size(plan.size)
        if plan is TOTAL:
            return self._total()
        if isinstance(plan, Call):
            args = self._emit_all(plan.args)
            kwargs = {name: self._emit_all(value) for name, value in plan.kwargs.items()}
            if not _symbolic(args) and plan.target in _NUMBERS:
                return plan.target(*args)
            return self.graph.call_function(plan.target, args, kwargs)
        return plan

    def _emit_stepped(self, plan: _Stepped) -> fx.Node:
        if plan.layer not in self.stepped:
            kind = plan.layer.args[1]
            given = [None if each is None else self._emit(each) for each in plan.tensors]
            past = [self.past[number] for number in plan.states]
            made = self.graph.call_function(
                one_step, (kind, activation_of(plan.layer), given, past)
            )
            self.stepped[plan.layer] = made
            for i, number in enumerate(plan.states):
                self.after[number] = self.graph.call_function(operator.getitem, (made, i))
        if plan.number == 0:
            return self.graph.call_function(aten.unsqueeze.default, (self.after[plan.states[0]], 0))
        return self.after[plan.states[plan.number - 1]]

    def _emit_all(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._emit_all(each) for each in value]
        if isinstance(value, tuple):
            return tuple(self._emit_all(each) for each in value)
        return self._emit(value)

    def _size(self, size: Size) -> fx.Node:
        if self.program.is_batch(size):
            return self.graph.call_function(aten.sym_size.int, (self.token, 0))
        node = next(each for each in self.held if size in self.program.sizes(each))
        axis = self.program.sizes(node).index(size)
        return self.graph.call_function(aten.sym_size.int, (self.held[node], axis))

    def _total(self) -> fx.Node:
        if self.total is None:
            number = next(i for i, each in enumerate(self.found.states) if each.axis is not None)
            axis = self.found.states[number].axis
            past = self.graph.call_function(aten.sym_size.int, (self.past[number], axis))
            self.total = self.graph.call_function(operator.add, (past, 1))
        return self.total


_NUMBERS = (operator.add, operator.mul, operator.sub, operator.floordiv)


def _order(rows: Rows) -> int:
    return 0 if rows and rows != _AGAIN else 1


def _symbolic(args: Any) -> bool:
    return any(isinstance(each, fx.Node) for each in args)


def _attribute(program: Program, node: fx.Node) -> str:
    return f"tensors.{program.names[node].replace('.', '_')}"


def _holder(program: Program) -> nn.Module:
    """A module with the tensors of a program, under the names that the graphs use."""
    root = nn.Module()
    root.tensors = nn.Module()
    for node, tensor in program.tensors.items():
        name = program.names[node].replace(".", "_")
        if isinstance(tensor, nn.Parameter):
            root.tensors.register_parameter(name, tensor)
        else:
            root.tensors.register_buffer(name, tensor)
    return root


def _encoder(found: Found) -> fx.GraphModule:
    """Inputs -> memory."""
    program, graph, made = found.program, fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.inputs:
        made[node] = graph.placeholder(node.name)
    for node in program.graph.nodes:
        if node in program.tensors:
            made[node] = graph.get_attr(_attribute(program, node))
        elif node.op != "call_function" or node in program.of_target:
            continue
        elif node.all_input_nodes == [program.target]:  # the batch, which all inputs have
            made[node] = graph.call_function(aten.sym_size.int, (made[program.inputs[0]], 0))
        elif all(each in made for each in node.all_input_nodes):
            made[node] = graph.node_copy(node, lambda each: made[each])
            if is_recurrent(node):
                made[node].args = (node.target, *made[node].args)
                made[node].target = sequence
    graph.output(tuple(made[node] for node in found.memory))
    graph.eliminate_dead_code()
    return fx.GraphModule(_holder(program), graph)


class FoundSteps(ByForward):
    """A module with ``encode``, ``start`` and ``step`` of docs/modules.md."""

    def __init__(
        self,
        found: Found,
        step: fx.GraphModule,
        encoder: fx.GraphModule,
        head: tuple[Head, fx.GraphModule] | None,
    ) -> None:
        super().__init__()
        self.encoder, self.one_step, self.found = encoder, step, found
        self.own = found.program.own
        self.head, before_head = head or (None, None)
        self.step_before_head: fx.GraphModule | None = before_head

    def encode(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Inputs to the memory."""
        memory: tuple[Tensor, ...] = self.encoder(*inputs)
        return memory

    def start(self, *memory: Tensor) -> tuple[Tensor, ...]:
        """The memory to the state before the first token."""
        made = []
        for start in self.starts():
            if start.memory is not None:
                made.append(memory[start.memory].clone())
                continue
            shape = [
                size if isinstance(size, int) else memory[size[0]].size(size[1])
                for size in start.shape
            ]
            floats = start.dtype.is_floating_point
            dtype = torch.get_default_dtype() if floats else start.dtype
            made.append(torch.zeros(shape, dtype=dtype))
        return tuple(made)

    def starts(self) -> list[Start]:
        """What each tensor of the state begins as."""
        program, memory = self.found.program, self.found.memory
        sizes = [program.sizes(node) for node in memory]

        def size(wanted: Size) -> int | tuple[int, int]:
            if len(set(wanted)) == 1:
                return wanted[0]
            for number, axes in enumerate(sizes):
                if wanted in axes:
                    return number, axes.index(wanted)
            raise NoStepsError(f"a state has a size of {wanted[FIRST]}, which no memory has")

        made = []
        for state in self.found.states:
            if state.start is not None:
                made.append(Start(state.dtype, memory=memory.index(state.start)))
                continue
            shape = tuple(
                (0 if state.axis == axis else 1)
                if program.depends_on_length(wanted)
                else size(wanted)
                for axis, wanted in enumerate(sizes_of(program, state))
            )
            made.append(Start(state.dtype, shape))
        return made

    def step(
        self, token: Tensor, position: Tensor, state: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One token (B, 1) to logits (B, V) and the next state."""
        del position  # the caches are as long as the prefix
        found: tuple[Tensor, tuple[Tensor, ...]] = self.one_step(token, *state, *memory)
        return found

    def step_states(
        self, token: Tensor, position: Tensor, state: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One token (B, 1) to the states (B, 1, E) before the head, and the next state."""
        del position
        assert self.step_before_head is not None
        found: tuple[Tensor, tuple[Tensor, ...]] = self.step_before_head(token, *state, *memory)
        return found


class WholeForward(ByForward):
    """A module with ``encode`` and ``decode`` of docs/modules.md, which computes all again.

    Attributes:
        why: no step was found.
    """

    def __init__(self, own: OwnForward) -> None:
        super().__init__()
        self.own, self.why = own, ""
        self.model = own.model

    def encode(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs themselves."""
        return inputs

    def decode(self, tokens: Tensor, *inputs: Tensor) -> Tensor:
        """A complete prefix (B, T) to logits (B, T, V)."""
        logits: Tensor = self.own(inputs, tokens)
        return logits


def describe(model: FoundSteps | WholeForward) -> dict[str, list[str]]:
    """For the manifest, the operator and the user's line that each tensor of a step comes from.

    Returns:
        memory: a text for each of its tensors.
        state: a text for each of its tensors, with its kind.
        again: a text for each tensor that every step computes for all tokens, with the reason.
    """
    if isinstance(model, WholeForward):
        return {"memory": [], "state": [], "again": [model.why]}
    found, program = model.found, model.found.program

    def kind(state: State) -> str:
        if state.carried is not None:
            return "recurrent state"
        return "running sum" if state.axis is None else "cache"

    return {
        "memory": [program.place_of(node) for node in found.memory],
        "state": [f"{kind(state)}: {program.place_of(state.node)}" for state in found.states],
        "again": list(
            dict.fromkeys(f"{program.place_of(node)}: {why}" for node, why in found.again.items())
        ),
    }
