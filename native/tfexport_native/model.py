"""Models and batches of the engine, on numpy arrays.

Axes: B sources, R rows, T tokens, V vocabulary, L layers, H heads, S source, E model width.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport_native.library import (
    LIBRARY,
    CSources,
    CTensor,
    CWanted,
    Int,
    NativeError,
    call,
    instruction_sets,
)

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class Tensor(NamedTuple):
    """A weight in the orientation of its parameter; vectors are one row.

    Attributes:
        values: float32, or int8 with scales; at most two axes, any strides.
        scales: float32, one for each row; None for float32 values.
        mapped: ``values`` are a map of a file that nobody writes to, of which the engine gives
            back what it has packed, so that no weight is in memory twice.
    """

    values: NDArray[Any]
    scales: Floats | None = None
    mapped: bool = False


class PackedFile(NamedTuple):
    """A file of packed weights.

    Attributes:
        path: of the file.
        weights: digest of the weights that it was packed from, fewer than 256 characters.
    """

    path: Path
    weights: str

    def encoded(self) -> tuple[bytes, bytes]:
        """As the engine takes them."""
        return os.fsencode(self.path), self.weights.encode()


class Model:
    """A model's weights, packed for this machine. Threads may share it.

    Attributes:
        instruction_set: that its products use.
        vocab_size: V.
        attention_shape: L and H.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        tensors: Mapping[str, Tensor],
        threads: int = 1,
        instruction_set: str | None = None,
        packed: PackedFile | None = None,
    ) -> None:
        """Pack weights, or map those that ``save`` has packed.

        Args:
            config: keys of ``engine/config.h``.
            tensors: by the names of ``Transformer.state_dict()``.
            threads: of every call.
            instruction_set: None for the fastest.
            packed: weights that are packed already; ``tensors`` are needed all the same.

        Raises:
            PackedFileError: ``packed`` cannot be used; without it the model can be made.
            NativeError: naming every key, value and tensor that is missing or wrong.
        """
        self._handle = ctypes.c_void_p()
        self._kept = list(tensors.values())  # the engine reads embeddings from their memory
        array = (CTensor * len(tensors))(
            *[_c_tensor(name, tensor) for name, tensor in tensors.items()]
        )
        lines = "\n".join(f"{key}={_spelt(value)}" for key, value in config.items())
        name = (instruction_set or instruction_sets()[0]).encode()
        given = (lines.encode(), array, len(tensors), threads, name)
        if packed is None:
            call("tfn_model_new", *given, ctypes.byref(self._handle))
        else:
            call("tfn_model_load", *given, *packed.encoded(), ctypes.byref(self._handle))
        self.vocab_size = int(str(config["target_vocab_size"]))
        self._width = int(str(config["d_model"]))
        heads = ("num_decoder_layers", "decoder_num_heads")
        self.attention_shape = tuple(int(str(config[key])) for key in heads)
        self.instruction_set: str = LIBRARY.tfn_model_instruction_set(self._handle).decode()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            LIBRARY.tfn_model_free(self._handle)
            self._handle = ctypes.c_void_p()

    def save(self, file: PackedFile) -> None:
        """Write packed weights, to be mapped by any number of processes.

        Raises:
            PackedFileError: it cannot be written; nothing is left.
        """
        call("tfn_model_save", self._handle, *file.encoded())

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Floats]:
        """The encoder's states of each source, (S, E)."""
        given = _Sources(sources)
        states = np.empty((len(given.ids), self._width), np.float32)
        call("tfn_encode", self._handle, given.c, states.ctypes.data)
        return np.split(states, np.cumsum(given.lengths)[:-1])

    def generate(
        self,
        sources: Sequence[Sequence[int]],
        max_length: int,
        return_scores: bool,
        cancelled: Ints | None = None,
    ) -> tuple[Ints, Ints, Floats | None]:
        """Decode greedily: sequences (B, T) with their end tokens, lengths (B,), scores (B,).

        Args:
            sources: none of them empty.
            max_length: tokens of a row at most.
            return_scores: give the mean natural-log probability of each row's tokens.
            cancelled: (1,); another thread sets it to end the call.

        Raises:
            CancelledError: ``cancelled`` was set.
        """
        given, count, steps = _Sources(sources), len(sources), Int()
        sequences = np.empty((count, max_length), np.int32)
        counts = np.empty(count, np.int32)
        scores = np.empty(count, np.float32) if return_scores else None
        call("tfn_generate", self._handle, given.c, max_length, sequences.ctypes.data,
             counts.ctypes.data, _address(scores), ctypes.byref(steps),
             _flag(cancelled))  # fmt: skip
        return sequences[:, : steps.value], counts, scores

    def beam(
        self,
        sources: Sequence[Sequence[int]],
        beams: int,
        enough: int,
        max_length: int,
        cancelled: Ints | None = None,
    ) -> tuple[Ints, Ints, Floats]:
        """The best 2 K candidates of every step: tokens, parents, log-probabilities (T, B, 2 K).

        Args:
            sources: none of them empty.
            beams: K, hypotheses that are followed at a time.
            enough: ended hypotheses that end a sentence's search.
            max_length: tokens of a row at most.
            cancelled: (1,); another thread sets it to end the call.

        Raises:
            CancelledError: ``cancelled`` was set.
        """
        given, steps = _Sources(sources), Int()
        shape = (max_length, len(sources), 2 * beams)
        tokens, parents = np.empty(shape, np.int32), np.empty(shape, np.int32)
        log_probs = np.empty(shape, np.float32)
        call("tfn_beam", self._handle, given.c, beams, enough, max_length, tokens.ctypes.data,
             parents.ctypes.data, log_probs.ctypes.data, ctypes.byref(steps),
             _flag(cancelled))  # fmt: skip
        made = steps.value
        return tokens[:made], parents[:made], log_probs[:made]

    def new_batch(self) -> "Batch":
        """Rows that are decoded step by step."""
        return Batch(self)


