"""Greedy decoding in one graph: encoder, cache and loop.

The ONNX export (tracing) and TorchScript (scripting) share ``first_state`` and ``take_best``.

Axes: B batch, S source, T target, L layers, H heads, E width of the records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.loops import (
    LoopInputs,
    add_constant,
    add_trips,
    append_start,
    declaration,
    gather_text,
    loop_over,
    make_loop,
    numbered,
    present_inputs,
    set_outputs,
)
from tfexport.export.graphs.step_model import GreedyOutputs, StepModel, force_tokens
from tfexport.export.ir_tools.nodes import (
    PLACEHOLDERS,
    SEARCH_LOOP,
    append_node,
    is_operator,
    parse_graph,
    prefix_names,
)
from tfexport.graph_io import BATCH, PAST, SOURCE, CacheShape, GraphSpec, TensorSpec

# Axes: A active rows, T tokens so far.


T = TypeVar("T")


@dataclass(frozen=True)
class GreedyState(Generic[T]):
    """The state of greedy search between two steps: tensors, graph values, or their specs.

    Attributes:
        token: the last token of each row, (A, 1).
        ended: whether a row has ended, (A,).
        count: the number of tokens of each row, including the end token, (A,).
        sequences: (A, T).
        past: the model's state.
    """

    token: T
    ended: T
    count: T
    sequences: T
    past: tuple[T, ...]

    def pack(self) -> tuple[T, ...]:
        """The values in the order of a graph's inputs and outputs."""
        return (self.token, self.ended, self.count, self.sequences, *self.past)

    @classmethod
    def unpack(cls, values: Iterable[T]) -> "GreedyState[T]":
        """Create the state from the values of a graph, in order."""
        token, ended, count, sequences, *past = values
        return cls(token, ended, count, sequences, tuple(past))


def state_spec(model: StepModel, past: str, prefix: str = "") -> GreedyState[TensorSpec]:
    """The state's tensors.

    Args:
        model: the model.
        past: name of the past-length axis.
        prefix: a prefix for the names of the tensors.
    """
    return GreedyState(
        token=TensorSpec(f"{prefix}token", "int64", (BATCH, 1)),
        ended=TensorSpec(f"{prefix}ended", "bool", (BATCH,)),
        count=TensorSpec(f"{prefix}count", "int64", (BATCH,)),
        sequences=TensorSpec(f"{prefix}sequences", "int64", (BATCH, past)),
        past=model.state(past, prefix),
    )


def start_spec(model: StepModel) -> GraphSpec:
    """The graph from an encoder graph to the first state; see ``greedy.LoopStart``."""
    keep_going = TensorSpec("begin", "bool", ())
    state = state_spec(model, "0", prefix="first_")
    return GraphSpec(
        "loop_start", model.read_by_start, (*model.memory.made, keep_going, *state.pack())
    )


def step_spec(model: StepModel, attentions: tuple[TensorSpec, ...] = ()) -> GraphSpec:
    """The graph of one step; see ``greedy.LoopStep``."""
    min_active_rows = TensorSpec("few", "int64", ())
    keep_going = TensorSpec("going", "bool", ())
    before = state_spec(model, PAST).pack()
    after = state_spec(model, f"{PAST} + 1", prefix="next_").pack()
    records = TensorSpec("states", "float32", (BATCH, 1, model.record_width))
    return GraphSpec(
        "loop_step",
        inputs=(*model.memory.tensors, min_active_rows, *before),
        outputs=(keep_going, *after, records, *attentions),
    )


# Batch compaction: finished rows are removed from the batch of a greedy loop.
#
# Removing rows copies the caches of all others, so it is done once a quarter of them has finished.
# There are two loops. The inner one decodes until a quarter of its rows has finished. The outer one
# writes their tokens to the full batch and gathers the active rows for the next inner loop.
#
# Axes: B rows of the full batch, A active rows, T tokens so far, E width of the records.


_PREFIX = "rows/"


@dataclass(frozen=True)
class FullBatch(Generic[T]):
    """The part of the outer loop's state with a row for every sentence of the batch.

    Attributes:
        remaining: number of steps that may still be taken.
        order: (A,) indices of the active rows in the batch.
        sequences: (B, T) decoded tokens.
        count: (B,) tokens of each row, the end token included.
        states: (B, T, E) records of the steps.
    """

    remaining: T
    order: T
    sequences: T
    count: T
    states: T

    def pack(self) -> tuple[T, ...]:
        """The values in the order of the outer loop's inputs and outputs."""
        return (self.remaining, self.order, self.sequences, self.count, self.states)

    @classmethod
    def unpack_first(cls, values: Iterable[T]) -> "FullBatch[T]":
        """From the outer loop's values; those after the first five belong to the active rows."""
        remaining, order, sequences, count, states, *_ = values
        return cls(remaining, order, sequences, count, states)


