"""The interface of engines, which search and scheduler use.

Axes: R rows of the decoder, B sources, S source, T target, V vocabulary, L layers, H heads.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfexport.bundle import Manifest
from tfexport.runtime.model.abandoned import Going

Ids = NDArray[np.int64]
Places = NDArray[np.intp]
Floats = NDArray[np.float32]
# The source of one row: ids for the encoder, or the inputs of a custom module by name.
Source = Sequence[int] | Mapping[str, NDArray[Any]]


class Generated(NamedTuple):
    """Outputs of a greedy search in one call.

    Attributes:
        sequences: (B, T), the end token included, padded after it.
        scores: (B,), mean natural-log probability, the end token included; NaN if not requested.
        attention: cross-attention weights (B, L, H, T, S) of L layers; None if the graph was
            exported without.
    """

    sequences: Ids
    scores: Floats
    attention: Floats | None = None


class BeamRecord(NamedTuple):
    """Top-k candidates of every step of a beam search: (T, B, N) each, best first.

    Attributes:
        tokens: ids.
        parents: index of the hypothesis that each candidate continues.
        log_probs: log-probability of the token, float32 or float64; -inf for a candidate that is
            none.
        steps: (B,), after which the search of each sentence was done.
    """

    tokens: Ids
    parents: Ids
    log_probs: NDArray[Any]
    steps: Ids


class BeamRules(NamedTuple):
    """How a beam search ranks, what it bans, and when a sentence is done; by default nothing more.

    Attributes:
        ends: tokens that end a row.
        start: the start token.
        stop: when a sentence is done that has enough hypotheses: "early" for at once, or once none
            that is followed can be better, by its "present" length, the "next" or the "longest".
        length_penalty: a score is the sum of log-probabilities divided by length to this power.
        on_log_probs: penalties and bans act on log-probabilities, and count the start token; a
            hypothesis without an allowed token ranks below all others. Else they act on logits.
        renormalize: make probabilities again of what these leave.
        first_token: forced; it is not in the record.
        last_token: forced at the greatest length.
        min_length: tokens before an end token, at least.
        ngram: no n-gram of this size occurs twice; 0 for any.
        source_ngram: no n-gram of this size is one of the source's, which has to be ids; 0 for any.
        repetition_penalty: divides positive values of earlier tokens, and multiplies negative ones.
        suppressed: tokens that are never chosen.
        suppressed_first: tokens that are never chosen first.
        sequences: sequences that are never completed.
    """

    ends: tuple[int, ...]
    start: int
    stop: str = "early"
    length_penalty: float = 1.0
    on_log_probs: bool = False
    renormalize: bool = False
    first_token: int | None = None
    last_token: int | None = None
    min_length: int = 0
    ngram: int = 0
    source_ngram: int = 0
    repetition_penalty: float = 1.0
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()


class NoTokenError(Exception):
    """A row has no allowed token, for which a search in one call has no rule."""


class Rows(Protocol):
    """R decoder rows, all at the same position.

    Only ``select`` changes rows. It moves all data of a row together, so that no row attends to
    the source of another row.

    Attributes:
        sources: (R,), index of the encoded source that each row attends to; other data of a
            source, such as its candidates, is looked up by it.
        position: number of tokens so far.
    """

    sources: Places
    position: int

    def select(self, rows: Places) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped."""


class Run(NamedTuple):
    """How far greedy rows go on without their caller.

    A row ends with the end token, or with the last token that it may get. No step begins after
    ``seconds``, or once ``enough`` rows have ended and ``wake`` is set.

    Attributes:
        left: (R,), tokens that each row may still get, at least one.
        end: the end token.
        first: the forced first token; None for none.
        last: the token that is forced where a row may get only one more; None for none.
        steps: at most; at least one is made.
        enough: see above.
        seconds: see above.
        wake: (1,), int32, which any thread may set.
        owed: (R,), tokens that each row gets before it may choose the end token; empty for none.
            Only if the model ``has_min_length``.
    """

    left: Sequence[int]
    end: int
    first: int | None
    last: int | None
    steps: int
    enough: int
    seconds: float
    wake: NDArray[np.int32]
    owed: Sequence[int] = ()


class Ran(NamedTuple):
    """The results of a ``Run``, by row.

    Attributes:
        tokens: (R, steps), of which each row's ``counts`` are given.
        counts: (R,).
        kept: the row before the run of each row that is left.
    """

    tokens: NDArray[Any]
    counts: NDArray[Any]
    kept: Places


