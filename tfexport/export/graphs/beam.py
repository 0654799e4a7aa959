"""Beam search in one graph: the first state and one step from torch, joined by an ONNX Loop.

The loop keeps no finished hypotheses. It records the candidates of every step, which
``beam_choice`` finds, and the runtime backtraces hypotheses from that record: see
``runtime.search.graph_search``.

Axes: B sentences, K beams, R = B * K rows, V vocabulary.
"""

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.export.graphs import exporter
from tfexport.export.graphs.beam_choice import (
    RECORD,
    SOURCE,
    STATE,
    TURN,
    InitialBeams,
    append_choice,
    append_initial_beams,
)
from tfexport.export.graphs.loops import (
    LoopInputs,
    add_constant,
    add_trips,
    append_start,
    declaration,
    gather_text,
    input_of,
    loop_over,
    make_loop,
    numbered,
    present_inputs,
    set_outputs,
)
from tfexport.export.graphs.step_model import StepModel
from tfexport.export.ir_tools.nodes import (
    PLACEHOLDERS,
    SEARCH_LOOP,
    append_node,
    is_operator,
    new_node,
    parse_graph,
    prefix_names,
)
from tfexport.graph_io import BATCH, PAST, GraphSpec, TensorSpec


def _past(model: StepModel, past: str, prefix: str = "") -> tuple[TensorSpec, ...]:
    """The model's state, of R rows."""
    return tuple(
        TensorSpec(tensor.name, tensor.dtype, (graph_io.ROWS, *tensor.axes[1:]))
        for tensor in model.state(past, prefix)
    )


def start_spec(model: StepModel) -> GraphSpec:
    """The graph from an encoder graph to the first state; see ``BeamStart``."""
    zeros = TensorSpec(graph_io.BEAMS, "int64", (graph_io.BEAMS,))
    sums = TensorSpec("first_sums", "float64", (BATCH, graph_io.BEAMS))
    past = _past(model, "0", prefix="first_")
    return GraphSpec(
        "beam_start", (*model.read_by_start, zeros), (*model.beam_memory.made, sums, *past)
    )


def step_spec(model: StepModel) -> GraphSpec:
    """The graph of one step of the model; see ``BeamStep``."""
    position = TensorSpec("position", "int64", ())
    token = TensorSpec("token", "int64", (BATCH, graph_io.BEAMS))
    logits = TensorSpec("step_logits", "float32", (BATCH, graph_io.BEAMS, model.vocab_size))
    return GraphSpec(
        "beam_step",
        inputs=(*model.beam_memory.tensors, position, token, *_past(model, PAST)),
        outputs=(logits, *_past(model, f"{PAST} + 1", prefix="next_")),
    )


class BeamStart(nn.Module):
    """The memory that is made once, and the first sums and state of the model."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Values of the encoder graph and one zero for every beam (K,), to memory and state."""
        *values, beams = tensors
        made = self.steps.make_memory(values, beams)
        zeros = self.steps.source_mask(values).sum(1) * 0
        # Only the first beam holds a hypothesis: the empty one.
        first = torch.arange(beams.size(0)) == 0
        sums = torch.where(first, 0.0, -torch.inf).double() + zeros.unsqueeze(1)
        past = self.steps.first_past(values, made, sums.float())
        return (*made, sums, *past)


