"""The layers of an encoder of pictures or sound, of which the embeddings are of any form.

They are those of an ordinary Transformer, in which every position sees every other one. What makes
vectors of the inputs, such as patches or convolutions, is not looked at.

Axes: B batch, S positions, W width.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from tfexport.export.incremental.program import FIRST, Example, Program
from tfexport.export.incremental.step_graphs import build_encoder
from tfexport.export.recognition.attention import RecognisedAttention
from tfexport.export.recognition.dataflow import Dataflow, NotRecognisedError
from tfexport.export.recognition.model import name_layers
from tfexport.export.recognition.stacks import Stack, StackReader
from tfexport.export.recognition.sublayers import find_norms
from tfexport.graph_io import TensorSpec
from tfexport.model_src.build import build_encoder as build_layers
from tfexport.model_src.config import TransformerConfig

_PLACES = 3  # positions at which a linear map is looked at: there may be 1,500, of large matrices


@dataclass(frozen=True)
class RecognisedEncoder:
    """The layers of an encoder that compute what those of a forward do.

    Attributes:
        config: their config; the settings of a decoder are the same, and nobody's.
        state_dict: their weights, by the names of ``Transformer``.
        embed: the part of the forward that gives the embeddings: inputs to (B, S, W).
        embeddings: these as a tensor of a graph.
    """

    config: TransformerConfig
    state_dict: dict[str, Tensor]
    embed: nn.Module
    embeddings: TensorSpec

    @functools.cached_property
    def model(self) -> nn.Module:
        """Our own modules with its weights: (B, S, W) to the same."""
        layers = build_layers(self.config).eval()
        layers.load_state_dict(self.state_dict, assign=True)
        return layers

    def encode(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The states (B, S, W) of inputs."""
        (embeddings,) = self.embed(*inputs)
        states: Tensor = self.model(embeddings)
        return states


class _Embed(nn.Module):
    def __init__(self, graph: fx.GraphModule, batch: int) -> None:
        super().__init__()
        self.graph, self.batch = graph, batch

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        """See ``RecognisedEncoder.embed``."""
        (made,) = self.graph(*inputs)
        return (made if self.batch == 0 else made.movedim(self.batch, 0),)


def recognise_encoder(
    program: Program, memory: fx.Node, states: TensorSpec, fused: bool
) -> RecognisedEncoder:
    """Recognise the layers that give a memory.

    Args:
        program: of a forward whose inputs are numbers.
        memory: what its decoder attends to.
        states: the memory as a tensor of a graph.
        fused: compute attention before the layers by an operator of onnxruntime.

    Raises:
        NotRecognisedError: naming the first operator that is none of the known forms, and its line.
    """
    flow = _flow(program, memory)
    entry, stack = StackReader(flow).read_layers(memory)
    if len(program.sizes(entry)) != 3 or program.batch_axis(entry) != program.batch_axis(memory):
        raise NotRecognisedError(f"{program.line_of(entry)} gives no vector for each position")
    _check_alone(program, flow, entry, memory)
    _check_plain(stack)
    config, weights = name_layers(stack)
    embed = _Embed(build_encoder(program, [entry], fused), program.batch_axis(entry) or 0)
    spec = TensorSpec("encoder.embeddings", "float32", states.axes)
    return RecognisedEncoder(config, weights, embed, spec)


def _flow(program: Program, memory: fx.Node) -> Dataflow:
    """The dataflow of the encoder's input, for one row of it."""
    numbers = [node for node in program.inputs if program.dtypes[node] is torch.float32]
    if len(numbers) != 1:
        raise NotRecognisedError(f"the encoder takes {len(numbers)} inputs of numbers, not one")
    of = program.examples[FIRST]
    row = Example(tuple(each[:1] for each in of.inputs), of.target[:1])
    values = program.values(row)
    flow = Dataflow(
        program,
        values,
        lambda _length: values,
        decoder=False,
        memory=numbers[0],
        most_places=_PLACES,
    )
    if memory not in flow.side:
        raise NotRecognisedError("the memory is not computed from the input")
    flow.norms = find_norms(flow)
    return flow


def _check_alone(program: Program, flow: Dataflow, entry: fx.Node, memory: fx.Node) -> None:
    """Check that nothing of the inputs reaches the layers but through their first tensor.

    Raises:
        NotRecognisedError: something does, such as a mask.
    """
    layers = set(flow.between(entry, flow.peeled(memory)))
    for node in layers:
        for each in node.all_input_nodes:
            beside = each in program.of_source and each is not entry and each not in layers
            if beside or (each in flow.side and not _follows(flow, entry, each)):
                raise NotRecognisedError(
                    f"{program.line_of(node)} takes something else from the inputs"
                )


def _follows(flow: Dataflow, entry: fx.Node, node: fx.Node) -> bool:
    return node is entry or flow.dominates(entry, node)


def _check_plain(stack: Stack) -> None:
    for each in stack.sublayers:
        if isinstance(each.inner, RecognisedAttention) and (
            each.inner.rotary or each.inner.strip is not None
        ):
            raise NotRecognisedError(f"{each.line}: relative positions in an encoder")