class RunningRows(Protocol):
    """Decoder rows that can be added and removed at any step; each is at its own position.

    Not safe to share between threads.

    Attributes:
        capacity: the maximum number of rows.
    """

    capacity: int

    @property
    def rows(self) -> int:
        """R."""

    def enter(self, sources: Sequence[Source]) -> None:
        """Encode sources, none of them empty, and put them after the other rows.

        The new rows are before their first token. There must be room for them. If it fails, the
        rows are those that were there.
        """

    def step(self, tokens: Sequence[int] | Ids, return_logits: bool) -> tuple[Ids, Floats]:
        """Give each row its next token, the first of them the start token.

        Args:
            tokens: (R,).
            return_logits: whether to compute logits.

        Returns:
            best: (R,), the argmax of the logits, over tokens that the model's own rules allow.
            logits: (R, V), or (0, V). Both are overwritten by the next step.
        """

    def run(self, tokens: Sequence[int] | Ids, run: Run) -> Ran:
        """Make steps of greedy search; rows that have ended leave.

        Args:
            tokens: (R,), the next token of each row, the first of them the start token.
            run: how far.
        """

    def select(self, rows: Places) -> None:
        """Keep these rows, in this order; a row may be repeated or dropped."""

    def try_out(self) -> None:
        """Take a few steps, to check that they work here.

        Raises:
            BundleError: the steps fail.
        """


class Read(NamedTuple):
    """What rows find for each token that they are given.

    Attributes:
        log_probs: of the token that may follow it; of one that is suppressed less than -1e20.
        gaps: how far its logit is below the greatest.
        best: the token of that.
    """

    log_probs: NDArray[np.float64]
    gaps: Floats
    best: NDArray[Any]