class Batch:
    """Decoder rows, each with a source and a position of its own. Not for several threads at once.

    Failures of ``enter`` and ``select`` leave it as it was.
    """

    def __init__(self, model: Model) -> None:
        """Make an empty one."""
        self._model = model
        self._handle = ctypes.c_void_p()
        call("tfn_batch_new", model._handle, ctypes.byref(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            LIBRARY.tfn_batch_free(self._handle)
            self._handle = ctypes.c_void_p()

    @property
    def rows(self) -> int:
        """R."""
        count: int = LIBRARY.tfn_batch_rows(self._handle)
        return count

    @property
    def longest_source(self) -> int:
        """S of the longest."""
        longest: int = LIBRARY.tfn_batch_longest_source(self._handle)
        return longest

    def enter(self, sources: Sequence[Sequence[int]]) -> None:
        """Encode sources, none of them empty, and put them behind the other rows."""
        given = _Sources(sources)  # in a variable: its memory has to outlive the call
        call("tfn_batch_enter", self._handle, given.c)

    def select(self, rows: Sequence[int] | NDArray[Any]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped."""
        kept = _as_ints(rows)
        call("tfn_batch_select", self._handle, kept.ctypes.data, len(kept))

    def step(
        self,
        tokens: NDArray[Any],
        *,
        logits: Floats | None = None,
        columns: NDArray[Any] | None = None,
        best: Ints | None = None,
        attention: Floats | None = None,
    ) -> None:
        """Give each row its next T tokens, (R, T), and fill the arrays that are given.

        Args:
            tokens: (R, T).
            logits: (R, T, V), or (R, T, C) of C columns.
            columns: (C,) ids.
            best: (R,): of the last tokens, the argmax that the rules of the model allow.
            attention: cross-attention weights (R, L, H, T, S), zeros; S at least the longest
                source.
        """
        given = _as_ints(tokens)
        chosen = None if columns is None else _as_ints(columns)
        rows, each = given.shape
        last = self._model.vocab_size if chosen is None else len(chosen)
        _check("logits", logits, np.float32, (rows, each, last))
        _check("best", best, np.int32, (rows,))
        width = 0
        if attention is not None:
            width = attention.shape[-1]
            shape = (rows, *self._model.attention_shape, each, width)
            _check("attention", attention, np.float32, shape)
        if rows != self.rows:
            raise NativeError(f"tokens of {rows} rows; the batch has {self.rows}")
        wanted = CWanted(_address(logits), _address(chosen), 0 if chosen is None else len(chosen),
                         _address(best), _address(attention), width)  # fmt: skip
        call("tfn_batch_step", self._handle, given.ctypes.data, each, wanted)


class _Sources:
    """Sources as the engine takes them; keeps their memory."""

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self.lengths = np.array([len(source) for source in sources], np.int32)
        self.ids = _as_ints([id_ for source in sources for id_ in source])
        self.c = CSources(self.ids.ctypes.data, self.lengths.ctypes.data, len(sources))


def _as_ints(values: Sequence[int] | NDArray[Any]) -> Ints:
    """As the engine takes them; what would wrap to other int32 values becomes the largest."""
    found = np.asarray(values)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise NativeError(f"{found.dtype} values where whole numbers are expected")
    bounds = np.iinfo(np.int32)
    return np.ascontiguousarray(np.clip(found, -1, bounds.max), np.int32)


def _c_tensor(name: str, tensor: Tensor) -> CTensor:
    values, scales, mapped = tensor
    expected = np.int8 if scales is not None else np.float32
    if values.dtype != expected or values.ndim not in (1, 2):
        raise NativeError(
            f"{name!r} is {values.dtype} {values.shape}; expected {expected.__name__}"
        )
    two = values.reshape(1, -1) if values.ndim == 1 else values
    if scales is not None and (
        scales.dtype != np.float32 or scales.shape != two.shape[:1] or not scales.flags.c_contiguous
    ):
        raise NativeError(f"{name!r} has scales {scales.shape}; expected ({two.shape[0]},)")
    if any(step % values.itemsize for step in two.strides):
        raise NativeError(f"{name!r} has strides {two.strides} that are no whole values")
    strides = [step // values.itemsize for step in two.strides]
    return CTensor(
        name.encode(), two.ctypes.data, _address(scales), *two.shape, *strides, int(mapped)
    )


def _check(name: str, array: NDArray[Any] | None, dtype: type, shape: tuple[int, ...]) -> None:
    if array is None:
        return
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise NativeError(f"{name} is {array.dtype} {array.shape}; expected {dtype} {shape}")


def _flag(cancelled: Ints | None) -> int | None:
    _check("cancelled", cancelled, np.int32, (1,))
    return _address(cancelled)


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _spelt(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)