class BeamStep(nn.Module):
    """One step of the model: memory, steps taken, tokens (B, K), state -> logits, next state."""

    def __init__(self, steps: StepModel) -> None:
        super().__init__()
        self.model, self.steps = steps.module, steps

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Logits are (B, K, V); each row of the state is of the beam that was given."""
        size = len(self.steps.beam_memory.tensors)
        memory, (position, token, *past) = tensors[:size], tensors[size:]
        logits, present = self.steps.step_beams(token, position, past, memory)
        return (logits, *present)


def export_beam(steps: StepModel, opset: int, encoder: ir.Model) -> ir.Model:
    """Export ``beam``: see ``graph_io.beam_graph``.

    Args:
        steps: the model, with weights; a ``Transformer`` has ``beam_attention`` in it.
        opset: the opset version of the standard operators.
        encoder: the encoder graph for the same weights, which is not changed.
    """
    joined = encoder.clone()
    graph = joined.graph
    start = exporter.export_graph_module(BeamStart(steps), start_spec(steps), opset, steps.sizes)
    step = exporter.export_graph_module(BeamStep(steps), step_spec(steps), opset, steps.sizes)
    kept, read = steps.encoder_values(graph)
    trips = add_trips(graph, steps.longest)
    spec = graph_io.beam_graph(steps.inputs)
    graph.inputs.extend(map(_value, spec.inputs[len(steps.inputs) + 1 :]))  # behind max_length
    zeros = _zeros(graph, steps.vocab_size)
    values = append_start(graph, start.graph, [*read, zeros])
    count = len(steps.beam_memory.made)
    made, sums, past = values[:count], values[count], values[count + 1 :]
    beams = append_initial_beams(graph, sums, trips, steps.vocab_size, opset)
    _choose(step.graph, len(steps.beam_memory.tensors), beams, steps.vocab_size, opset)
    fixed = [*(kept if steps.beam_memory.kept else []), *made, beams.source]
    body = _body(graph, step.graph, steps, opset)
    begin, zero = add_constant(graph, "begin", True), add_constant(graph, "zero", 0)
    first = [*beams.record, beams.token, *beams.state, *past, *fixed]
    loop = loop_over(body, [trips, begin, trips, zero, *first], "shrinking_loop")
    graph.append(loop)
    _remaining, _base, _order, ended, *record = loop.outputs[: 2 + len(RECORD)]
    by_step = [
        append_node(graph, "Transpose", [value], f"by_step_{value.name}", {"perm": [1, 0, 2]})
        for value in record
    ]
    set_outputs(graph, [*by_step, ended], spec)
    joined.opset_imports.update(step.opset_imports)
    return joined


def _choose(body: ir.Graph, place: int, beams: InitialBeams, size: int, opset: int) -> None:
    """Make the body of the inner loop of a model's step, whose inputs from ``place`` on change."""
    logits, *present = body.outputs
    position, token, *past = body.inputs[place:]
    source, base, *turn = (_value(tensor, "of_") for tensor in (SOURCE, _NUMBER, *TURN))
    iteration = _value(_NUMBER, "turn_")
    taken = new_node("Add", [base, iteration], "steps_taken")
    body.insert_before(body[0], taken)
    ir.convenience.replace_all_uses_with(position, taken.outputs[0])
    state = [_value(tensor, prefix="old_") for tensor in STATE]
    for value in state:
        value.shape = None  # which changes from step to step
    values = [logits, taken.outputs[0], *turn, source, *state]
    chosen = append_choice(body, values, beams.fixed, size, opset)
    moved = []
    for value in present:
        rows = append_node(body, "Gather", [value, chosen.order], f"moved_{value.name}")
        rows.type = value.type
        moved.append(rows)
    del body.inputs[place:]
    body.inputs.extend([source, base, *turn, iteration, token, *state, *past])
    body.outputs.clear()
    body.outputs.extend([chosen.going, chosen.token, *chosen.state, *moved, *chosen.record])
    for value in (chosen.token, *chosen.state, *chosen.record):
        value.shape = None


# Sentences that are done leave the batch, as rows that have ended do in ``greedy``: once a quarter
# of them is done, the inner loop ends, and the body of the outer one writes down what it has found
# and moves the others together.


_PREFIX = "sentences/"
_NUMBER = TensorSpec("number", "int64", ())
_TOKEN = TensorSpec("token", "int64", ("batch", "beams"))


def _body(graph: ir.Graph, step: ir.Graph, steps: StepModel, opset: int) -> ir.Graph:
    """The body of the outer loop, with the inner loop over ``step`` in it; see ``make_loop``."""
    body = parse_graph(_text(steps), opset, {PLACEHOLDERS: 1})
    (search,) = [node for node in body if is_operator(node, SEARCH_LOOP)]
    remaining, yes, base, few, rows, *state = present_inputs(search)
    fixed = body.inputs[-len(steps.beam_memory.tensors) - 1 :]
    given = LoopInputs(remaining, yes, state)
    inner = make_loop(graph, step, [*fixed, base, few, rows], given, counted=True).node
    prefix_names(body, _PREFIX)
    ir.convenience.replace_nodes_and_values(
        body, search, [search], [inner], search.outputs, inner.outputs
    )
    for value in body.inputs:
        value.name = f"{_PREFIX}{value.name}"
    return body