@dataclass(frozen=True)
class CompactionSpec:
    """The tensors and sizes that decide the outer loop's body.

    Attributes:
        state: the state of the active rows.
        memory: the memory of the active rows.
        width: E.
        pad_id: fills a row after its end token.
        opset: the opset version of the standard operators.
    """

    state: GreedyState[TensorSpec]
    memory: tuple[TensorSpec, ...]
    width: int
    pad_id: int
    opset: int

    @classmethod
    def of(cls, steps: StepModel, opset: int) -> "CompactionSpec":
        """Create the spec for a model."""
        state, memory = state_spec(steps, PAST), steps.memory.tensors
        return cls(state, memory, steps.record_width, steps.special_ids.pad, opset)


def add_compacting_loop(
    graph: ir.Graph,
    step: ir.Graph,
    invariants: Sequence[ir.Value],
    given: LoopInputs,
    spec: CompactionSpec,
) -> FullBatch[ir.Value]:
    """Append the outer loop, with the inner loop in its body.

    Args:
        graph: the outermost graph.
        step: the body of the inner loop, as for ``make_loop``; its last invariant is
            ``min_active_rows``, the number of active rows at which the loop ends.
        invariants: the other invariants, each with one row per row of the batch.
        given: see ``make_loop``; the state is a ``GreedyState``.
        spec: sizes.

    Returns:
        The full batch after the last step.
    """
    body = _body(spec)
    (search,) = [node for node in body if is_operator(node, SEARCH_LOOP)]
    remaining, yes, min_active_rows, *searched = present_inputs(search)
    rows = body.inputs[-len(invariants) :]
    inner = make_loop(
        graph, step, [*rows, min_active_rows], LoopInputs(remaining, yes, searched)
    ).node
    prefix_names(body, _PREFIX)
    ir.convenience.replace_nodes_and_values(
        body, search, [search], [inner], search.outputs, inner.outputs
    )
    for value in body.inputs:
        value.name = f"{_PREFIX}{value.name}"

    state = GreedyState.unpack(given.state)
    full = _full_batch(graph, given.trips, state, spec.width)
    active = [state.token, state.ended, state.count, *state.past, *invariants]
    outer = loop_over(body, [given.trips, given.begin, *full.pack(), *active], "shrinking_loop")
    graph.append(outer)
    return FullBatch.unpack_first(outer.outputs)


def _full_batch(
    graph: ir.Graph, trips: ir.Value, state: GreedyState[ir.Value], width: int
) -> FullBatch[ir.Value]:
    """Append the nodes that compute the full batch before the first step."""
    height = append_node(graph, "Shape", [state.count], "height")
    size = append_node(graph, "Squeeze", [height], "size")
    zero, one = add_constant(graph, "zero", 0), add_constant(graph, "one", 1)
    order = append_node(graph, "Range", [zero, size, one], "order")
    area = add_constant(graph, "no_steps", [0, width])
    shape = append_node(graph, "Concat", [height, area], "state_shape", {"axis": 0})
    states = append_node(graph, "ConstantOfShape", [shape], "no_states")
    return FullBatch(trips, order, state.sequences, state.count, states)


def _body(spec: CompactionSpec) -> ir.Graph:
    """The outer loop's body, with a placeholder for the inner loop.

    Its state is the full batch, then for the active rows the greedy state without sequences and
    the invariants. In the text, ``few`` is ``min_active_rows`` and ``turn`` is the iteration.
    """
    state = spec.state
    # The names of caches hold dots, which the text form does not take.
    caches = numbered("past", state.past)
    fixed = numbered("fixed", spec.memory)
    kept = [state.token, state.ended, state.count, *caches]
    rows = [*kept, *fixed]
    before = [*_full_text(spec.width), *(declaration(t, "", "rows") for t in rows)]
    after = [*_full_text(spec.width, "next_"), *(declaration(t, "next_", "left") for t in rows)]
    text = f"""
    rows_leave (int64 turn, bool going, {", ".join(before)})
        => (bool next_going, {", ".join(after)})
    {{
        zero = Constant <value = int64 {{0}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        {_search_text(state, caches)}
        {_write_text(state, spec)}
        going_on = Not (last_{state.ended.name})
        places_left = NonZero (going_on)
        left = Squeeze (places_left, first)
        next_order = Gather <axis = 0> (order, left)
        {gather_text(kept, "last_", "left")}
        {gather_text(fixed, "", "left")}
        turns = Squeeze (width, first)
        next_remaining = Sub (remaining, turns)
        number = Size (left)
        some = Greater (number, zero)
        more = Greater (next_remaining, zero)
        next_going = And (some, more)
    }}"""
    return parse_graph(text, spec.opset, {PLACEHOLDERS: 1})


