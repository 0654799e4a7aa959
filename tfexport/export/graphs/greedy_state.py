"""The state of the greedy loop, and the specs of the graphs around it.

Axes: A active rows, T tokens so far.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfexport.export.graphs.step_model import StepModel
from tfexport.graph_io import BATCH, PAST, GraphSpec, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True)
class GreedyState(Generic[T]):
    """The state of greedy search between two steps: tensors, graph values, or their specs.

    Attributes:
        token: the last token of each row, (A, 1).
        ended: whether a row has ended, (A,).
        count: tokens of each row, the end token included, (A,).
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
        """From values in that order."""
        token, ended, count, sequences, *past = values
        return cls(token, ended, count, sequences, tuple(past))


def state_spec(model: StepModel, past: str, prefix: str = "") -> GreedyState[TensorSpec]:
    """The state's tensors.

    Args:
        model: whose state is part of it.
        past: name of the past-length axis.
        prefix: of the tensors' names.
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