def _text(steps: StepModel) -> str:
    """The body of the outer loop in ONNX text, with a placeholder for the inner one.

    Its state are the steps that may still be taken and those that were; the record of the complete
    batch; and of the sentences that are not done the state of the search and what stays the same.
    """
    past = numbered("past", _past(steps, PAST))
    memory = numbered("fixed", steps.beam_memory.tensors)
    state = [_TOKEN, *STATE, *past]
    changing = [*state, *memory, SOURCE]
    counts = [TensorSpec(name, "int64", ()) for name in ("remaining", "base")]
    carried = [*counts, *RECORD, *changing]
    by_sentence, by_row = (
        [tensor for tensor in changing if (tensor.axes[0] == BATCH) == one] for one in (True, False)
    )
    changed = {tensor.name for tensor in state}
    searched = ", ".join(f"last_{tensor.name}" for tensor in state)
    moves = [
        gather_text([tensor], "last_" if tensor.name in changed else "", rows)
        for tensors, rows in ((by_sentence, "left"), (by_row, "left_rows"))
        for tensor in tensors
    ]
    return f"""
    sentences_leave (int64 turn, bool going, {", ".join(map(declaration, carried))})
        => (bool next_going, {", ".join(declaration(tensor, "next_") for tensor in carried)})
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        flat = Constant <value = int64[1] {{-1}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        three = Constant <value = int64 {{3}}> ()
        four = Constant <value = int64 {{4}}> ()
        yes = Constant <value = bool {{1}}> ()
        size = Size (order)
        threefold = Mul (size, three)
        few = Div (threefold, four)
        width = Shape <start = 1, end = 2> (token)
        beams = Squeeze (width, first)
        sentences = Range (zero, size, one)
        rows_before = Mul (sentences, beams)
        first_rows = Unsqueeze (rows_before, second)
        {searched}, tokens, parents, log_probs =
            {SEARCH_LOOP.replace("::", ".")} (remaining, yes, base, few, first_rows,
             {", ".join(tensor.name for tensor in state)})
        places = Unsqueeze (order, second)
        next_all_steps = ScatterND (all_steps, places, last_steps)
        height = Shape (all_steps)
        of_one = Shape <start = 0, end = 1> (tokens)
        of_step = Shape <start = 2, end = 3> (tokens)
        area = Concat <axis = 0> (height, of_one, of_step)
        {_write_text("tokens", "int64", "0")}
        {_write_text("parents", "int64", "0")}
        {_write_text("log_probs", "float", "-inf")}

        turns = Squeeze (of_one, first)
        next_remaining = Sub (remaining, turns)
        next_base = Add (base, turns)
        is_running = Equal (last_steps, zero)
        places_left = NonZero (is_running)
        left = Squeeze (places_left, first)
        next_order = Gather <axis = 0> (order, left)
        of_sentence = Range (zero, beams, one)
        first_left = Gather <axis = 0> (first_rows, left)
        rows_of_left = Add (first_left, of_sentence)
        left_rows = Reshape (rows_of_left, flat)
        {" ".join(moves)}
        number = Size (left)
        some = Greater (number, zero)
        more = Greater (next_remaining, zero)
        fewest = ReduceMin <keepdims = 0> (last_steps)
        has_not_failed = GreaterOrEqual (fewest, zero)
        can_go = And (some, more)
        next_going = And (can_go, has_not_failed)
    }}"""


def _write_text(name: str, kind: str, nothing: str) -> str:
    """Write what was recorded to the sentences' places in the complete batch."""
    return f"""
        by_sentence_{name} = Transpose <perm = [1, 0, 2]> ({name})
        none_{name} = ConstantOfShape <value = {kind}[1] {{{nothing}}}> (area)
        written_{name} = ScatterND (none_{name}, places, by_sentence_{name})
        next_all_{name} = Concat <axis = 1> (all_{name}, written_{name})"""


def _value(tensor: TensorSpec, prefix: str = "") -> ir.Value:
    kind = ir.DataType.from_numpy(np.dtype(tensor.dtype))
    shape = ir.Shape(tensor.axes)
    return ir.val(f"{prefix}{tensor.name}", type=ir.TensorType(kind), shape=shape)


def _zeros(graph: ir.Graph, vocab_size: int) -> ir.Value:
    """Append nodes that give K zeros, one for each beam (K,)."""
    flat = add_constant(graph, "flat", [1])
    # At most V / 2 + 1 beams: with more, TopK fails, and it does so before memory is allocated.
    most = add_constant(graph, "most_beams", vocab_size // 2 + 1)
    beam_size = input_of(graph, graph_io.BEAM_SIZE)
    bounded = append_node(graph, "Min", [beam_size, most], "bounded_beam_size")
    shape = append_node(graph, "Reshape", [bounded, flat], "beam_shape")
    zero = ir.tensor(np.zeros(1, np.int64))
    return append_node(graph, "ConstantOfShape", [shape], "beam_zeros", {"value": zero})
