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

from tfexport_native.arrays import (
    Floats,
    Ints,
    Source,
    Sources,
    Tensor,
    address,
    as_ints,
    c_tensor,
    check,
    flag_address,
    spelt,
)
from tfexport_native.library import (
    LIBRARY,
    CBeamRecord,
    CReading,
    CRun,
    CTensor,
    CTrace,
    CWanted,
    Int,
    NativeError,
    call,
    instruction_sets,
)
from tfexport_native.rules import GivenRules

# Positions that a whole search is first given room for, and by how much more where that is too
# little: then it begins again, which gives the same tokens. Nearly all end before, and a bound that
# a caller sets high to have none costs no memory.
_FIRST_ROOM, _GROWTH = 1024, 4


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


class Candidates(NamedTuple):
    """What the steps of a beam search chose from: (T, B, N) each, best first.

    Attributes:
        tokens: ids.
        parents: which hypothesis of the step each continues.
        log_probs: of the token alone; -inf for a candidate that is none.
        steps: (B,), after which each sentence was done.
    """

    tokens: Ints
    parents: Ints
    log_probs: NDArray[np.float64]
    steps: Ints


class Trace(NamedTuple):
    """A greedy search, and the rows with what they have computed.

    Attributes:
        sequences: (B, T), with their end tokens.
        counts: (B,), tokens of each.
        states: (B, at least T, E), by which each token was chosen; for ``Model.log_probs``.
        attention: (B, at least T, S), the mean over heads of the last layer's cross-attention by
            which each token was chosen. Of this and ``states``, what is behind the last is
            arbitrary.
        batch: the rows, whose positions are those before each token.
    """

    sequences: Ints
    counts: Ints
    states: Floats
    attention: Floats
    batch: "Batch"


class Read(NamedTuple):
    """What a batch finds for each token that it is given.

    Attributes:
        log_probs: of the token that may follow it.
        gaps: how far its logit is below the greatest.
        best: the token of that, of those that are not suppressed.
    """

    log_probs: NDArray[np.float64]
    gaps: Floats
    best: Ints


