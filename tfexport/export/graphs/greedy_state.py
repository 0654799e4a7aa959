"""The state of the greedy loop, and the specs of the graphs around it.

Axes: A active rows, T tokens so far, L layers, H heads, S source, D head size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfexport import graph_io
from tfexport.graph_io import BATCH, PAST, SOURCE, CacheShape, GraphSpec, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True)
class GreedyState(Generic[T]):
    """The state of greedy search between two steps: tensors, graph values, or their specs.

    Attributes:
        token: the last token of each row, (A, 1).
        ended: whether a row has ended, (A,).
        count: tokens of each row, the end token included, (A,).
        sequences: (A, T).
        past: self-attention keys and values, (A, H, T, D) each.
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


def state_spec(cache: CacheShape, past: str, prefix: str = "") -> GreedyState[TensorSpec]:
    """The state's tensors.

    Args:
        cache: sizes of the caches.
        past: name of the past-length axis.
        prefix: of the tensors' names.
    """
    return GreedyState(
        token=TensorSpec(f"{prefix}token", "int64", (BATCH, 1)),
        ended=TensorSpec(f"{prefix}ended", "bool", (BATCH,)),
        count=TensorSpec(f"{prefix}count", "int64", (BATCH,)),
        sequences=TensorSpec(f"{prefix}sequences", "int64", (BATCH, past)),
        past=cache.tensors(f"{prefix}past.{{layer}}", past),
    )


def row_invariants_spec(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """Inputs that every step reads and none changes, with one row per row of the batch."""
    return (*cache.tensors("cross.{layer}", SOURCE), _bias_spec())


def start_spec(cache: CacheShape) -> GraphSpec:
    """The graph from the source's mask to the first state; see ``greedy.LoopStart``."""
    keep_going = TensorSpec("begin", "bool", ())
    mask = TensorSpec(graph_io.ATTENTION_MASK, "int64", (BATCH, SOURCE))
    state = state_spec(cache, "0", prefix="first_")
    return GraphSpec("loop_start", (mask,), (_bias_spec(), keep_going, *state.pack()))


def step_spec(cache: CacheShape, d_model: int, output_attentions: bool) -> GraphSpec:
    """The graph of one step; see ``greedy.LoopStep``."""
    min_active_rows = TensorSpec("few", "int64", ())
    keep_going = TensorSpec("going", "bool", ())
    before = state_spec(cache, PAST).pack()
    after = state_spec(cache, f"{PAST} + 1", prefix="next_").pack()
    states = TensorSpec("states", "float32", (BATCH, 1, d_model))
    shape = (BATCH, cache.num_layers, cache.num_heads, SOURCE)
    attentions = (TensorSpec("attended", "float32", shape),) if output_attentions else ()
    return GraphSpec(
        "loop_step",
        inputs=(*row_invariants_spec(cache), min_active_rows, *before),
        outputs=(keep_going, *after, states, *attentions),
    )


def _bias_spec() -> TensorSpec:
    return TensorSpec("cross_bias", "float32", (BATCH, 1, 1, SOURCE))