def _search_text(state: GreedyState[TensorSpec], caches: Sequence[TensorSpec]) -> str:
    """Decode until a quarter of the rows has finished."""
    searched = [state.token, state.ended, state.count, state.sequences, *caches]
    return f"""
        three = Constant <value = int64 {{3}}> ()
        four = Constant <value = int64 {{4}}> ()
        yes = Constant <value = bool {{1}}> ()
        size = Size (order)
        threefold = Mul (size, three)
        few = Div (threefold, four)
        nothing = Slice (token, first, first, second)
        {", ".join(f"last_{t.name}" for t in searched)}, stacked =
            {SEARCH_LOOP.replace("::", ".")}
            (remaining, yes, few, token, ended, count, nothing,
             {", ".join(t.name for t in caches)})"""


def _write_text(state: GreedyState[TensorSpec], spec: CompactionSpec) -> str:
    """Write the new tokens and hidden states to their rows in the full batch."""
    return f"""
        places = Unsqueeze (order, second)
        height = Shape (all_counts)
        width = Shape <start = 1, end = 2> (last_{state.sequences.name})
        area = Concat <axis = 0> (height, width)
        padding = ConstantOfShape <value = int64[1] {{{spec.pad_id}}}> (area)
        written = ScatterND (padding, places, last_{state.sequences.name})
        next_all_sequences = Concat <axis = 1> (all_sequences, written)
        next_all_counts = ScatterND (all_counts, places, last_{state.count.name})
        third = Constant <value = int64[1] {{2}}> ()
        states_of_steps = Squeeze (stacked, third)
        states = Transpose <perm = [1, 0, 2]> (states_of_steps)
        state_width = Constant <value = int64[1] {{{spec.width}}}> ()
        state_area = Concat <axis = 0> (area, state_width)
        no_states = ConstantOfShape (state_area)
        written_states = ScatterND (no_states, places, states)
        next_all_states = Concat <axis = 1> (all_states, written_states)"""


def _full_text(width: int, prefix: str = "") -> tuple[str, ...]:
    """The declarations (type and name) of a full batch in ONNX text."""
    return FullBatch(
        remaining=f"int64 {prefix}remaining",
        order=f"int64[{prefix}rows] {prefix}order",
        sequences=f"int64[batch, {prefix}length] {prefix}all_sequences",
        count=f"int64[batch] {prefix}all_counts",
        states=f"float[batch, {prefix}length, {width}] {prefix}all_states",
    ).pack()


def first_state(attention_mask: Tensor, bos_id: int) -> tuple[Tensor, Tensor]:
    """Source mask (B, S), 1 = keep, to the first ``token`` (B, 1) and ``ended`` (B,)."""
    kept = (attention_mask != 0).sum(1)
    # A row without source tokens has ended before the first step.
    return torch.full_like(kept.unsqueeze(1), bos_id), kept == 0