class Model:
    """A model's weights, packed for this machine. Threads may share it.

    Attributes:
        instruction_set: that its products use.
        vocab_size: V.
        state_size: E, of the decoder.
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
            *[c_tensor(name, tensor) for name, tensor in tensors.items()]
        )
        lines = "\n".join(f"{key}={spelt(value)}" for key, value in config.items())
        name = (instruction_set or instruction_sets()[0]).encode()
        given = (lines.encode(), array, len(tensors), threads, name)
        if packed is None:
            call("tfn_model_new", *given, ctypes.byref(self._handle))
        else:
            call("tfn_model_load", *given, *packed.encoded(), ctypes.byref(self._handle))
        self.vocab_size = int(str(config["target_vocab_size"]))
        self._start_id, self._end_id = (int(str(config[key])) for key in ("start_id", "eos_id"))
        self._pad_id = int(str(config["pad_id"]))
        self.state_size = int(str(config["d_model"]))
        self._memory_width = int(str(config["memory_width"])) or self.state_size
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

    def sources(self, sources: Sequence[Source]) -> Sources:
        """Sources as the engine takes them.

        Raises:
            NativeError: states of another width or type.
        """
        return Sources(sources, self._memory_width)

    def encode(self, sources: Sequence[Source]) -> list[Floats]:
        """The encoder's states of each source, (S, E).

        Args:
            sources: ids, or, if the config has keys "encoder.…", embeddings (S, E).
        """
        given = self.sources(sources)
        states = np.empty((int(given.lengths.sum()), self._memory_width), np.float32)
        call("tfn_encode", self._handle, given.c, states.ctypes.data)
        return np.split(states, np.cumsum(given.lengths)[:-1])

    def generate(
        self,
        sources: Sequence[Source],
        max_length: int,
        return_scores: bool,
        cancelled: Ints | None = None,
        min_length: int = 0,
    ) -> tuple[Ints, Ints, Floats | None]:
        """Decode greedily: sequences (B, T) with their end tokens, lengths (B,), scores (B,).

        Args:
            sources: ids, or states (S, E) of an encoder elsewhere; none of them empty.
            max_length: tokens of a row at most.
            return_scores: give the mean natural-log probability of each row's tokens.
            cancelled: (1,); another thread sets it to end the call.
            min_length: tokens before the end token, at least; a forced end token comes all the
                same.

        Raises:
            CancelledError: ``cancelled`` was set.
            NoTokenError: all tokens but the end token are suppressed.
        """
        room, how = min(max_length, _FIRST_ROOM), (min_length, return_scores, cancelled)
        sequences, counts, scores = self._generate(sources, room, *how)
        while room < max_length and (rows := np.flatnonzero(counts == room)).size:
            room = min(max_length, _GROWTH * room)
            longer = [sources[int(i)] for i in rows]
            again = self._generate(longer, room, *how)
            wider = np.full((len(sources), again[0].shape[1]), self._pad_id, np.int32)
            wider[:, : sequences.shape[1]] = sequences
            wider[rows], counts[rows] = again[0], again[1]
            sequences = wider
            if scores is not None and again[2] is not None:
                scores[rows] = again[2]
        return sequences, counts, scores

    def _generate(
        self,
        sources: Sequence[Source],
        max_length: int,
        min_length: int,
        return_scores: bool,
        cancelled: Ints | None,
    ) -> tuple[Ints, Ints, Floats | None]:
        given, count, steps = self.sources(sources), len(sources), Int()
        sequences = np.empty((count, max_length), np.int32)
        counts = np.empty(count, np.int32)
        scores = np.empty(count, np.float32) if return_scores else None
        call("tfn_generate", self._handle, given.c, max_length, min_length,
             sequences.ctypes.data, counts.ctypes.data, address(scores), ctypes.byref(steps), None,
             flag_address(cancelled))  # fmt: skip
        return sequences[:, : steps.value], counts, scores

    def trace(
        self, sources: Sequence[Source], max_length: int, cancelled: Ints | None = None
    ) -> Trace:
        """Decode greedily, and keep what rows can be gone on from.

        Args:
            sources: as of ``generate``.
            max_length: tokens of a row at most; there is memory for all of them.
            cancelled: as of ``generate``.

        Raises:
            CancelledError: ``cancelled`` was set.
        """
        given, count, steps = self.sources(sources), len(sources), Int()
        sequences = np.empty((count, max_length), np.int32)
        counts, width = np.empty(count, np.int32), int(given.lengths.max())
        # Both are written as far as ``counts``.
        states = np.empty((count, max_length, self.state_size), np.float32)
        attention = np.empty((count, max_length, width), np.float32)
        handle = ctypes.c_void_p()
        left = CTrace(address(states), address(attention), width, ctypes.addressof(handle))
        call("tfn_generate", self._handle, given.c, max_length, 0, sequences.ctypes.data,
             counts.ctypes.data, None, ctypes.byref(steps), ctypes.byref(left),
             flag_address(cancelled))  # fmt: skip
        made = sequences[:, : steps.value]
        return Trace(made, counts, states, attention, Batch(self, handle))

    def log_probs(self, states: Floats, tokens: Sequence[int] | Ints) -> NDArray[np.float64]:
        """The natural-log probability of a token by each state, (N, E) and (N,) to (N,).

        Args:
            states: of ``trace``, ``Batch.trace`` or ``Batch.run``.
            tokens: one for each.
        """
        given, wanted = np.ascontiguousarray(states, np.float32), as_ints(tokens)
        if given.shape != (len(wanted), self.state_size):
            raise NativeError(f"states {given.shape} of {len(wanted)} tokens")
        found = np.empty(len(wanted), np.float64)
        call("tfn_log_probs", self._handle, given.ctypes.data, wanted.ctypes.data, len(wanted),
             found.ctypes.data)  # fmt: skip
        return found

    def beam(
        self,
        sources: Sequence[Source],
        beams: int,
        enough: int,
        max_length: int,
        cancelled: Ints | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> Candidates:
        """The best candidates of every step.

        Args:
            sources: as of ``generate``.
            beams: K, hypotheses that are followed at a time.
            enough: hypotheses without which no sentence is done before ``max_length``.
            max_length: tokens of a row at most.
            cancelled: (1,); another thread sets it to end the call.
            rules: fields of ``tfn_beam_rules`` by name (see ``engine/abi.h``); without ``ends`` and
                ``start`` these are the model's own.

        Raises:
            CancelledError: ``cancelled`` was set.
            NoTokenError: the rules allow some row no token.
        """
        own = {"ends": (self._end_id,), "start": self._start_id}
        by = GivenRules({**own, **(rules or {})}, beams, enough, max_length)
        given, count, room = self.sources(sources), Int(), min(max_length, _FIRST_ROOM)
        while True:
            shape = (room, len(sources), max(beams, 0) * (1 + by.number_of_ends))
            found = Candidates(
                np.empty(shape, np.int32),
                np.empty(shape, np.int32),
                np.empty(shape, np.float64),
                np.zeros(len(sources), np.int32),
            )
            record = CBeamRecord(room, *(each.ctypes.data for each in found))
            call("tfn_beam", self._handle, given.c, by.pointer, record, ctypes.byref(count),
                 flag_address(cancelled))  # fmt: skip
            made = count.value
            if made < room or room == max_length:
                tokens, parents, log_probs, steps = found
                return Candidates(tokens[:made], parents[:made], log_probs[:made], steps)
            room = min(max_length, _GROWTH * room)

    def log_sums(self, values: Floats) -> NDArray[np.float64]:
        """The natural logs of the sums of exponentials of rows, (R, V) to (R,)."""
        given = np.ascontiguousarray(values, np.float32)
        rows, columns = given.shape
        sums = np.empty(rows, np.float64)
        call("tfn_log_sums", self._handle, given.ctypes.data, rows, columns, sums.ctypes.data)
        return sums

    def new_batch(self) -> "Batch":
        """Rows that are decoded step by step."""
        return Batch(self)


class Run(NamedTuple):
    """How far the rows of a batch go without their caller; see ``engine/abi.h``.

    Attributes:
        end: the token that ends a row.
        first: forced, -1 for none.
        last: forced as the last token that a row may get, -1 for none.
        steps: at most.
        enough: rows that have ended without which ``wake`` is ignored.
        seconds: after which no step begins.
        wake: (1,); another thread sets it to have the caller back.
        owed: (R,), tokens that each row gets before it may choose ``end``; empty for none.
    """

    end: int
    first: int = -1
    last: int = -1
    steps: int = 1
    enough: int = 0
    seconds: float = 1.0
    wake: Ints | None = None
    owed: Sequence[int] = ()


class Batch:
    """Decoder rows, each with a source and a position of its own. Not for several threads at once.

    Failures of ``enter`` and ``select`` leave it as it was.
    """

    def __init__(self, model: Model, handle: ctypes.c_void_p | None = None) -> None:
        """Make an empty one, or take one that the engine has made."""
        self._model = model
        self._handle = handle or ctypes.c_void_p()
        if handle is None:
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

    def enter(self, sources: Sequence[Source]) -> None:
        """Put sources behind the other rows, ids or states as of ``Model.generate``."""
        given = self._model.sources(sources)  # in a variable: its memory has to outlive the call
        call("tfn_batch_enter", self._handle, given.c)

    def select(self, rows: Sequence[int] | NDArray[Any]) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped."""
        kept = as_ints(rows)
        call("tfn_batch_select", self._handle, kept.ctypes.data, len(kept))

    def branch(
        self, rows: Sequence[int] | NDArray[Any], lengths: Sequence[int] | NDArray[Any]
    ) -> "Batch":
        """Copies of rows, each with its first positions alone; a row may be repeated."""
        taken, kept, handle = as_ints(rows), as_ints(lengths), ctypes.c_void_p()
        if taken.shape != kept.shape:
            raise NativeError(f"{len(kept)} lengths of {len(taken)} rows")
        call("tfn_batch_branch", self._handle, taken.ctypes.data, kept.ctypes.data, len(taken),
             ctypes.byref(handle))  # fmt: skip
        return Batch(self._model, handle)

    def read(
        self,
        tokens: Sequence[int] | NDArray[Any],
        counts: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
    ) -> Read:
        """Give each row its next tokens, and compare what may follow each with a target.

        Args:
            tokens: row after row.
            counts: (R,), how many each row gets, at least one.
            targets: for each token one that may follow it.
        """
        given, wanted = as_ints(tokens), as_ints(targets)
        if given.shape != wanted.shape:
            raise NativeError(f"{len(given)} tokens and {len(wanted)} targets")
        found = Read(np.empty(len(given), np.float64), np.empty(len(given), np.float32),
                     np.empty(len(given), np.int32))  # fmt: skip
        self._read(
            given,
            counts,
            CReading(address(wanted), *[each.ctypes.data for each in found], None, None, 0),
        )
        return found

    def trace(
        self, tokens: Sequence[int] | NDArray[Any], counts: Sequence[int] | NDArray[Any]
    ) -> tuple[Floats, Floats]:
        """Give each row its next tokens, and keep what ``Model.trace`` keeps.

        Args:
            tokens: row after row.
            counts: (R,), how many each row gets, at least one.

        Returns:
            The states (N, E) and the attention (N, S of the longest source) after each token.
        """
        given, width = as_ints(tokens), self.longest_source
        states = np.empty((len(given), self._model.state_size), np.float32)
        attention = np.empty((len(given), width), np.float32)
        how = CReading(None, None, None, None, address(states), address(attention), width)
        self._read(given, counts, how)
        return states, attention

    def _read(self, given: Ints, counts: Sequence[int] | NDArray[Any], how: CReading) -> None:
        each = as_ints(counts)
        if len(each) != self.rows or each.sum() != len(given):
            raise NativeError(
                f"{len(given)} tokens and counts of {int(each.sum())} in {len(each)} rows; the "
                f"batch has {self.rows} rows"
            )
        call("tfn_batch_read", self._handle, given.ctypes.data, each.ctypes.data,
             ctypes.byref(how))  # fmt: skip

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
        given = as_ints(tokens)
        chosen = None if columns is None else as_ints(columns)
        rows, each = given.shape
        last = self._model.vocab_size if chosen is None else len(chosen)
        check("logits", logits, np.float32, (rows, each, last))
        check("best", best, np.int32, (rows,))
        width = 0
        if attention is not None:
            width = attention.shape[-1]
            shape = (rows, *self._model.attention_shape, each, width)
            check("attention", attention, np.float32, shape)
        if rows != self.rows:
            raise NativeError(f"tokens of {rows} rows; the batch has {self.rows}")
        wanted = CWanted(address(logits), address(chosen), 0 if chosen is None else len(chosen),
                         address(best), address(attention), width)  # fmt: skip
        call("tfn_batch_step", self._handle, given.ctypes.data, each, wanted)

    def run(
        self,
        tokens: Sequence[int] | NDArray[Any],
        left: Sequence[int],
        run: Run,
        states: Floats | None = None,
    ) -> tuple[Ints, Ints]:
        """Make greedy steps; rows that have ended leave, the others keep their order.

        Args:
            tokens: (R,), the next of each row.
            left: (R,), how many each may still get.
            run: how far they go.
            states: (R, ``run.steps``, E), to be filled with those by which tokens were chosen.

        Returns:
            The tokens that the rows got, (R, at most ``run.steps``), and their numbers, (R,).
        """
        given, most, rows = as_ints(tokens), as_ints(left), self.rows
        owed = as_ints(run.owed or [0] * rows)
        if not len(given) == len(most) == len(owed) == rows:
            raise NativeError(f"tokens of {len(given)} rows; the batch has {rows}")
        # What the engine does not write is never read.
        chosen, counts = np.empty((rows, run.steps), np.int32), np.zeros(rows, np.int32)
        check("states", states, np.float32, (rows, run.steps, self._model.state_size))
        how = CRun(address(most), address(owed), run.end, run.first, run.last, run.steps,
                   run.enough, run.seconds, flag_address(run.wake), address(states))  # fmt: skip
        call("tfn_batch_run", self._handle, given.ctypes.data, ctypes.byref(how),
             chosen.ctypes.data, counts.ctypes.data)  # fmt: skip
        return chosen, counts
