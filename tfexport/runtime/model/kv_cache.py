"""KV caches in onnxruntime's memory: of a batch, and of slots for continuous batching.

Axes: R rows of the decoder.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import OrtValue

from tfexport import graph_io
from tfexport.errors import BundleError
from tfexport.graph_io import CacheShape
from tfexport.runtime.model.interface import Floats, Ids, Ran, Run, Source
from tfexport.runtime.model.session import Binding, Graph


class DecoderState:
    """The tensors of a batch of R decoder rows, in onnxruntime's memory.

    Only ``select`` changes rows; it moves all data of a row together, so that no row can attend to
    another row's source.

    Attributes:
        sources: (R,), index of the encoded source that each row attends to; other data of a
            source, such as its candidates, is looked up by it.
        memory: tensors that are computed once for each source, by the decoder's input names: masks
            and the cross-attention cache, (R, ...) each.
        past: tensors that every step changes: the self-attention cache, (R, ...) each.
        position: number of tokens so far.
        own_past: whether no two tensors of ``past`` and ``memory`` share storage, so that the past
            may be changed in place.
    """

    def __init__(
        self, memory: dict[str, OrtValue], past: dict[str, OrtValue], own_past: bool = True
    ) -> None:
        self.memory, self.past, self.position, self.own_past = memory, past, 0, own_past
        first = next(iter(memory.values()))
        self.sources: NDArray[np.intp] = np.arange(first.shape()[0])

    def select(self, rows: NDArray[np.intp]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped.

        Tensors are copied only if rows change: the memory if sources do, the past if rows move.
        """
        sources = self.sources[rows]
        if not np.array_equal(sources, self.sources):
            self.memory = {name: _take(value, rows) for name, value in self.memory.items()}
        if len(sources) != len(self.sources):
            self.past = {name: _take(value, rows) for name, value in self.past.items()}
        else:
            self._move_past(rows)
        self.sources = sources

    def _move_past(self, rows: NDArray[np.intp]) -> None:
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        if not moved.size:
            return
        if not self.own_past:
            self.past = {name: _take(value, rows) for name, value in self.past.items()}
            return
        for value in self.past.values():
            # In place: onnxruntime allocated this memory for one output and does not reuse it.
            values = value.numpy()
            values[moved] = values[rows[moved]]


def _take(value: OrtValue, rows: NDArray[np.intp]) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(value.numpy()[rows])


class EncodedRow(NamedTuple):
    """A row of a batch before its first token, from which several searches may start.

    Attributes:
        batch: its state, which no search changes.
        place: of the row.
        source: what was encoded.
    """

    batch: DecoderState
    place: int
    source: Any


def encoded_rows(rows: Sequence[Any]) -> list[EncodedRow]:
    """The rows if they are encoded; none if they are not.

    Raises:
        ValueError: only some of them are.
    """
    found = [row for row in rows if isinstance(row, EncodedRow)]
    if found and len(found) != len(rows):
        raise ValueError(f"{len(found)} of {len(rows)} rows of a batch are encoded; all have to be")
    return found


def join_rows(rows: Sequence[EncodedRow]) -> DecoderState:
    """Encoded rows as a batch; nothing is copied if they are all those of one."""
    first = rows[0].batch
    alike = all(row.batch is first for row in rows)
    if alike and [row.place for row in rows] == [*range(len(first.sources))]:
        return DecoderState({**first.memory}, {**first.past}, own_past=False)
    if alike:
        places = np.array([row.place for row in rows])
        return DecoderState(
            {name: _take(value, places) for name, value in first.memory.items()},
            {name: _take(value, places) for name, value in first.past.items()},
            own_past=False,
        )
    parts = [
        {
            name: OrtValue.ortvalue_from_numpy(np.concatenate([
                getattr(row.batch, part)[name].numpy()[row.place : row.place + 1] for row in rows
            ]))
            for name in getattr(first, part)
        }
        for part in ("memory", "past")
    ]  # fmt: skip
    return DecoderState(parts[0], parts[1], own_past=False)


