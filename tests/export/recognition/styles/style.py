"""What a style is: a module as its author writes it, and what `export` is called with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import BOS, EOS, PAD, TARGET, Case
from tfexport.export import Input

SOURCE = Input("input_ids", "int64", ("batch", "source_length"))
SOURCE_BATCH_SECOND = Input("input_ids", "int64", ("source_length", "batch"))
TARGET_BATCH_SECOND = Input("target", "int64", ("target_length", "batch"))
RECOGNISED = "recognised"
DECODER = "the decoder is recognised"  # and the encoder is anything else

# Attributes to set, by dotted name, such as ``{"encoder.layers.0.norm1.eps": 1e-3}``.
Change = Mapping[str, object]


@dataclass(frozen=True)
class Style:
    """A Transformer in the style of a repository or a library.

    Attributes:
        name: of the style.
        build: makes it with weights that are the same each time, in eval mode.
        odd: what it does otherwise than most.
        inputs: those of ``forward`` but the target, in order.
        target: the ids of the target, the last argument of ``forward``.
        forward: ``forward(model, *inputs, target)`` where ``model(*inputs, target)`` is not the
            call.
        expected: RECOGNISED if a ``TransformerConfig`` computes the same with some weights,
            DECODER if it does so for the decoder alone; if not, why.
        pads_source: ``forward`` itself masks ``src == pad_id``.
        tables: the dotted names of tables of positions, which may be shifted.
        changes: other constants and choices that the module has as attributes, by what they do.
        stock: layers of torch compute attention; their operators are not those of the exported
            program, so that only attributes are changed.
    """

    name: str
    build: Callable[[], nn.Module]
    odd: str
    inputs: tuple[Input, ...] = (SOURCE,)
    target: Input = TARGET
    forward: Callable[..., Any] | None = None
    expected: str = RECOGNISED
    pads_source: bool = True
    tables: tuple[str, ...] = ()
    changes: Mapping[str, Change] = field(default_factory=dict)
    stock: bool = False
    pad_id: int = PAD
    bos_id: int = BOS
    eos_id: int = EOS

    @property
    def case(self) -> Case:
        """The style for the functions of the tests of found steps."""
        return Case(self.name, self.build, self.inputs, self.target, self.forward, self.pads_source)


def trained(
    build: Callable[[], nn.Module], seed: int, table: float = 0.3, scale: float = 1.0
) -> nn.Module:
    """A module with weights as after a training: none has the value that it began with.

    Args:
        build: makes it.
        seed: of all weights, which are the same each time.
        table: the size of embeddings.
        scale: what products of a matrix and inputs of size 1 vary by.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        with torch.no_grad():
            for weight in model.parameters():
                size = 0.1 if weight.dim() == 1 else scale / weight[0].numel() ** 0.5
                weight.add_(torch.randn(weight.shape) * size)
            for embedding in model.modules():
                if isinstance(embedding, nn.Embedding):
                    embedding.weight.copy_(torch.randn(embedding.weight.shape) * table)
    return model.eval()


def each_layer(name: str, attribute: str, value: object, layers: int = 2) -> dict[str, Change]:
    """A change in each of a list's layers, by itself.

    Args:
        name: what it does; the number of the layer follows.
        attribute: a dotted name with ``{}`` for the number of the layer.
        value: of the attribute.
        layers: their number.
    """
    return {f"{name} {i}": {attribute.format(i): value} for i in range(layers)}


def halved(name: str, heads: str, size: str, many: int, width: int) -> dict[str, Change]:
    """Half as many heads in one attention, of twice the size.

    Args:
        name: which attention.
        heads: the attribute with the number of heads.
        size: the attribute with their size; "" if there is none.
        many: heads as built.
        width: their size as built.
    """
    change: dict[str, object] = {heads: many // 2}
    if size:
        change[size] = width * 2
    return {f"half the heads in {name}": change}


def called(model: nn.Module, style: Style, *tensors: Tensor) -> Any:
    """What the forward of a style gives, as it is."""
    return model(*tensors) if style.forward is None else style.forward(model, *tensors)