def take_best(best: Tensor, ended: Tensor, eos_id: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """The next ``token`` and ``ended``, from the argmax (B, 1) of a step.

    Rows that have ended get padding.
    """
    token = torch.where(ended.unsqueeze(1), pad_id, best)
    return token, ended | (best[:, 0] == eos_id)


class LoopStart(nn.Module):
    """The memory that is made once, whether to take the first step, and the first state."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values of the encoder graph -> memory, whether to take the first step, state."""
        made = self.steps.make_memory(values)
        start = self.steps.special_ids.decoder_start
        token, ended = first_state(self.steps.source_mask(values), start)
        past = self.steps.first_past(values, made)
        begin = ~ended.all()
        state = GreedyState(token, ended, ended.long() * 0, token[:, :0], past)
        return (*made, begin, *state.pack())


class LoopStep(nn.Module):
    """One step; ``keep_going`` while more than ``min_active_rows`` rows have not ended.

    Besides the state, the outputs are records, from which scores are computed after the loop, and
    with ``output_attentions`` the cross-attention weights of the step, (B, L, H, S).
    """

    def __init__(self, steps: StepModel, output_attentions: bool = False) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps
        self.output_attentions = output_attentions

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory, ``min_active_rows``, state -> keep_going, state, records, attention weights."""
        size, ids = len(self.steps.memory.tensors), self.steps.special_ids
        memory, (min_active_rows, *packed) = tensors[:size], tensors[size:]
        state = GreedyState.unpack(packed)
        x, present, weights = self.steps.step(state.token, state.count, state.past, memory)
        best, record = self.steps.choose(x)
        if self.steps.rules.first_token is not None:
            best = torch.where(state.count.unsqueeze(1) == 0, self.steps.rules.first_token, best)
        count = state.count + (~state.ended).long()
        token, ended = take_best(best, state.ended, ids.eos, ids.pad)
        sequences = torch.cat([state.sequences, token], dim=1)
        attentions = [torch.stack([*weights], dim=1)[:, :, :, 0]] if self.output_attentions else []
        keep_going = (~ended).sum() > min_active_rows
        after = GreedyState(token, ended, count, sequences, tuple(present))
        return (keep_going, *after.pack(), record, *attentions)


class _Search(NamedTuple):
    """The parts of a greedy search, before they are joined.

    Attributes:
        graph: the encoder, and the nodes that compute the loop's inputs.
        step: the graph of one step.
        memory: values of the graph that every step reads, one row per row of the batch.
        given: the loop's inputs.
    """

    graph: ir.Graph
    step: ir.Graph
    memory: Sequence[ir.Value]
    given: LoopInputs


def export_generate(
    steps: StepModel,
    opset: int,
    encoder: ir.Model,
    attention: CacheShape | None = None,
    can_skip_scores: bool = False,
) -> ir.Model:
    """Export ``generate``: see ``graph_io.generate_graph``.

    Args:
        steps: the model, with weights.
        opset: the opset version of the standard operators.
        encoder: the encoder graph of the same model, which is not changed.
        attention: layers and heads of the cross-attention, to make its weights an output.
        can_skip_scores: add the optional input ``return_scores``. onnxruntime warns about optional
            inputs, so only the graph in a bundle has one.
    """
    joined = encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(LoopStart(steps), start_spec(steps), opset, steps.sizes)
    weights: tuple[TensorSpec, ...] = ()
    if attention is not None:
        shape = (BATCH, attention.num_layers, attention.num_heads, SOURCE)
        weights = (TensorSpec("attended", "float32", shape),)
    step = exporter.export_graph_module(
        LoopStep(steps, bool(weights)), step_spec(steps, weights), opset, steps.sizes
    )
    kept, read = steps.encoder_values(graph)
    values = append_start(graph, start.graph, read)
    made, (begin, *state) = values[: len(steps.memory.made)], values[len(steps.memory.made) :]
    steps.finish_step(graph, step.graph, opset)
    trips = add_trips(graph, steps.longest)
    given = LoopInputs(trips, begin, state)
    search = _Search(graph, step.graph, [*kept, *made], given)
    attentions: list[ir.Value] = []
    if weights:
        decoded, found = _loop_with_attentions(search)
        attentions.append(found)
    else:
        full = add_compacting_loop(
            graph, step.graph, search.memory, given, CompactionSpec.of(steps, opset)
        )
        decoded = GreedyOutputs(full.sequences, full.count, full.states)
    if steps.rules.forces:
        forced, free = force_tokens(
            graph, steps.rules, decoded.sequences, decoded.counts, trips, opset
        )
        decoded = decoded._replace(sequences=forced, free=free)
    full_spec = graph_io.generate_graph(attention, can_skip_scores, steps.inputs)
    scores = steps.add_scores(graph, decoded, opset, full_spec)
    set_outputs(graph, [decoded.sequences, scores, *attentions], full_spec)
    step.opset_imports.pop(PLACEHOLDERS, None)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _loop_with_attentions(search: _Search) -> tuple[GreedyOutputs, ir.Value]:
    """Append a loop without batch compaction, as attention weights of fewer rows cannot be stacked.

    Returns:
        The decoded tokens, and the cross-attention weights (B, L, H, T, S).
    """
    graph = search.graph
    invariants = [*search.memory, add_constant(graph, "none", 0)]
    loop = make_loop(graph, search.step, invariants, search.given)
    graph.append(loop.node)
    state = GreedyState.unpack(loop.state)
    states, weights = loop.stacked
    # (T, B, 1, E) to (B, T, E), and (T, B, L, H, S) to (B, L, H, T, S).
    third = add_constant(graph, "third", [2])
    squeezed = append_node(graph, "Squeeze", [states, third], "states_of_steps")
    states = append_node(graph, "Transpose", [squeezed], "states", {"perm": [1, 0, 2]})
    weights = append_node(graph, "Transpose", [weights], "turned", {"perm": [1, 2, 3, 0, 4]})
    return GreedyOutputs(state.sequences, state.count, states), weights