# Axes: R rows, N slots, H heads, D' slot width of a head, M positions of a buffer, V vocabulary.


_LEAST_POSITIONS = 64  # positions of a buffer at first; they double when a row needs more
_NONE = -1  # no source
MOST_PADDING = 24  # tokens of a group; to read the weights once more costs about as much
_UNWRITTEN = 7.0  # a value that a cache hardly contains by chance


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of sources of similar lengths, by index, each of which is encoded together.

    Rows of many callers differ in length: in one run, a third of what is encoded would be padding.
    """
    longest, *others = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    groups, padding = [[longest]], 0
    for place in others:
        padding += lengths[groups[-1][0]] - lengths[place]
        if padding > MOST_PADDING:
            groups.append([])
            padding = 0
        groups[-1].append(place)
    return groups


class SlotModel(Protocol):
    """A model with a graph of single steps."""

    vocab_size: int

    def encode_memory(self, rows: Sequence[Source]) -> Floats:
        """Encode sources; return their keys and values (2L, B, H, S, D)."""

    def slot_graph(self) -> tuple[Graph, CacheShape]:
        """The graph of a step, and the shape of its caches."""


class Slots:
    """See ``interface.RunningRows``.

    The buffers hold the caches of N rows, of which the first R are in use. A step writes into them
    in place. Only ``select`` moves rows. Not safe to share between threads.

    Attributes:
        rows: R.
        capacity: N.
    """

    def __init__(self, model: SlotModel, capacity: int) -> None:
        """Make buffers for a model that ``has_slots``.

        Raises:
            BundleError: onnxruntime cannot run the graph.
        """
        self._model, self._graph, self._cache = model, *model.slot_graph()
        self.rows, self.capacity = 0, capacity
        self._past = _Buffers(self._cache, "decoder", capacity)
        self._cross = _Buffers(self._cache, "encoder", capacity)
        heads, width = self._cache.num_heads, graph_io.slot_width(self._cache.head_dim)
        # Keys and values (2L, N, H, D') of the last position of each source.
        self._last = np.zeros((len(self._cross.names), capacity, heads, width), np.float32)
        # Inputs and outputs of a step; their memory is bound once.
        self._tokens = np.zeros((capacity, 1), np.int64)
        self._best = np.zeros((capacity, 1), np.int64)
        self._positions = np.zeros(capacity, np.int32)
        self._source_lengths = np.zeros(capacity, np.int32)
        self._logits = np.zeros((capacity, model.vocab_size), np.float32)
        self._sources = np.full(capacity, _NONE)  # number of the source in each slot
        self._encoded = 0
        self._bindings: dict[tuple[int, bool], Binding] = {}

    @property
    def positions(self) -> int:
        """Positions of sources and targets that the buffers have room for."""
        return self._past.positions + self._cross.positions

    def enter(self, sources: Sequence[Source]) -> None:
        """Encode sources, none of them empty, and put them after the other rows.

        They are before their first token. There has to be room.
        """
        lengths = [len(source) for source in sources]
        first, last = self.rows, self.rows + len(sources)
        self._reserve(self._cross, max(lengths))
        for group in _alike(lengths):
            self._encode([sources[row] for row in group], [first + row for row in group])
        self._source_lengths[first:last] = lengths
        self._positions[first:last] = 0
        self._sources[first:last] = np.arange(len(sources)) + self._encoded
        self._encoded += len(sources)
        self.rows = last

    def _encode(self, sources: Sequence[Source], places: Sequence[int]) -> None:
        """Encode sources together, and put the result into rows of the buffers.

        What the encoder makes of padding comes along: no step reads behind the end of a source.
        All layers are copied at once, as numpy gives the GIL away during each copy.
        """
        memory, rows, to = self._model.encode_memory(sources), [*range(len(sources))], [*places]
        ends = [len(source) - 1 for source in sources]
        self._cross.fill(to, memory)
        self._last[:, to, :, : memory.shape[-1]] = memory[:, rows, :, ends].swapaxes(0, 1)

    def step(self, tokens: Sequence[int] | Ids, return_logits: bool) -> tuple[Ids, Floats]:
        """Give each row its next token, the first of them the start token.

        Args:
            tokens: (R,).
            return_logits: whether to compute logits.

        Returns:
            best: (R,), the argmax of the logits, over tokens that the model's own rules allow.
            logits: (R, V), or (0, V). Both are overwritten by the next step.
        """
        rows = self.rows
        self._reserve(self._past, int(self._positions[:rows].max()) + 1)
        self._tokens[:rows, 0] = tokens
        key = (rows, return_logits)
        if key not in self._bindings:
            self._bindings[key] = self._bind(rows, return_logits)
        self._graph.run_bound(self._bindings[key])
        self._positions[:rows] += 1
        return self._best[:rows, 0], self._logits[: rows if return_logits else 0]

    def run(self, tokens: Sequence[int] | Ids, run: Run) -> Ran:
        """See ``interface.RunningRows``."""
        assert not any(run.owed)  # the graph gives the best token alone
        begun, given = time.monotonic(), np.asarray(tokens)
        left, kept = np.array(run.left), np.arange(self.rows)
        chosen, counts = np.empty((self.rows, run.steps), np.int64), np.zeros(self.rows, np.int64)
        for step in range(run.steps):
            wanted = run.wake[0] and len(counts) - self.rows >= run.enough
            if step and (wanted or time.monotonic() - begun >= run.seconds):
                break
            starts = self._positions[: self.rows] == 0
            given = self.step(given, return_logits=False)[0].copy()
            ends = left == step + 1
            if run.last is not None:
                given[ends] = run.last
            if run.first is not None:
                given[starts] = run.first
            chosen[kept, step] = given
            counts[kept] = step + 1
            ends |= given == run.end
            if ends.any():
                count = len(ends) - int(ends.sum())
                rows = np.arange(count)
                # The last ones take the places of those that leave.
                rows[ends[:count]] = np.flatnonzero(~ends[count:]) + count
                self.select(rows)
                kept, given, left = kept[rows], given[rows], left[rows]
                if not count:
                    break
        return Ran(chosen, counts, kept)

    def select(self, rows: NDArray[np.intp]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped."""
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        if moved.size:
            taken = rows[moved]
            self._past.move(moved, taken, int(self._positions[taken].max()))
            others = self._sources[moved] != self._sources[taken]
            if others.any():
                length = int(self._source_lengths[taken[others]].max())
                self._cross.move(moved[others], taken[others], length)
                self._last[:, moved[others]] = self._last[:, taken[others]]
            for values in (self._positions, self._source_lengths, self._sources):
                values[moved] = values[taken]
        self.rows = len(rows)
        if not self.rows:
            self._release()

    def try_out(self) -> None:
        """Take two steps, to check that this onnxruntime writes into the buffers.

        Raises:
            BundleError: it does not, or cannot run the graph.
        """
        assert not self.rows
        for array in self._past.arrays:
            array[0, :, :2] = _UNWRITTEN
        self.enter([[0]])
        for _ in range(2):
            self.step([0], return_logits=False)
        written = all((array[0, :, :2] != _UNWRITTEN).any() for array in self._past.arrays)
        self.select(np.zeros(0, np.intp))
        if not written:
            raise BundleError(
                f"onnxruntime {onnxruntime.__version__} does not write caches in place. "
                "Upgrade it: pip install -U onnxruntime"
            )

    def _reserve(self, buffers: "_Buffers", length: int) -> None:
        if buffers.reserve(length, self.rows):
            self._sources[self.rows :] = _NONE
            self._bindings.clear()

    def _release(self) -> None:
        """Release the memory that long rows needed."""
        if self._past.release() | self._cross.release():
            self._sources[:] = _NONE
            self._bindings.clear()

    def _bind(self, rows: int, return_logits: bool) -> Binding:
        inputs: dict[str, NDArray[Any]] = {
            graph_io.INPUT_IDS: self._tokens[:rows],
            graph_io.POSITIONS: self._positions[:rows],
            graph_io.SOURCE_LENGTHS: self._source_lengths[:rows],
            graph_io.RETURN_LOGITS: np.array(return_logits),
            **self._cross.inputs(rows),
            **self._past.inputs(rows),
            **{
                f"last.{name}": array[:rows].reshape(rows, 1, -1)
                for name, array in zip(self._cross.names, self._last, strict=True)
            },
        }
        outputs: dict[str, NDArray[Any]] = {
            graph_io.BEST: self._best[:rows],
            graph_io.LOGITS: self._logits[: rows if return_logits else 0],
            **self._past.outputs(rows),
            **self._cross.outputs(rows),
        }
        return self._graph.bind(inputs, outputs)