class TracedRows(Protocol):
    """Decoder rows, each at a position of its own, from which others may go on."""

    def branch(self, rows: Sequence[int], lengths: Sequence[int]) -> "TracedRows":
        """Copies of rows that have read their first ``lengths`` tokens; a row may be repeated."""

    def read(self, tokens: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Read:
        """Give each row its next tokens, and compare what may follow each with a target.

        Returns:
            What is found, row after row.
        """

    def run(
        self, tokens: Sequence[int], left: Sequence[int], end: int, last: int | None, going: Going
    ) -> list[tuple[list[int], list[float]]]:
        """Go on greedily to the end of each row; the rows leave.

        Args:
            tokens: (R,), the next of each.
            left: (R,), tokens that each may still get, at least one.
            end: the end token.
            last: the token that is forced where a row may get only one more; None for none.
            going: as of ``Model.generate``.

        Returns:
            The tokens that each gets, the end token included, and their log-probabilities; that
            of a forced token is arbitrary.
        """


class Traced(NamedTuple):
    """A search whose rows can be gone on from.

    Attributes:
        log_probs: of the first tokens of rows; takes rows and how many tokens of each. Those of
            forced tokens are arbitrary.
        attention: (B, T, S), the mean over heads of the last layer's cross-attention by which each
            token was chosen; arbitrary behind the last.
        rows: which have read all tokens but the last of each.
        without: rows that are too long for a trace, of which it holds nothing, and their scores as
            of ``Generated``.
    """

    log_probs: Callable[[Sequence[int], Sequence[int]], list[list[float]]]
    attention: Floats
    rows: TracedRows
    without: Mapping[int, float] = MappingProxyType({})


class Model(Protocol):
    """A bundle's model. It is stateless and safe to share between threads; callers hold the state.

    Attributes:
        vocab_size: V.
        has_generate: whether ``generate`` can be called.
        has_min_length: whether greedy search in one call, and ``RunningRows.run``, know a least
            length.
        has_beam: whether ``beam`` can be called.
        has_attention: whether ``attend`` can be called. Otherwise attention of tokens is asked for
            when all are known, by ``alignment``.
        has_alignment: whether ``alignment`` can be called.
        searches_encoded: whether ``generate`` and ``beam`` take rows of ``encoded`` too.
        engine: name of the engine, and its instruction set if known.
    """

    vocab_size: int
    has_generate: bool
    has_min_length: bool
    has_beam: bool
    has_attention: bool
    has_alignment: bool
    searches_encoded: bool
    engine: str

    @property
    def has_shortlist(self) -> bool:
        """Whether ``step`` and ``attend`` take candidates."""

    @property
    def has_slots(self) -> bool:
        """Whether ``running_rows`` can be called."""

    @property
    def log_normalizer(self) -> Callable[[Floats], NDArray[np.float64]] | None:
        """The engine's own of ``search.logits.log_normalizer``, by which its beams in one call go.

        None if it has none.
        """

    def generate(
        self,
        rows: Sequence[Source],
        max_length: int,
        return_scores: bool = True,
        going: Going | None = None,
        min_length: int = 0,
    ) -> Generated:
        """Decode greedily in one call.

        Args:
            rows: sources, none of them empty.
            max_length: new tokens at most.
            return_scores: false omits them, if the engine can.
            going: asked again and again; the call ends once it is false. None to always continue.
            min_length: tokens before the end token, at least; 0 unless the model
                ``has_min_length``.

        Raises:
            AbandonedError: ``going`` was false.
        """

    def beam(
        self,
        rows: Sequence[Source],
        beam_size: int,
        num_finished: int,
        max_length: int,
        rules: BeamRules | None = None,
        going: Going | None = None,
    ) -> BeamRecord:
        """Run a beam search in one call.

        Args:
            rows: sources, none of them empty.
            beam_size: hypotheses followed at a time; at most half of the vocabulary.
            num_finished: finished hypotheses without which no sentence is done before
                ``max_length``.
            max_length: new tokens at most, a forced first one included.
            rules: of the search; None for those with the model's own start and end token.
            going: as of ``generate``.

        Raises:
            AbandonedError: ``going`` was false.
            NoTokenError: the rules allow some row no token.
        """

    def trace(
        self, rows: Sequence[Source], max_length: int, going: Going | None = None
    ) -> tuple[Ids, Traced] | None:
        """``generate`` without scores, and what is needed to go on from any of its positions.

        Args:
            rows: sources, none of them empty.
            max_length: new tokens at most.
            going: as of ``generate``.

        Returns:
            None if the model cannot.

        Raises:
            AbandonedError: ``going`` was false.
        """

    def retrace(
        self,
        rows: Sequence[Source],
        tokens: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
    ) -> Traced | None:
        """Read what was found in another way, as if ``trace`` had found it.

        Args:
            rows: sources, none of them empty.
            tokens: of each row, the start token first; at least one.
            targets: what was chosen after each of them.

        Returns:
            None if the model cannot.
        """

    def encoded(self, rows: Sequence[Source]) -> Sequence[Any]:
        """Compute what ``encode`` needs of the encoder, once for several calls.

        Returns:
            For each source one that ``encode`` takes in its place.
        """

    def encode(self, rows: Sequence[Source]) -> Any:
        """Encode sources, none of them empty; return ``Rows`` before their first token."""

    def step(self, input_ids: Ids, state: Any, candidates: Ids | None = None) -> Floats:
        """Advance by T positions: ids (R, T) to logits (R, T, V); the state is updated.

        Args:
            input_ids: (R, T).
            state: from ``encode``.
            candidates: (C,) ids to compute logits of; all others get -inf. None for all. Without
                any the result is read-only.
        """

    def attend(
        self, input_ids: Ids, state: Any, candidates: Ids | None = None
    ) -> tuple[Floats, Floats]:
        """``step``, and the cross-attention weights (R, L, H, T, S) of these positions."""

    def alignment(self, row: Source, ids: Sequence[int], heads: Sequence[Sequence[int]]) -> Floats:
        """The cross-attention weights of some heads over given ids.

        Args:
            row: a source, or one of ``encoded``.
            ids: T target ids, from the first position on.
            heads: layer and head of each; of a module, some of the manifest's
                ``alignment_heads``.

        Returns:
            (heads, T, S).
        """

    def hidden_states(self, rows: Sequence[Sequence[int]]) -> Floats:
        """The encoder's last states, (B, S, E); arbitrary after the end of a source."""

    def running_rows(self, capacity: int) -> RunningRows:
        """Create an empty set of rows that can be added and removed at any step."""

    def close(self) -> None:
        """Release the memory as soon as running calls and rows have ended.

        A later call opens it again, if the files are still the same.
        """


class ModelShape(NamedTuple):
    """Sizes of a model's caches, and the special tokens around a source text.

    Attributes:
        d_model: width of the encoder's output.
        num_decoder_layers: decoder layers, each with a cache.
        num_heads: attention heads of each.
        head_dim: width of a head.
        add_source_bos: whether a source text gets the start token.
        add_source_eos: whether a source text gets the end token.
    """

    d_model: int
    num_decoder_layers: int
    num_heads: int
    head_dim: int
    add_source_bos: bool
    add_source_eos: bool

    @classmethod
    def of(cls, manifest: Manifest) -> "ModelShape":
        """Read it from the checked manifest of a Transformer, or of a recognised decoder."""
        config = manifest.transformer or {}
        values = {name: config[name] for name in cls._fields}
        if heads := config["decoder_num_heads"]:  # 0 if equal to the encoder's
            inner = values["num_heads"] * values["head_dim"]
            values |= {"num_heads": heads, "head_dim": inner // heads}
        return cls(**values)
