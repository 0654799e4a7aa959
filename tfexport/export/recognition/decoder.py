"""A decoder alone, whose memory comes from an encoder of any form.

All that the decoder takes from the source has to come through one tensor, its memory, but for masks
of the memory's positions. A size of the source that acts on values would be another way.

Axes: B batch, S memory, T target, E width of the decoder, W width of the memory.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from tfexport.bundle import SpecialIds
from tfexport.export.incremental.forward_capture import TARGET
from tfexport.export.incremental.program import FIRST, MORE_SOURCE, Example, Program
from tfexport.export.incremental.program_values import ProgramValues
from tfexport.export.incremental.step_graphs import build_encoder
from tfexport.export.named_code import one_line
from tfexport.export.operators import (
    EQUALITIES,
    FILLED,
    FILLED_LIKE,
    NEW_FILLED,
    REARRANGED,
    WHERE,
    aten,
)
from tfexport.export.recognition.attention import MASKED, AllMaskedError, RecognisedAttention
from tfexport.export.recognition.dataflow import Dataflow, NotRecognisedError
from tfexport.export.recognition.encoder import RecognisedEncoder, recognise_encoder
from tfexport.export.recognition.model import (
    ModelAssembler,
    Recognised,
    check_ids,
    read_output,
    repeated,
)
from tfexport.export.recognition.stacks import Stack, StackReader, Sublayer
from tfexport.export.recognition.sublayers import find_norms
from tfexport.graph_io import BATCH, TensorSpec
from tfexport.model_src.build import build_decoder
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

MEMORY_AXIS = "memory_length"
_OF_ENCODER = ("encoder.", "source_embedding.")
# Operators that make tensors of the same number along the memory, or keep them so.
_UNIFORM = (
    *REARRANGED, *FILLED, *FILLED_LIKE, *NEW_FILLED, *EQUALITIES, *WHERE, aten.gt.Scalar,
    aten.lt.Scalar, aten.ge.Scalar, aten.le.Scalar, aten.logical_not.default,
    aten.bitwise_not.default, aten.logical_and.default, aten.bitwise_and.Tensor,
    aten.logical_or.default, aten.bitwise_or.Tensor, aten.sub.Tensor, aten.rsub.Scalar,
    aten.mul.Tensor, aten.masked_fill.Scalar, aten.where.Scalar, aten.amax.default, aten.any.dim,
    aten.all.dim, aten._assert_tensor_metadata.default,
)  # fmt: skip
# Operators that take a size for the shape of their result.
_SHAPED = (*REARRANGED, *FILLED, *NEW_FILLED)


@dataclass(frozen=True)
class RecognisedDecoder:
    """A decoder that computes what that of a forward does.

    Attributes:
        config: its config; the settings of an encoder are those of the decoder.
        state_dict: its weights, by the names of ``Transformer``.
        encoder: the part of the forward that gives its memory: inputs to (B, S, W), and if it has
            masks which positions are kept, (B, S).
        outputs: these as tensors of a graph.
        layers: of the encoder, if they are recognised too; nothing is masked then.
        why_no_layers: why these are not recognised; "" if they are.
        parameters: of the module, to the weights; see ``Manifest``.
    """

    config: TransformerConfig
    state_dict: dict[str, Tensor]
    encoder: nn.Module
    outputs: tuple[TensorSpec, ...]
    layers: RecognisedEncoder | None = None
    why_no_layers: str = ""
    parameters: dict[str, list[str]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Those of the decoder, and of the encoder's layers if they are recognised."""
        of_layers = {} if self.layers is None else self.layers.state_dict
        return {**self.state_dict, **of_layers}

    def encode(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The memory, and which of its positions are kept: (B, S, W) and (B, S) of 0 and 1."""
        if self.layers is not None:
            memory, kept = self.layers.encode(tuple(inputs)), []
        else:
            memory, *kept = self.encoder(*inputs)
        if kept:
            return memory, kept[0].long()
        return memory, torch.ones(memory.shape[:2], dtype=torch.int64)

    @functools.cached_property
    def model(self) -> Transformer:
        """Our own modules with its weights; in place of source ids they take the memory."""
        model = build_decoder(self.config, int(self.outputs[0].axes[-1])).eval()
        model.load_state_dict(self.state_dict, assign=True)
        return model


class _Encoder(nn.Module):
    def __init__(self, graph: fx.GraphModule, batch: int, mask: "_Mask | None") -> None:
        super().__init__()
        self.graph, self.batch, self.mask = graph, batch, mask

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See ``RecognisedDecoder.encoder``."""
        memory, *masks = self.graph(*inputs)
        made: Tensor = memory if self.batch == 0 else memory.movedim(self.batch, 0)
        return (made,) if self.mask is None else (made, self.mask.kept(masks[0]))


def recognise_decoder(
    program: Program, ids: SpecialIds, max_length: int, fused: bool = True
) -> RecognisedDecoder:
    """Recognise the decoder of a Transformer in a program.

    Args:
        program: of a forward.
        ids: of the vocabularies.
        max_length: tokens that it has to decode.
        fused: compute attention of the encoder by an operator of onnxruntime.

    Raises:
        NotRecognisedError: naming the first operator that is none of the known forms, and its line.
    """
    with torch.no_grad():
        reader, found = _read(program, ids, max_length)
        masks = [] if reader.mask is None else [reader.mask.node]
        graph = build_encoder(program, [reader.memory, *masks], fused)
        encoder = _Encoder(graph, program.batch_axis(reader.memory) or 0, reader.mask)
        specs = reader.specs()
        layers, why_not = _read_layers(program, reader.memory, specs, fused)
        weights = {
            name: tensor
            for name, tensor in found.state_dict.items()
            if not name.startswith(_OF_ENCODER)
        }
        return RecognisedDecoder(found.config, weights, encoder, specs, layers, why_not)


def _read_layers(
    program: Program, memory: fx.Node, specs: Sequence[TensorSpec], fused: bool
) -> tuple[RecognisedEncoder | None, str]:
    """The layers that give a memory, or None and why they are not known."""
    if len(specs) > 1:
        return None, "positions of its states are masked"
    try:
        return recognise_encoder(program, memory, specs[0], fused), ""
    except NotRecognisedError as error:
        return None, str(error)
    except Exception as error:  # it may be of any form, and runs as it is
        return None, f"its program could not be read: {one_line(error)}"


def _read(
    program: Program, ids: SpecialIds, max_length: int
) -> "tuple[_DecoderReader, Recognised]":
    """Read a decoder; a mask is true where positions are kept, or where they are hidden."""
    reader = _DecoderReader(program, ids, max_length, kept=True)
    try:
        return reader, reader.read()
    except NotRecognisedError as error:
        if reader.mask is None or program.dtypes[reader.mask.node] is not torch.bool:
            raise
        first = error
    reader = _DecoderReader(program, ids, max_length, kept=False)
    try:
        return reader, reader.read()
    except AllMaskedError:
        raise first from None


class _DecoderReader:
    """Reads the program as it is with nothing masked.

    Attributes:
        memory: the node of the memory.
        mask: the first of its masks; None if there are none.
    """

    def __init__(self, program: Program, ids: SpecialIds, max_length: int, kept: bool) -> None:
        self.program, self.ids, self.max_length = program, ids, max_length
        # The found steps mask padding that the decoder itself writes as the forward does, and the
        # engine masks none.
        check_ids(program, program.target, None)
        self.memory, self.beside = find_memory(program)
        _check_sizes(program, self.memory)
        roots = dict.fromkeys(_root(program, self.memory, each) for each in self.beside)
        of_masks = [
            _Mask(node, *axes, kept)
            for node in roots
            if node is not None and (axes := _mask_axes(program, self.memory, node)) is not None
        ]
        self.mask = of_masks[0] if of_masks else None
        for each in of_masks[1:]:
            if not _same(program, each.node, of_masks[0].node):
                first, other = (program.line_of(mask.node) for mask in (of_masks[0], each))
                raise NotRecognisedError(f"{other}: another mask than {first}")
        values_at = functools.cache(self._values_at)
        values = program.run_behind(self.memory, program.examples[FIRST])
        if of_masks:
            opened = {each.node: each.opened(values[each.node]) for each in of_masks}
            values = program.run_behind(self.memory, program.examples[FIRST], opened)
        self.decoder, self.encoder = (
            Dataflow(program, values, values_at, decoder=decoder, memory=self.memory)
            for decoder in (True, False)
        )
        for flow in (self.encoder, self.decoder):
            flow.norms = find_norms(flow)

    def read(self) -> Recognised:
        end, output = read_output(self.decoder)
        stack = StackReader(self.decoder, self.encoder).read(end)
        for node in _taken(self.program):
            # A mask that is made of the memory's values would act on others than the example's.
            if node not in self.beside and self.encoder.leaves(node) != [self.memory]:
                raise NotRecognisedError(
                    f"{self.program.line_of(node)}: the decoder takes something else from the "
                    f"source than projections of {_name(self.program, self.memory)}"
                )
        shapes = {tuple(each.shape) for each in self.program.tensors.values() if each.dim() == 2}
        assembler = ModelAssembler((_encoder_like(stack), stack), output, shapes, None)
        return assembler.build(self.ids, self.max_length)

    def specs(self) -> tuple[TensorSpec, ...]:
        """The memory, and which positions are kept, as tensors of a graph."""
        sizes = self.program.sizes(self.memory)
        batch = self.program.batch_axis(self.memory)
        length, width = (size for axis, size in enumerate(sizes) if axis != batch)
        name = MEMORY_AXIS
        while any(name in each.axes for each in self.program.own.batch_first):
            name += "_"
        axes = (BATCH, length[FIRST] if len(set(length)) == 1 else name)
        states = TensorSpec("memory.states", "float32", (*axes, width[FIRST]))
        return (states,) if self.mask is None else (states, TensorSpec("memory.kept", "bool", axes))

    def _values_at(self, length: int) -> ProgramValues:
        """Values for one row with target ids of a length, or of the largest that there may be."""
        of = self.program.examples[FIRST]
        longest = min(length, self.program.largest_sizes().get(TARGET, length))
        inputs = tuple(each[:1] for each in of.inputs)
        return self.program.values(Example(inputs, repeated(of.target, longest)))


def _encoder_like(decoder: Stack) -> Stack:
    """An encoder of the decoder's settings, which a config has and nobody runs."""

    def unmasked(each: Sublayer) -> Sublayer:
        inner = each.inner
        if isinstance(inner, RecognisedAttention):
            inner = replace(inner, masked=torch.zeros_like(inner.masked))
        return replace(each, inner=inner)

    kept = tuple(
        unmasked(each)
        for each in decoder.sublayers
        if not isinstance(each.inner, RecognisedAttention) or each.inner.memory is each.inner.source
    )
    return replace(decoder, sublayers=kept)


# The memory.


def find_memory(program: Program) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor (B, S, W) through which the decoder takes what it takes from the source.

    Returns:
        Its node, and those of masks that the decoder takes besides.

    Raises:
        NotRecognisedError: there is none; the message names what else the decoder takes.
    """
    taken = _taken(program)
    if not taken:
        raise NotRecognisedError("the decoder takes nothing from the source")
    for node in reversed(_of_source(program)):
        if _is_states(program, node) and _is_memory(program, node, taken):
            node = _before_wider(program, node, taken)
            return node, _beside(program, node, taken)
    lines = dict.fromkeys(program.line_of(node) for node in taken)
    raise NotRecognisedError(
        "what the decoder takes from the source comes through no single tensor of states: "
        + "; ".join(lines)
    )


def _name(program: Program, node: fx.Node) -> str:
    """An input's name, or the operator and line of another node."""
    if node in program.inputs:
        return program.own.batch_first[program.inputs.index(node)].name
    return program.line_of(node)


def _of_source(program: Program) -> list[fx.Node]:
    """Nodes that depend on values of the inputs, and on no target ids."""
    return [
        node for node in program.graph.nodes
        if node in program.of_source and node not in program.of_tokens
    ]  # fmt: skip


def _taken(program: Program) -> list[fx.Node]:
    """Of these nodes, those that the decoder takes."""
    tokens = program.of_tokens
    return [node for node in _of_source(program) if any(each in tokens for each in node.users)]


def _is_states(program: Program, node: fx.Node) -> bool:
    """Whether a tensor is float32 (B, S, W), or (S, B, W), of which W is fixed."""
    sizes = program.sizes(node)
    return (
        isinstance(node.meta.get("val"), Tensor)  # not the parts of a split
        and program.dtypes.get(node) is torch.float32
        and len(sizes) == 3
        and program.batch_axis(node) in (0, 1)
        and len(set(sizes[2])) == 1
        and not any(map(program.depends_on_length, sizes))
    )


def _is_memory(program: Program, node: fx.Node, taken: Sequence[fx.Node]) -> bool:
    """Whether all that the decoder takes besides a tensor of states are masks of it."""
    beside = _beside(program, node, taken)
    if len(beside) == len(taken):
        return False
    return all(_root(program, node, each) is not None for each in beside)


def _beside(program: Program, memory: fx.Node, taken: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes of the decoder's input that inputs reach without the memory."""
    reached = set(program.inputs) - {memory}
    for node in _of_source(program):
        if node is not memory and any(each in reached for each in node.all_input_nodes):
            reached.add(node)
    return [node for node in taken if node in reached]


def _mask_axes(program: Program, memory: fx.Node, node: fx.Node) -> tuple[int, int] | None:
    """The axes of batch and memory of a mask, whose others have one value or one a target id."""
    if node.op != "call_function" or program.dtypes.get(node) not in (torch.bool, torch.float32):
        return None
    sizes = program.sizes(node)
    _, length = sorted(enumerate(program.sizes(memory)[:2]), key=lambda each: (
        each[0] != program.batch_axis(memory)))  # fmt: skip
    batches = [axis for axis, size in enumerate(sizes) if program.is_batch(size)]
    lengths = [axis for axis, size in enumerate(sizes) if size == length[1]]
    rest = [size for axis, size in enumerate(sizes) if axis not in (*batches, *lengths[-1:])]
    if len(batches) != 1 or not lengths:
        return None
    if any(set(size) != {1} and not program.is_length(size) for size in rest):
        return None
    return batches[0], lengths[-1]


def _root(program: Program, memory: fx.Node, node: fx.Node) -> fx.Node | None:
    """The mask of which alone a node is made, of true and false if possible; None if none is."""
    nearest: fx.Node | None = None
    first: fx.Node | None = None
    while True:
        if node not in program.of_target and _mask_axes(program, memory, node) is not None:
            nearest = nearest or node
            if program.dtypes[node] is torch.bool:
                first = node
        before = [each for each in node.all_input_nodes if each in program.of_source]
        if len(before) != 1:
            return first or nearest
        (node,) = before


def _same(program: Program, one: Any, two: Any) -> bool:
    """Whether two nodes compute the same in the same way, or two arguments are equal."""
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(
            _same(program, *each) for each in zip(one, two, strict=True)
        )
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
        return bool(one == two)
    if one in program.tensors and two in program.tensors:
        return torch.equal(program.tensors[one], program.tensors[two])
    return one is two or (
        one.op == two.op == "call_function"
        and one.target is two.target
        and one.kwargs == two.kwargs
        and _same(program, one.args, two.args)
    )


@dataclass(frozen=True)
class _Mask:
    """A mask of the memory.

    Attributes:
        node: of the program; it does not depend on the target.
        batch: the axis of the batch.
        length: the axis of the memory's positions.
        value: what keeps a position, of a mask of true and false; others are added to scores.
    """

    node: fx.Node
    batch: int
    length: int
    value: bool

    def opened(self, value: Tensor) -> Tensor:
        """The mask where nothing is hidden."""
        return torch.full_like(value, self.value if value.dtype is torch.bool else 0.0)

    def kept(self, value: Tensor) -> Tensor:
        """Which positions are kept, (B, S); none of a row with numbers that hide nothing."""
        for axis in reversed(range(value.dim())):
            if axis not in (self.batch, self.length):
                value = value.select(axis, 0)
        if self.batch > self.length:
            value = value.t()
        if value.dtype is not torch.bool:
            hidden = value <= MASKED
            return ~hidden & (hidden | (value == 0)).all(dim=1, keepdim=True)
        return value if self.value else ~value


def _before_wider(program: Program, node: fx.Node, taken: Sequence[fx.Node]) -> fx.Node:
    """The node before a projection to more values, such as keys and values of an only layer."""
    while node.target is aten.linear.default:
        before: Any = node.args[0]
        if (
            not _is_states(program, before)
            or program.sizes(before)[2] >= program.sizes(node)[2]
            or not _is_memory(program, before, taken)
        ):
            break
        node = before
    return node


def _check_sizes(program: Program, memory: fx.Node) -> None:
    """Check that the length of the source acts on no value of the decoder, but for the memory.

    Raises:
        NotRecognisedError: naming the operator, such as a mask or a scale made of the length.
    """
    of_length = set(_of_length(program))
    of_decoder = _of_decoder(program, memory)
    waiting, seen = [node for node in program.graph.nodes if node in of_decoder], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        for each in node.all_input_nodes:
            if each not in of_length:
                continue
            if program.is_number(each):
                if node.target not in _SHAPED and not program.is_number(node):
                    raise NotRecognisedError(
                        f"{program.line_of(node)} depends on the length of the source"
                    )
            elif each.target not in _UNIFORM:
                raise NotRecognisedError(
                    f"{program.line_of(each)} depends on the length of the source"
                )
            if each not in seen:
                seen.add(each)
                waiting.append(each)


def _of_length(program: Program) -> Iterator[fx.Node]:
    """Nodes that depend on a size of the source that varies, and on none of its values."""
    found = set[fx.Node]()
    for node in program.graph.nodes:
        if node in program.of_source or node in program.of_tokens:
            continue
        if node.target is aten.sym_size.int:
            sizes = program.number_sizes(node)
            varies = sizes[MORE_SOURCE] != sizes[FIRST]
        else:
            varies = any(each in found for each in node.all_input_nodes)
        if varies:
            found.add(node)
            yield node


def _of_decoder(program: Program, memory: fx.Node) -> set[fx.Node]:
    """Nodes that depend on target ids, or on the memory."""
    found = {memory, *program.of_tokens}
    for node in program.graph.nodes:
        if node.target is not aten.sym_size.int and any(
            each in found for each in node.all_input_nodes
        ):
            found.add(node)
    return found - {memory}
