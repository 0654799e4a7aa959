"""The graphs of a user's module, and the module as a ``StepModel``."""

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.export.graphs import exporter
from tfexport.export.graphs.exporter import checked_ids
from tfexport.export.graphs.fused_attention import reshape_as
from tfexport.export.graphs.step_model import NO_RULES, GreedyOutputs, GreedyRules, Memory
from tfexport.export.graphs.transformer_steps import add_scores, best_token
from tfexport.export.ir_tools.nodes import (
    PROJECTION,
    Role,
    parse_graph,
    read_role,
    share_initializer,
    take_nodes,
    write_role,
)
from tfexport.export.modules.contract import Head
from tfexport.export.modules.examine import ModuleProbe
from tfexport.export.passes.int8_argmax import insert_argmax
from tfexport.graph_io import PAST, ROWS, TARGET, GraphSpec, TensorSpec
from tfexport.model_src.transformer import Transformer


class ModuleEncoder(nn.Module):
    """See ``ModuleIO.encoder_graph``."""

    def __init__(self, probe: ModuleProbe) -> None:
        super().__init__()
        self.model, self.probe = probe.module, probe

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs -> memory, state before the first step."""
        memory = self.model.encode(_checked(self.probe, tensors))
        return (*memory, *self.model.start(memory))


class StatesEncoder(nn.Module):
    """See ``ModuleIO.states_graph``."""

    def __init__(self, probe: ModuleProbe, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.probe = encoder, probe

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs -> states, and which are kept if some are masked."""
        states: tuple[Tensor, ...] = self.encoder(*_checked(self.probe, tensors))
        return states


class AlignmentHeads(nn.Module):
    """See ``ModuleIO.alignment_graph``."""

    def __init__(
        self, states: StatesEncoder, decoder: Transformer, heads: Sequence[Sequence[int]]
    ) -> None:
        super().__init__()
        self.states, self.model, self.heads = states, decoder, heads

    def forward(self, *tensors: Tensor) -> Tensor:
        """Inputs, ids (B, T) -> weights of the heads (B, K, T, S)."""
        *inputs, ids = tensors
        states, *kept = self.states(*inputs)
        mask = kept[0].long() if kept else torch.ones_like(states[:, :, 0], dtype=torch.int64)
        ids = checked_ids(ids, self.states.probe.vocab_size)
        decoder = self.model.decoder
        x = self.model.target_embedding(ids, 0)
        biases = self.model.biases(mask, torch.ones_like(ids))
        _, _, weights = decoder(
            x, biases[1], decoder.empty_cache(x), decoder.project_memory(states), biases[2]
        )
        return torch.stack([weights[layer][:, head] for layer, head in self.heads], dim=1)


class AlignmentOfForward(nn.Module):
    """See ``ModuleIO.alignment_graph``: all heads of all layers."""

    def __init__(self, probe: ModuleProbe, weights: nn.Module) -> None:
        super().__init__()
        self.probe, self.weights = probe, weights

    def forward(self, *tensors: Tensor) -> Tensor:
        """Inputs, ids (B, T) -> weights of the heads (B, K, T, S)."""
        *inputs, ids = tensors
        ids = checked_ids(ids, self.probe.vocab_size)
        weights: Tensor = self.weights(*_checked(self.probe, inputs), ids)
        return weights


