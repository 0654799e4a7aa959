"""A bundle's model in the native engine, ``tfexport-native``; onnxruntime is not used.

Axes: R rows of the decoder, B sources, S source, T target, V vocabulary, L layers, H heads.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tfexport.bundle import WEIGHTS, FileStamps, Manifest
from tfexport.errors import BundleError
from tfexport.runtime.model.abandoned import AbandonedError, Going, watched
from tfexport.runtime.model.alignment import attend_heads, no_logits
from tfexport.runtime.model.interface import (
    BeamRecord,
    BeamRules,
    Floats,
    Generated,
    Ids,
    ModelShape,
    NoTokenError,
    Places,
    Ran,
    Read,
    Run,
    Source,
    Traced,
)
from tfexport.runtime.model.native_engine import open_native
from tfexport.weight_table import WEIGHT_TABLE

if TYPE_CHECKING:
    import tfexport_native

_Ids = Sequence[Sequence[int]]  # rows of a Transformer are ids
_Source: TypeAlias = Sequence[int] | Floats  # ids, or states of an encoder elsewhere
_MOST_TRACED = 256  # tokens of a row
_SECONDS = 0.1  # after which a search looks whether it is to go on
Call = TypeVar("Call", bound=Callable[..., Any])


def reporting(call: Call) -> Call:
    """Raise the engine's errors in a method as BundleError, with the ``folder`` of the bundle."""

    @functools.wraps(call)
    def report(model: Any, *values: Any, **keywords: Any) -> Any:
        try:
            return call(model, *values, **keywords)
        except Exception as error:
            import tfexport_native

            if not isinstance(error, tfexport_native.NativeError):
                raise
            raise BundleError(f"{model.folder}: the native engine refuses: {error}") from None

    return cast("Call", report)


@contextlib.contextmanager
def _ended(going: Going | None) -> Iterator[NDArray[np.int32] | None]:
    """Yield the flag that ends a call once ``going`` is false; None if it is None."""
    import tfexport_native

    flag = np.zeros(1, np.int32)
    try:
        with watched(going, lambda: flag.__setitem__(0, 1)):
            yield None if going is None else flag
    except tfexport_native.CancelledError:
        raise AbandonedError from None