class _Buffers:
    """Keys and values of all layers.

    They are one array (2L, N, H, M, D'), so that a row moves in one copy. numpy gives the GIL away
    during each copy, and a thread that decodes waits for it again.

    Attributes:
        names: of the tensors, as in the graph's names of inputs and outputs.
        arrays: (N, H, M, D') each, parts of the one array.
        positions: M.
    """

    def __init__(self, cache: CacheShape, kind: str, capacity: int) -> None:
        width = graph_io.slot_width(cache.head_dim)
        self._shape = (capacity, cache.num_heads, _LEAST_POSITIONS, width)
        pairs = [f"{layer}.{kind}.{part}" for layer in range(cache.num_layers)
                 for part in ("key", "value")]  # fmt: skip
        self.names = pairs
        self._allocate(_LEAST_POSITIONS)

    def inputs(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """By the graph's names."""
        return {f"past_key_values.{name}": array[:rows]
                for name, array in zip(self.names, self.arrays, strict=True)}  # fmt: skip

    def outputs(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """By the graph's names."""
        return {f"present.{name}": array[:rows]
                for name, array in zip(self.names, self.arrays, strict=True)}  # fmt: skip

    def reserve(self, length: int, rows: int) -> bool:
        """Make room for positions and keep the first rows; return whether the buffers moved."""
        before = self.positions
        if length <= before:
            return False
        positions = before
        while positions < length:
            positions *= 2
        old = self.arrays
        self._allocate(positions)
        for array, values in zip(self.arrays, old, strict=True):
            array[:rows, :, :before] = values[:rows]
        return True

    def release(self) -> bool:
        """Shrink to the least size; return whether the buffers were larger."""
        if self.positions == _LEAST_POSITIONS:
            return False
        self._allocate(_LEAST_POSITIONS)
        return True

    def fill(self, to: Sequence[int], values: Floats) -> None:
        """Write the first positions of rows: (2L, B, H, S, D), of which D may be narrower."""
        length, width = values.shape[-2:]
        self._all[:, to, :, :length, :width] = values

    def move(self, to: NDArray[np.intp], rows: NDArray[np.intp], length: int) -> None:
        """Copy the first positions of rows to other rows; all are read before one is written.

        If no row is both, slices are copied one by one, in a third of the time for a row: as where
        the last rows take the places of those that leave.
        """
        places, sources = to.tolist(), rows.tolist()
        if not set(places).isdisjoint(sources):
            self._all[:, to, :, :length] = self._all[:, rows, :, :length]
            return
        for place, source in zip(places, sources, strict=True):
            self._all[:, place, :, :length] = self._all[:, source, :, :length]

    def _allocate(self, positions: int) -> None:
        # Zeros: the padding of a head has to be zero, and untouched pages take no memory.
        self.positions, shape = positions, (*self._shape[:2], positions, self._shape[3])
        self._all = np.zeros((len(self.names), *shape), np.float32)
        self.arrays = [*self._all]
