"""Inputs, memory and state of a user's module, as data, for the manifest of its bundle.

A module has its own memory and state; the graphs name them ``memory.{i}``, ``past.{i}`` and
``present.{i}``. docs/modules.md has the contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfexport import graph_io
from tfexport.graph_io import BATCH, PAST, TARGET, GraphSpec, TensorSpec

DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
POSITION = "position"
# Names of inputs that the graphs have besides the module's own.
RESERVED = (
    graph_io.MAX_LENGTH, graph_io.BEAM_SIZE, graph_io.ENOUGH, graph_io.RETURN_SCORES, POSITION,
)  # fmt: skip


@dataclass(frozen=True)
class Growth:
    """An axis of the state that grows.

    Attributes:
        start: its size before the first step: a number, or the name of an axis of the memory.
        step: by how much every step lengthens it.
    """

    start: int | str
    step: int


@dataclass(frozen=True)
class ModuleIO:
    """The tensors of a module's graphs.

    Attributes:
        inputs: of ``encode``.
        memory: ``memory.{i}``, what ``encode`` gives; the batch is the first axis.
        state: ``past.{i}``, likewise.
        growth: axes of the state that grow, by name.
        many_tokens: a step takes any number of tokens; else one.
        padded: rows of unequal length may share a batch, padded on the right.
        recomputes: every step computes its whole prefix again.
        below: of inputs that are ids, the smallest number that is too large.
    """

    inputs: tuple[TensorSpec, ...]
    memory: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    growth: Mapping[str, Growth]
    many_tokens: bool
    padded: bool
    recomputes: bool
    below: Mapping[str, int]

    @property
    def takes_ids(self) -> bool:
        """Whether the source can be one row of ids: no input but these and their mask."""
        names = {tensor.name for tensor in self.inputs}
        return graph_io.INPUT_IDS in names and names <= {
            graph_io.INPUT_IDS, graph_io.ATTENTION_MASK
        }  # fmt: skip

    @property
    def masked(self) -> bool:
        """Whether there is an ``attention_mask``."""
        return any(tensor.name == graph_io.ATTENTION_MASK for tensor in self.inputs)

    def state_named(self, prefix: str) -> tuple[TensorSpec, ...]:
        """The state in the middle of decoding, under other names."""
        return self._renamed(prefix, {})

    def state_before(self, prefix: str = "past") -> tuple[TensorSpec, ...]:
        """The state before the first step."""
        return self._renamed(prefix, {name: axis.start for name, axis in self.growth.items()})

    def state_after(self, tokens: str, prefix: str = "present") -> tuple[TensorSpec, ...]:
        """The state after a step of ``tokens`` tokens."""
        after = {
            name: f"{name} + {tokens if axis.step == 1 else f'{axis.step} * {tokens}'}"
            for name, axis in self.growth.items()
        }
        return self._renamed(prefix, after)

    def _renamed(self, prefix: str, axes: Mapping[str, int | str]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                f"{prefix}.{i}",
                tensor.dtype,
                tuple(axes.get(axis, axis) if isinstance(axis, str) else axis
                      for axis in tensor.axes),
            )
            for i, tensor in enumerate(self.state)
        )  # fmt: skip

    def encoder_graph(self) -> GraphSpec:
        """The module's inputs to its memory, and its state before the first step."""
        return GraphSpec("encoder", self.inputs, (*self.memory, *self.state_before("present")))

    def decoder_graph(self, vocab_size: int) -> GraphSpec:
        """Target ids, their position, state and memory to logits and the next state."""
        tokens: int | str = TARGET if self.many_tokens else 1
        return GraphSpec(
            "decoder",
            inputs=(
                TensorSpec(graph_io.INPUT_IDS, "int64", (BATCH, tokens)),
                TensorSpec(POSITION, "int64", ()),
                *self.state,
                *self.memory,
            ),
            outputs=(
                TensorSpec(graph_io.LOGITS, "float32", (BATCH, tokens, vocab_size)),
                *self.state_after(str(tokens)),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for a manifest."""
        return {
            "inputs": [_tensor(tensor) for tensor in self.inputs],
            "memory": [_tensor(tensor) for tensor in self.memory],
            "state": [_tensor(tensor) for tensor in self.state],
            "growth": {n: {"start": a.start, "step": a.step} for n, a in self.growth.items()},
            "many_tokens": self.many_tokens,
            "padded": self.padded,
            "recomputes": self.recomputes,
            "below": dict(self.below),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModuleIO":
        """From the JSON values of a manifest, which has been checked."""
        tensors = {
            key: tuple(TensorSpec(t["name"], t["dtype"], tuple(t["axes"])) for t in values[key])
            for key in ("inputs", "memory", "state")
        }
        growth = {name: Growth(**axis) for name, axis in values["growth"].items()}
        others: dict[str, Any] = {
            name: values[name] for name in ("many_tokens", "padded", "recomputes", "below")
        }
        inputs, memory, state = tensors["inputs"], tensors["memory"], tensors["state"]
        return cls(inputs, memory, state, growth, **others)


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "axes": list(tensor.axes)}


__all__ = ["DTYPES", "PAST", "POSITION", "RESERVED", "Growth", "ModuleIO"]