class NativeModel:
    """See ``interface.Model``.

    Attributes:
        folder: the folder of the bundle.
    """

    has_generate = has_min_length = has_beam = has_shortlist = has_slots = True
    has_attention = has_alignment = searches_encoded = True

    @reporting
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Pack the weights.

        Args:
            folder: the folder of the bundle.
            manifest: the manifest of a bundle that the engine can run.
            threads: threads of every call.

        Raises:
            BundleError: the engine cannot read it.
        """
        self.vocab_size = manifest.limits.target_vocab_size
        self.folder, self._manifest, self._threads = folder, manifest, threads
        shape = ModelShape.of(manifest)
        self._layers, self._heads = shape.num_decoder_layers, shape.num_heads
        self._stamps = FileStamps(folder / WEIGHTS, folder / WEIGHT_TABLE)
        self._opening = threading.Lock()
        self._opened: tfexport_native.Model | None = None
        self.engine = f"native {self._model.instruction_set}"

    @property
    def _model(self) -> tfexport_native.Model:
        with self._opening:
            if self._opened is None:
                self._stamps.check()
                self._opened = open_native(self.folder, self._manifest, self._threads)
            return self._opened

    def close(self) -> None:
        """See ``interface.Model``."""
        with self._opening:
            self._opened = None

    @property
    def log_normalizer(self) -> Callable[[Floats], NDArray[np.float64]]:
        """See ``interface.Model``."""
        return self._model.log_sums

    @property
    def shortest_source(self) -> _Source:
        """A source to try the engine with."""
        return [0]

    def sources(self, rows: Sequence[Source]) -> Sequence[_Source]:
        """Rows as the engine takes them."""
        return cast("_Ids", rows)

    @reporting
    def generate(
        self,
        rows: Sequence[Source],
        max_length: int,
        return_scores: bool = True,
        going: Going | None = None,
        min_length: int = 0,
    ) -> Generated:
        """See ``interface.Model``."""
        with _ended(going) as flag:
            found = self._model.generate(
                self.sources(rows), max_length, return_scores, flag, min_length
            )
        sequences, _, scores = found
        if scores is None:
            scores = np.full(len(rows), np.nan, np.float32)
        return Generated(sequences.astype(np.int64), scores)

    @reporting
    def beam(
        self,
        rows: Sequence[Source],
        beam_size: int,
        num_finished: int,
        max_length: int,
        rules: BeamRules | None = None,
        going: Going | None = None,
    ) -> BeamRecord:
        """See ``interface.Model``."""
        import tfexport_native

        sizes = (beam_size, num_finished, max_length)
        given = None if rules is None else rules._asdict()
        try:
            with _ended(going) as flag:
                found = self._model.beam(self.sources(rows), *sizes, cancelled=flag, rules=given)
        except tfexport_native.NoTokenError as error:
            raise NoTokenError(str(error)) from None
        tokens, parents = (each.astype(np.int64) for each in (found.tokens, found.parents))
        return BeamRecord(tokens, parents, found.log_probs, found.steps.astype(np.int64))

    @reporting
    def trace(
        self, rows: Sequence[Source], max_length: int, going: Going | None = None
    ) -> tuple[Ids, Traced] | None:
        """See ``interface.Model``."""
        most, given = min(max_length, _MOST_TRACED), self.sources(rows)
        without: dict[int, float] = {}
        with _ended(going) as flag:
            found = self._model.trace(given, most, flag)
            sequences, steps = found.sequences, found.sequences.shape[1]
            longer = np.flatnonzero(found.counts == most) if most < max_length else ()
            if len(longer):
                again, _, scores = self._model.generate(
                    [given[row] for row in map(int, longer)], max_length, True, flag
                )
                assert scores is not None
                wider = np.full((len(rows), again.shape[1]), self._manifest.special_ids.pad)
                wider[:, :steps] = sequences
                wider[longer] = again
                sequences = wider
                without = dict(zip(map(int, longer), scores.tolist(), strict=True))
        left = NativeTracedRows(self.folder, self._model, found.batch)
        log_probs = partial(self._log_probs, found.states, found.sequences.tolist())
        made = sequences.astype(np.int64)
        return made, Traced(log_probs, found.attention[:, :steps], left, without)

    @reporting
    def _log_probs(
        self,
        states: Sequence[Floats] | Floats,
        tokens: Sequence[Sequence[int]],
        rows: Sequence[int],
        counts: Sequence[int],
    ) -> list[list[float]]:
        """See ``interface.Traced``."""
        pairs = list(zip(rows, counts, strict=True))
        return _log_probs(
            self._model,
            [states[row][:count] for row, count in pairs],
            [tokens[row][:count] for row, count in pairs],
        )

    @reporting
    def retrace(
        self,
        rows: Sequence[Source],
        tokens: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
    ) -> Traced | None:
        """See ``interface.Model``."""
        batch = self._entered(rows)
        counts = [len(row) for row in tokens]
        states, attended = batch.trace([token for row in tokens for token in row], counts)
        inside = np.arange(max(counts)) < np.array(counts)[:, None]
        attention = np.zeros((*inside.shape, attended.shape[1]), np.float32)
        attention[inside] = attended
        of_rows = np.split(states, np.cumsum(counts)[:-1])
        left = NativeTracedRows(self.folder, self._model, batch)
        return Traced(partial(self._log_probs, of_rows, targets), attention, left)

    @reporting
    def encoded(self, rows: Sequence[Source]) -> Sequence[Floats]:
        """See ``interface.Model``: the states (S, E) of each row."""
        return self._model.encode(self.sources(rows))

    @reporting
    def encode(self, rows: Sequence[Source]) -> NativeRows:
        """See ``interface.Model``."""
        return NativeRows(self.folder, self._entered(rows), len(rows))

    def _entered(self, rows: Sequence[Source]) -> tfexport_native.Batch:
        """A batch of sources, or of what ``encoded`` has made of them."""
        batch = self._model.new_batch()
        batch.enter(self.sources(rows))
        return batch

    def step(self, input_ids: Ids, state: NativeRows, candidates: Ids | None = None) -> Floats:
        """See ``interface.Model``."""
        return self._step(input_ids, state, candidates, None)

    def attend(
        self, input_ids: Ids, state: NativeRows, candidates: Ids | None = None
    ) -> tuple[Floats, Floats]:
        """See ``interface.Model``."""
        rows, length = input_ids.shape
        shape = (rows, self._layers, self._heads, length, state.width)
        weights = np.zeros(shape, np.float32)
        return self._step(input_ids, state, candidates, weights), weights

    def alignment(self, row: Source, ids: Sequence[int], heads: Sequence[Sequence[int]]) -> Floats:
        """See ``interface.Model``."""
        return attend_heads(self, row, ids, heads)

    @reporting
    def _step(
        self, input_ids: Ids, state: NativeRows, candidates: Ids | None, weights: Floats | None
    ) -> Floats:
        if candidates is not None and not len(candidates):
            state.batch.step(input_ids, attention=weights)
            state.position += input_ids.shape[1]
            return no_logits((*input_ids.shape, self.vocab_size))
        width = self.vocab_size if candidates is None else len(candidates)
        found = np.empty((*input_ids.shape, width), np.float32)
        state.batch.step(input_ids, logits=found, columns=candidates, attention=weights)
        state.position += input_ids.shape[1]
        if candidates is None:
            return found
        logits = np.full((*input_ids.shape, self.vocab_size), -np.inf, np.float32)
        logits[:, :, candidates] = found
        return logits

    @reporting
    def hidden_states(self, rows: Sequence[Sequence[int]]) -> Floats:
        """See ``interface.Model``."""
        states = self._model.encode(rows)
        longest = max(len(row) for row in rows)
        padded = np.zeros((len(rows), longest, states[0].shape[-1]), np.float32)
        for row, found in enumerate(states):
            padded[row, : len(found)] = found
        return padded

    @reporting
    def running_rows(self, capacity: int) -> NativeRunningRows:
        """See ``interface.Model``."""
        return NativeRunningRows(self, self._model.new_batch(), capacity)


class NativeRows:
    """See ``interface.Rows``.

    Attributes:
        folder: the folder of the bundle.
        batch: the batch of the engine.
        width: S of the longest source at the start.
    """

    def __init__(self, folder: Path, batch: tfexport_native.Batch, count: int) -> None:
        self.folder, self.batch = folder, batch
        self.position, self.width = 0, batch.longest_source
        self.sources: Places = np.arange(count)

    @reporting
    def select(self, rows: Places) -> None:
        """See ``interface.Rows``."""
        self.batch.select(rows)
        self.sources = self.sources[rows]


class NativeTracedRows:
    """See ``interface.TracedRows``.

    Attributes:
        folder: the folder of the bundle.
    """

    def __init__(
        self, folder: Path, model: tfexport_native.Model, batch: tfexport_native.Batch
    ) -> None:
        self.folder, self._model, self._batch = folder, model, batch

    @reporting
    def branch(self, rows: Sequence[int], lengths: Sequence[int]) -> NativeTracedRows:
        """See ``interface.TracedRows``."""
        return NativeTracedRows(self.folder, self._model, self._batch.branch(rows, lengths))

    @reporting
    def read(self, tokens: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Read:
        """See ``interface.TracedRows``."""
        counts = [len(row) for row in tokens]
        given = [token for row in tokens for token in row]
        found = self._batch.read(given, counts, [token for row in targets for token in row])
        return Read(*found)

    @reporting
    def run(
        self, tokens: Sequence[int], left: Sequence[int], end: int, last: int | None, going: Going
    ) -> list[tuple[list[int], list[float]]]:
        """See ``interface.TracedRows``."""
        import tfexport_native

        made: list[tuple[list[int], list[float]]] = [([], []) for _ in tokens]
        rows, next_tokens, room = list(range(len(tokens))), list(tokens), list(left)
        while rows:
            if not going():
                raise AbandonedError
            steps = min(max(room), _MOST_TRACED)  # which bounds the memory of states
            how = tfexport_native.Run(
                end, -1, -1 if last is None else last, steps, seconds=_SECONDS
            )
            states = np.empty((len(rows), steps, self._model.state_size), np.float32)
            chosen, counts = self._batch.run(next_tokens, room, how, states)
            got = [row[:count].tolist() for row, count in zip(chosen, counts, strict=True)]
            log_probs = _log_probs(
                self._model,
                [row[:count] for row, count in zip(states, counts, strict=True)],
                got,
            )
            kept = list[int]()
            for place, row in enumerate(rows):
                made[row][0].extend(got[place])
                made[row][1].extend(log_probs[place])
                room[place] -= len(got[place])
                if got[place][-1] != end and room[place]:
                    kept.append(place)
            rows, room = [rows[place] for place in kept], [room[place] for place in kept]
            next_tokens = [made[row][0][-1] for row in rows]
        return made


def _log_probs(
    model: tfexport_native.Model, states: Sequence[Floats], tokens: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Log-probabilities of the tokens of rows, by the states (T, E) that chose them."""
    if not states:
        return []
    flat = [token for row in tokens for token in row]
    found, at = model.log_probs(np.concatenate(states), flat).tolist(), 0
    rows = list[list[float]]()
    for row in tokens:
        rows.append(found[at : at + len(row)])
        at += len(row)
    return rows


