"""The graphs of the encoder and of a step, and the modules that call them.

Axes: B batch, S source, T target, V vocabulary, E states before the last layer.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.fused import (
    PAST_AXIS,
    find_head,
    lighten,
    without_values,
)
from tfexport.export.incremental.program import FIRST, LONGER, MORE_ROWS, MORE_SOURCE, Program, Size
from tfexport.export.incremental.recurrent import activation_of, is_recurrent, one_step, sequence
from tfexport.export.incremental.rules import TOTAL, Ask, InputSize, OperatorCall, Rows
from tfexport.export.incremental.states import (
    RECOMPUTED,
    NextState,
    NoStepsError,
    State,
    StateAnalysis,
    Stepped,
    asks_of,
    sizes_of,
)
from tfexport.export.modules.contract import ByForward, Head
from tfexport.export.operators import SIZE_ARITHMETIC, aten

SHAPED = (FIRST, LONGER, MORE_ROWS, MORE_SOURCE)  # runs in which sizes differ


@torch.no_grad()
def build_steps(analysis: StateAnalysis, longest: int, fused: bool = True) -> "FoundSteps":
    """Write the graphs of the encoder and of a step, as a module.

    Args:
        analysis: of a program.
        longest: tokens of a row.
        fused: compute attention by an operator of onnxruntime.
    """
    step = _Emitter(analysis).step()
    encoder = build_encoder(analysis.program, analysis.memory, fused)
    examples = [analysis.program.examples[run] for run in SHAPED]
    memory: dict[Any, Sequence[Tensor]] = {}  # zeros, by the sizes of the inputs
    for each in examples:
        sizes = tuple(tensor.shape for tensor in each.inputs)
        if sizes not in memory:
            memory[sizes] = [
                torch.zeros(made.shape, dtype=made.dtype)
                for made in without_values(encoder, each.inputs)
            ]
    arguments = [_step_arguments(analysis, run, memory) for run in SHAPED]
    shapes = lighten(step, arguments, longest, fused)
    head = find_head(step, shapes) if fused else None
    return FoundSteps(analysis, step, encoder, head)


def _step_arguments(
    analysis: StateAnalysis, run: int, memory: Mapping[Any, Sequence[Tensor]]
) -> list[Tensor]:
    """The arguments of a step: a token, states with the shapes that they have in a run, memory."""
    program, states = analysis.program, []
    for state in analysis.states:
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


class _Emitter:
    """Writes the graph of a step."""

    def __init__(self, analysis: StateAnalysis) -> None:
        self.analysis, self.program = analysis, analysis.program
        self.graph = fx.Graph()
        self.made: dict[tuple[fx.Node, Rows], Any] = {}
        self.after: dict[int, fx.Node] = {}
        self.stepped: dict[fx.Node, fx.Node] = {}
        self.total: fx.Node | None = None
        self.token = self.graph.placeholder("token")
        self.past = [self.graph.placeholder(f"state_{i}") for i in range(len(analysis.states))]
        for placeholder, state in zip(self.past, analysis.states, strict=True):
            if state.axis is not None:
                placeholder.meta[PAST_AXIS] = state.axis
        self.held = {
            node: self.graph.placeholder(f"memory_{i}") for i, node in enumerate(analysis.memory)
        }

    def step(self) -> fx.GraphModule:
        """The graph of a step: token (B, 1), state, memory -> logits (B, V), next state."""
        analysis, program = self.analysis, self.program
        for node in program.graph.nodes:
            plans = [rows for known, rows in analysis.plans if known is node]
            # The last row and all rows computed again are asked for by a node itself.
            for rows in sorted(plans, key=_order):
                self._make(node, rows)
        logits = self.graph.call_function(aten.select.int, (self.made[program.logits, (1,)], 1, 0))
        after = tuple(self.after[i] for i in range(len(analysis.states)))
        self.graph.output((logits, after))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(holder_of(program), self.graph)

    def _make(self, node: fx.Node, rows: Rows) -> None:
        if (node, rows) in self.made:
            return
        plan = self.analysis.plans[node, rows]
        for ask in asks_of(plan):  # other rows of the node itself
            if ask.node is node:
                self._make(node, ask.rows)
        self.made[node, rows] = made = self._emit(plan)
        if isinstance(made, fx.Node) and "stack_trace" in node.meta:
            made.meta.setdefault("stack_trace", node.meta["stack_trace"])

    def _emit(self, plan: Any) -> Any:
        program = self.program
        if isinstance(plan, fx.Node):
            if plan in program.tensors:
                return self.graph.get_attr(attribute_of(program, plan))
            return self.token if plan is program.target else self.held[plan]
        if isinstance(plan, Ask):
            return self.made[plan.node, plan.rows]
        if isinstance(plan, NextState):
            past, row = self.past[plan.number], self.made[plan.row.node, plan.row.rows]
            axis = self.analysis.states[plan.number].axis
            if axis is None:
                state = self.graph.call_function(aten.add.Tensor, (past, row))
            else:
                state = self.graph.call_function(aten.cat.default, ([past, row], axis))
            self.after[plan.number] = state
            return state
        if isinstance(plan, Stepped):
            return self._emit_stepped(plan)
        if isinstance(plan, InputSize):
            return self._size(plan.size)
        if plan is TOTAL:
            return self._total()
        if isinstance(plan, OperatorCall):
            args = self._emit_all(plan.args)
            kwargs = {name: self._emit_all(value) for name, value in plan.kwargs.items()}
            if not _symbolic(args) and plan.target in SIZE_ARITHMETIC:
                return plan.target(*args)
            return self.graph.call_function(plan.target, args, kwargs)
        return plan

    def _emit_stepped(self, plan: Stepped) -> fx.Node:
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
            number = next(i for i, each in enumerate(self.analysis.states) if each.axis is not None)
            axis = self.analysis.states[number].axis
            past = self.graph.call_function(aten.sym_size.int, (self.past[number], axis))
            self.total = self.graph.call_function(operator.add, (past, 1))
        return self.total


def _order(rows: Rows) -> int:
    return 0 if rows and rows != RECOMPUTED else 1


def _symbolic(args: Any) -> bool:
    return any(isinstance(each, fx.Node) for each in args)


def attribute_of(program: Program, node: fx.Node) -> str:
    """The name of a tensor of a program in ``holder_of``."""
    return f"tensors.{program.names[node].replace('.', '_')}"


def holder_of(program: Program) -> nn.Module:
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


def build_encoder(program: Program, memory: Sequence[fx.Node], fused: bool) -> fx.GraphModule:
    """Write the graph of an encoder: inputs -> memory.

    Args:
        program: of the forward.
        memory: what it returns, none of which depends on the target ids.
        fused: compute attention by an operator of onnxruntime.
    """
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.inputs:
        made[node] = graph.placeholder(node.name)
    for node in program.graph.nodes:
        if node in program.tensors:
            made[node] = graph.get_attr(attribute_of(program, node))
        elif node.op != "call_function" or node in program.of_target:
            continue
        elif node.all_input_nodes == [program.target]:  # the batch, which all inputs have
            made[node] = graph.call_function(aten.sym_size.int, (made[program.inputs[0]], 0))
        elif all(each in made for each in node.all_input_nodes):
            made[node] = graph.node_copy(node, lambda each: made[each])
            if is_recurrent(node):
                made[node].args = (node.target, *made[node].args)
                made[node].target = sequence
    graph.output(tuple(made[node] for node in memory))
    graph.eliminate_dead_code()
    encoder = fx.GraphModule(holder_of(program), graph)
    lighten(encoder, [program.examples[run].inputs for run in SHAPED], 0, fused)
    return encoder


@dataclass(frozen=True)
class Start:
    """A state before the first token.

    Attributes:
        dtype: its type.
        shape: the shape of zeros; a size is a number, or a tensor of the memory and its axis.
        memory: the tensor of the memory that it equals; None for zeros.
    """

    dtype: torch.dtype
    shape: tuple[int | tuple[int, int], ...] = ()
    memory: int | None = None


class FoundSteps(ByForward):
    """A module with ``encode``, ``start`` and ``step`` of docs/modules.md."""

    def __init__(
        self,
        analysis: StateAnalysis,
        step: fx.GraphModule,
        encoder: fx.GraphModule,
        head: tuple[Head, fx.GraphModule] | None,
    ) -> None:
        super().__init__()
        self.encoder, self.one_step, self.analysis = encoder, step, analysis
        self.own = analysis.program.own
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
        """The first value of each tensor of the state: zeros of a shape, or a memory tensor."""
        program, memory = self.analysis.program, self.analysis.memory
        sizes = [program.sizes(node) for node in memory]

        def size(wanted: Size) -> int | tuple[int, int]:
            if len(set(wanted)) == 1:
                return wanted[0]
            for number, axes in enumerate(sizes):
                if wanted in axes:
                    return number, axes.index(wanted)
            raise NoStepsError(f"a state has a size of {wanted[FIRST]}, which no memory has")

        made = []
        for state in self.analysis.states:
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
    """A module with ``encode`` and ``decode`` of docs/modules.md.

    It computes the complete prefix for every token.

    Attributes:
        why: the reason for which no step was found.
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
    """The operator and the user's line that each tensor of a step comes from, for the manifest.

    Returns:
        memory: a text for each of its tensors.
        state: a text for each of its tensors, with its kind.
        again: a text for each tensor that every step computes for all tokens, with the reason.
    """
    if isinstance(model, WholeForward):
        return {"memory": [], "state": [], "again": [model.why]}
    analysis, program = model.analysis, model.analysis.program

    def kind(state: State) -> str:
        if state.carried is not None:
            return "recurrent state"
        return "running sum" if state.axis is None else "cache"

    return {
        "memory": [program.place_of(node) for node in analysis.memory],
        "state": [f"{kind(state)}: {program.place_of(state.node)}" for state in analysis.states],
        "again": list(
            dict.fromkeys(
                f"{program.place_of(node)}: {why}" for node, why in analysis.again.items()
            )
        ),
    }