def _checked(probe: ModuleProbe, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The inputs, of which ids are within their vocabularies."""
    return [
        checked_ids(tensor, probe.io.below[each.name]) if each.name in probe.io.below else tensor
        for each, tensor in zip(probe.inputs, tensors, strict=True)
    ]


class ModuleDecoder(nn.Module):
    """See ``ModuleIO.decoder_graph``."""

    def __init__(self, probe: ModuleProbe) -> None:
        super().__init__()
        self.model, self.probe = probe.module, probe

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Ids, position, state, memory -> logits, next state."""
        token, position, *others = tensors
        token = checked_ids(token, self.probe.vocab_size)
        count = len(self.probe.io.state)
        state, memory = others[:count], others[count:]
        if self.probe.io.many_tokens:
            logits, after = self.model.advance(token, state, memory)
        else:
            logits, after = self.model.step(token, position, state, memory)
            logits = logits.unsqueeze(1)
        return (logits.float(), *after)


def export_module_encoder(probe: ModuleProbe, opset: int) -> ir.Model:
    """Export ``encoder``."""
    spec = probe.io.encoder_graph()
    return exporter.export_graph_module(ModuleEncoder(probe), spec, opset, probe.sizes)


def export_module_states(
    probe: ModuleProbe, encoder: nn.Module, outputs: tuple[TensorSpec, ...], opset: int
) -> ir.Model:
    """Export ``states``: what a recognised decoder attends to.

    Args:
        probe: the module.
        encoder: its inputs to the states.
        outputs: these as tensors, and which are kept if some are masked.
        opset: the opset version of the standard operators.
    """
    spec = probe.io.states_graph(outputs)
    return exporter.export_graph_module(StatesEncoder(probe, encoder), spec, opset, probe.sizes)


def export_alignment(
    probe: ModuleProbe,
    module: nn.Module,
    heads: int,
    memory: int | str,
    opset: int,
) -> ir.Model:
    """Export ``alignment``: attention by which the times of words are found.

    Args:
        probe: the module that is exported.
        module: inputs and target ids to the weights.
        heads: how many it gives.
        memory: the axis of the positions that the decoder attends to.
        opset: the opset version of the standard operators.
    """
    spec = probe.io.alignment_graph(heads, memory)
    sizes = [{**each, TARGET: length} for length, each in enumerate(probe.sizes, 3)]
    return exporter.export_graph_module(module, spec, opset, sizes)


def export_module_embeddings(
    probe: ModuleProbe, embed: nn.Module, output: TensorSpec, opset: int
) -> ir.Model:
    """Export ``embeddings``: what the layers of a recognised encoder take.

    Args:
        probe: the module.
        embed: its inputs to the embeddings.
        output: these as a tensor of a graph.
        opset: the opset version of the standard operators.
    """
    spec = probe.io.embeddings_graph(output)
    return exporter.export_graph_module(StatesEncoder(probe, embed), spec, opset, probe.sizes)


def export_module_decoder(probe: ModuleProbe, opset: int) -> ir.Model:
    """Export ``decoder``."""
    spec = probe.io.decoder_graph(probe.vocab_size)
    return exporter.export_graph_module(ModuleDecoder(probe), spec, opset, probe.sizes)


# A user's module gives the logits of all tokens, so the best token is their argmax, and a step
# returns its log-probability. Each beam is a row, so the memory is repeated for each of them.
#
# Axes: B batch, K beams, R = B * K rows, T target, V vocabulary.


class ModuleSteps:
    """See ``StepModel``."""

    def __init__(
        self,
        probe: ModuleProbe,
        special_ids: SpecialIds,
        longest: int,
        rules: GreedyRules = NO_RULES,
    ) -> None:
        self.probe, self.module = probe, cast(nn.Module, probe.module)
        self.special_ids, self.vocab_size = special_ids, probe.vocab_size
        self.longest: int | None = longest
        self.record_width = self._find_record_width()
        self.sizes: Sequence[Mapping[str, int]] | None = probe.sizes
        self.rules = rules
        io = probe.io
        self.inputs = io.inputs
        self.read_by_start = (*io.memory, *io.state_before("present"))
        self.memory = Memory(io.memory, ())
        rows = tuple(
            TensorSpec(f"rows.{each.name}", each.dtype, (ROWS, *each.axes[1:]))
            for each in io.memory
        )
        self.beam_memory = Memory((), rows)

    def _find_record_width(self) -> int:
        return 1

    def state(self, past: str, prefix: str = "") -> tuple[TensorSpec, ...]:
        """See ``StepModel``."""
        io, name = self.probe.io, f"{prefix}past"
        if past == "0":
            return io.state_before(name)
        return io.state_named(name) if past == PAST else io.state_after("1", name)

    def encoder_values(self, graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Value]]:
        """See ``StepModel``; start reads all of them."""
        kept = list(graph.outputs[: len(self.probe.io.memory)])
        return kept, list(graph.outputs)

    def source_mask(self, values: Sequence[Tensor]) -> Tensor:
        """See ``StepModel``; every row has a source."""
        memory, _ = self._split(values)
        return torch.ones((memory[0].size(0), 1), dtype=torch.int64)

    def make_memory(
        self, values: Sequence[Tensor], beams: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """See ``StepModel``; for beams the memory of every row."""
        if beams is None:
            return ()
        memory, _ = self._split(values)
        return tuple(_repeat(tensor, beams.size(0)) for tensor in memory)

    def first_past(
        self, values: Sequence[Tensor], made: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """See ``StepModel``."""
        _, past = self._split(values)
        if rows is None:
            return past
        return tuple(_repeat(tensor, rows.size(1)) for tensor in past)

    def _split(self, values: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Memory and state before the first step, of the values that start reads."""
        count = len(self.probe.io.memory)
        return tuple(values[:count]), tuple(values[count:])

    def step(
        self, token: Tensor, count: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """See ``StepModel``; ``x`` are the logits, (B, V)."""
        # Rows that have not ended have taken all steps, and there is always one.
        logits, present = self.probe.module.step(token, count.max(), past, memory)
        return logits.float(), present, ()

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``StepModel``; the record is the token's log-probability."""
        if self.rules.suppress_tokens:
            x = x + self.rules.bias(self.vocab_size)
        best = x.argmax(-1, keepdim=True)
        return best, x.log_softmax(-1).gather(1, best).unsqueeze(1)

    def step_beams(
        self, token: Tensor, position: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """See ``StepModel``."""
        newest = reshape_as(token, torch.tensor([-1, 1]), [memory[0].size(0), 1])
        logits, present = self.probe.module.step(newest, position, past, memory)
        shape = torch.onnx.ops.symbolic("Shape", [token], dtype=torch.int64, shape=[2])
        whole = torch.cat([shape, torch.tensor([self.vocab_size])])
        return reshape_as(logits.float(), whole, [*token.shape, self.vocab_size]), present

    def finish_step(self, graph: ir.Graph, step: ir.Graph, opset: int) -> None:
        """See ``StepModel``; there is nothing to add."""

    def add_scores(
        self, graph: ir.Graph, decoded: GreedyOutputs, opset: int, spec: GraphSpec
    ) -> ir.Value:
        """See ``StepModel``; the mean of the records."""
        given = [decoded.counts, decoded.records]
        if decoded.free is not None:
            given.append(decoded.free)
        text = _mean(some_forced=decoded.free is not None)
        nodes, (scores,) = take_nodes(parse_graph(text, opset), given, "scores/")
        graph.extend(nodes)
        return scores


class HeadSteps(ModuleSteps):
    """A module whose last layer is known: the best token is found without all logits."""

    _projection: Sequence[ir.Value] = ()

    @property
    def _head(self) -> Head:
        head = self.probe.module.head
        assert head is not None
        return head

    def _find_record_width(self) -> int:
        return self._head.weight.size(1)

    def step(
        self, token: Tensor, count: Tensor, past: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """See ``StepModel``; ``x`` are the states before the head, (B, 1, E)."""
        x, present = self.probe.module.step_states(token, count.max(), past, memory)
        return x, present, ()

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``StepModel``; the argmax is a placeholder operator, the record is ``x``."""
        return best_token(x), x

    def finish_step(self, graph: ir.Graph, step: ir.Graph, opset: int) -> None:
        """See ``StepModel``: insert the argmax over the head."""
        weight, bias = (
            None if each is None else each.detach().numpy()
            for each in (self._head.weight, self._head.bias)
        )
        assert weight is not None
        if self.rules.suppress_tokens:
            banned = self.rules.bias(self.vocab_size).numpy()
            bias = banned if bias is None else bias + banned
        name = f"model.one_step.{self._head.name}"
        table = share_initializer(graph, name, weight)
        if read_role(table) is None:
            write_role(table, Role(name, PROJECTION))
        self._projection = insert_argmax(graph, step, weight, bias, opset)

    def add_scores(
        self, graph: ir.Graph, decoded: GreedyOutputs, opset: int, spec: GraphSpec
    ) -> ir.Value:
        """See ``StepModel``; from the states of all steps."""
        return add_scores(graph, decoded, self._projection, opset, spec)


def _repeat(tensor: Tensor, beams: int) -> Tensor:
    """Repeat every row for its beams: (B, ...) to (R, ...); by index, as axes may be empty."""
    rows = torch.arange(tensor.size(0)).unsqueeze(1).expand(-1, beams).flatten()
    return tensor.index_select(0, rows)


def _mean(some_forced: bool) -> str:
    """The mean log-probability of each row, 0 for a row without tokens; forced ones count as 0."""
    free = ", bool[batch, length] free" if some_forced else ""
    both = "chosen = And (counts_in, free)" if some_forced else ""
    chosen = "chosen" if some_forced else "counts_in"
    return f"""
    score (int64[batch] count, float[batch, length, 1] records{free}) => (float[batch] scores)
    {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        first = Constant <value = int64[1] {{0}}> ()
        second = Constant <value = int64[1] {{1}}> ()
        third = Constant <value = int64[1] {{2}}> ()
        log_probs = Squeeze (records, third)
        width_shape = Shape <start = 1, end = 2> (log_probs)
        width = Squeeze (width_shape, first)
        positions = Range (zero, width, one)
        columns = Unsqueeze (count, second)
        counts_in = Less (positions, columns)
        {both}
        nothing = Constant <value = float {{0.0}}> ()
        counted = Where ({chosen}, log_probs, nothing)
        total = ReduceSum <keepdims = 0> (counted, second)
        lengths = Max (count, one)
        float_lengths = Cast <to = 1> (lengths)
        scores = Div (total, float_lengths)
    }}"""
