"""A module of the contract as the tests take it: its making, its inputs, and rows drawn for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Row = dict[str, NDArray[Any]]
InputData = tuple[str, str, tuple[str | int, ...]]
PAD, BOS, EOS = 0, 1, 2


@dataclass(frozen=True)
class Kind:
    """One kind of module.

    Attributes:
        name: of the kind.
        make: gives the module with torch's own initial weights.
        inputs: name, dtype and axes of each, in the order of ``encode``'s parameters.
        draw: gives the arrays of one row, of a drawn size, without the batch axis; some rows are of
            one shape, so that they share a batch.
        seed: of the weights. Chosen by the outputs: they differ from row to row, in tokens and in
            length, and no two candidates are nearly equal.
        scale: of all matrices but tables, large enough that outputs depend on inputs.
        table_scale: of the tables of embeddings, small enough that the last token is not repeated.
        end_bias: added to the end token's logit, so that sequences end.
        max_length: of the tests' searches.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[InputData, ...]
    draw: Callable[[np.random.Generator], Row]
    seed: int = 0
    scale: float = 2.0
    table_scale: float = 1.0
    end_bias: float = 0.0
    max_length: int = 24

    @property
    def takes_ids(self) -> bool:
        return self.inputs[0][0] == "input_ids" and len(self.inputs) <= 2

    def build(self) -> nn.Module:
        """The module with its weights, in eval mode."""
        torch.manual_seed(self.seed)
        model = self.make().eval().requires_grad_(False)
        tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(self.table_scale if id(parameter) in tables else self.scale)
            elif "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            if name == "output.bias":
                parameter[EOS] += self.end_bias
        return model

    def rows(self, seed: int, count: int) -> list[Row]:
        """Rows of different sizes."""
        rng = np.random.default_rng([seed, len(self.name)])
        return [self.draw(rng) for _ in range(count)]


def draw_ids(rng: np.random.Generator, vocabulary: int, longest: int = 11) -> NDArray[Any]:
    """Ids (S,) without special tokens, ended by the end token."""
    length = int(rng.integers(1, longest))
    return np.append(rng.integers(3, vocabulary, length), EOS)


def draw_text(rng: np.random.Generator, vocabulary: int) -> Row:
    """input_ids and attention_mask (S,) of one row."""
    ids = draw_ids(rng, vocabulary)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


TEXT_INPUTS: tuple[InputData, ...] = (
    ("input_ids", "int64", ("batch", "source_length")),
    ("attention_mask", "int64", ("batch", "source_length")),
)