class NativeRunningRows:
    """See ``interface.RunningRows``; free rows take no memory.

    Attributes:
        folder: the folder of the bundle.
    """

    def __init__(self, model: NativeModel, batch: tfexport_native.Batch, capacity: int) -> None:
        self.folder, self._model, self._batch = model.folder, model, batch
        self.capacity = capacity
        self._best = np.zeros(capacity, np.int32)
        self._logits = np.zeros((capacity, model.vocab_size), np.float32)

    @property
    def rows(self) -> int:
        """R."""
        return self._batch.rows

    @reporting
    def enter(self, sources: Sequence[Source]) -> None:
        """See ``interface.RunningRows``."""
        self._batch.enter(self._model.sources(sources))

    @reporting
    def step(self, tokens: Sequence[int] | Ids, return_logits: bool) -> tuple[Ids, Floats]:
        """See ``interface.RunningRows``."""
        rows = len(tokens)
        logits = self._logits[: rows if return_logits else 0]
        best = self._best[:rows]
        self._batch.step(
            np.asarray(tokens)[:, None],
            best=best,
            logits=logits[:, None] if return_logits else None,
        )
        return best.astype(np.int64), logits

    @reporting
    def run(self, tokens: Sequence[int] | Ids, run: Run) -> Ran:
        """See ``interface.RunningRows``."""
        import tfexport_native

        first, last = (-1 if token is None else token for token in (run.first, run.last))
        how = tfexport_native.Run(
            run.end, first, last, run.steps, run.enough, run.seconds, run.wake, run.owed
        )
        chosen, counts = self._batch.run(tokens, run.left, how)
        # Value by value: to pick them at once, numpy would give the GIL away and wait for it.
        kept = [
            row
            for row, (count, left) in enumerate(zip(counts.tolist(), run.left, strict=True))
            if count < left and chosen[row, count - 1] != run.end
        ]
        return Ran(chosen, counts, np.array(kept, np.intp))

    @reporting
    def select(self, rows: Places) -> None:
        """See ``interface.RunningRows``."""
        self._batch.select(rows)

    def try_out(self) -> None:
        """See ``interface.RunningRows``."""
        self._batch.enter([self._model.shortest_source])
        self.step([0], return_logits=False)
        self.select(np.zeros(0, np.intp))
