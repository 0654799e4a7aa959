"""One row to decode, and its options resolved for one model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import InputError, Message, Option
from tfexport.graph_io import INPUT_IDS
from tfexport.runtime.model.interface import Floats, Ids, Model, Source
from tfexport.runtime.options import DecodingOptions, changed_options
from tfexport.runtime.text.codec import PLAIN, Framing

if TYPE_CHECKING:  # few rows have some
    from tfexport.runtime.search.required import Required


class LogitRule(Protocol):
    """A rule on the next tokens of rows, which acts after all options."""

    def __call__(self, logits: Floats, tokens: Ids) -> None:
        """Change logits (R, V) in place; a token that is banned gets -inf.

        Args:
            logits: (R, V).
            tokens: (R, T), tokens so far, without the start token.
        """


@dataclass(frozen=True)
class Request:
    """One row to decode.

    Attributes:
        ids: source ids as the encoder takes them; empty if there are ``inputs``.
        number: index of the row in its call; part of the seed of its random numbers.
        prefix: the forced start of the target.
        candidates: ascending ids that may be chosen (a shortlist); None for the complete
            vocabulary.
        sample: number of the first sample of this row; also part of the seed.
        inputs: inputs of a user's module by name, instead of ids.
        group: rows of equal groups may share a batch.
        rule: a rule on its tokens; None for none. Searches in one call have none.
        required: phrases that the target has to contain; None for none.
        encoded: the source as ``Model.encoded`` gives it, instead of ids and inputs; else None.
    """

    ids: list[int]
    number: int = 0
    prefix: tuple[int, ...] = ()
    candidates: NDArray[np.int64] | None = None
    sample: int = 0
    inputs: Mapping[str, NDArray[Any]] | None = None
    group: tuple[Any, ...] = ()
    rule: LogitRule | None = None
    required: "Required | None" = None
    encoded: Any = None

    @classmethod
    def of(cls, source: Source, number: int) -> "Request":
        """A row without a prefix."""
        if isinstance(source, Mapping):
            return cls([], number, inputs=source)
        return cls(list(source), number)

    @property
    def source(self) -> Source:
        """The source, in the form for ``Model.encode``."""
        if self.encoded is not None:
            encoded: Source = self.encoded
            return encoded
        return self.ids if self.inputs is None else self.inputs

    @property
    def source_ids(self) -> list[int]:
        """The source ids; empty if the source is not ids."""
        if self.inputs is None or INPUT_IDS not in self.inputs:
            return self.ids
        return [int(i) for i in self.inputs[INPUT_IDS]]

    @property
    def length(self) -> int:
        """Length of the source: the number of ids, or the longest axis of an input."""
        if self.inputs is None:
            return len(self.ids)
        return max(max(array.shape, default=1) for array in self.inputs.values())

    @property
    def input_bytes(self) -> int:
        """The size of ``inputs`` in bytes; 0 without any."""
        return sum(array.nbytes for array in (self.inputs or {}).values())


# Options that act before or after the search, so any search supports them.
_AROUND_SEARCH = frozenset({
    "length_penalty", "max_length", "max_input_length", "truncate", "return_scores",
    "return_end_token", "batch_size", "batch_type",
})  # fmt: skip
# The options that the searches in one call implement. They decode a batch only if every option in
# use is listed here, so a forgotten one leads to the stepwise search.
GREEDY_GRAPH_OPTIONS = _AROUND_SEARCH | {"search_rules"}
BEAM_RULES_OPTIONS = _AROUND_SEARCH | {
    "beam_size", "num_hypotheses", "patience", "return_token_scores", "search_rules",
    "early_stopping", "exhaustive", "renormalize_logits", "min_length", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "repetition_penalty", "suppress_tokens",
    "suppress_first_tokens", "suppress_sequences", "disable_unk", "first_token", "last_token",
    "end_tokens",
}  # fmt: skip
# Options of beams that leave probabilities as they are.
_OF_BEAMS = frozenset({
    "beam_size", "num_hypotheses", "patience", "return_token_scores", "early_stopping",
    "exhaustive",
})  # fmt: skip
_MOST_ENDS = 64  # end tokens
# Options whose resolved values are checked.
_RESOLVED = frozenset({"end_tokens", "suppress_tokens", "suppress_sequences", "disable_unk"})
_RULES = frozenset({"first_token", "last_token"})  # compared with the rules of a graph
_ALWAYS_RESOLVED = frozenset({"seed"})  # set even if the caller did not set it


class GraphRules(NamedTuple):
    """A bundle's decoding defaults that are part of its greedy search graph.

    Attributes:
        suppress_tokens: ids that the graph never chooses.
        first_token: the first token of every row, or None.
        last_token: the last token of a row of ``max_length`` tokens, or None.
    """

    suppress_tokens: frozenset[int] = frozenset()
    first_token: int | None = None
    last_token: int | None = None

    @classmethod
    def of(cls, generation: Mapping[str, Any]) -> "GraphRules":
        """The rules in a manifest's ``generation``."""
        suppressed = frozenset(generation.get("suppress_tokens", ()))
        return cls(suppressed, generation.get("first_token"), generation.get("last_token"))


NO_RULES = GraphRules()


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions(DecodingOptions):
    """The options of a search, resolved for one model: tokens are ids, limits are numbers.

    Created with ``of``. For copies by ``dataclasses.replace``, the values are checked as well as
    ``given``. Attributes are listed if their resolved values may differ from the given ones.

    Attributes:
        seed: the seed of the random numbers.
        max_length: maximum number of tokens of a row, bounded by the model's limit.
        suppress_tokens: ids that are never chosen; with ``disable_unk`` the unknown token's too.
        suppress_sequences: ids of sequences that are never completed.
        suppress_first_tokens: ids that are never chosen first.
        first_token: the id that every row starts with, or None; see ``with_first_token``.
        last_token: the id that ends a row of ``max_length`` tokens, or None.
        end_tokens: ids that end a row; at least one.
        bos_id: the decoder's start token.
        usual_start: whether the start token is the one in the complete search graphs.
        eos_id: the model's own end token.
        graph_rules: the rules of the bundle's graph of greedy search.
        framing: special tokens around the ids of a source text; not used for sources that are ids.
        given: options that were given and are not the defaults, with the given values.
        attention_heads: layer and number of the heads whose mean is the attention.
        going: called between steps; returns whether to continue. None to always continue.
    """

    seed: int = 0
    suppress_tokens: tuple[int, ...] = ()
    suppress_sequences: tuple[tuple[int, ...], ...] = ()
    suppress_first_tokens: tuple[int, ...] = ()
    first_token: int | None = None
    last_token: int | None = None
    end_tokens: tuple[int, ...]
    bos_id: int
    usual_start: bool = True
    eos_id: int
    graph_rules: GraphRules = NO_RULES
    framing: Framing = PLAIN
    attention_heads: tuple[tuple[int, int], ...] = ()
    given: Mapping[str, Any]
    going: Callable[[], bool] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        options: DecodingOptions,
        bos_id: int,
        end_tokens: tuple[int, ...],
        max_length: int,
        suppress_tokens: tuple[int, ...] = (),
        suppress_sequences: tuple[tuple[int, ...], ...] = (),
        *,
        eos_id: int | None = None,
        seed: int = 0,
    ) -> "ResolvedOptions":
        """Make resolved options from the given ones.

        Single tokens of ``options`` have to be ids already. ``eos_id`` is the first of
        ``end_tokens`` by default.
        """
        values = vars(options)
        given = changed_options(values)
        eos_id = end_tokens[0] if eos_id is None else eos_id
        values = {
            **values, "seed": seed, "max_length": max_length, "suppress_tokens": suppress_tokens,
            "suppress_sequences": suppress_sequences, "end_tokens": end_tokens,
            "suppress_first_tokens": tuple(values["suppress_first_tokens"]),
        }  # fmt: skip
        return cls(**values, bos_id=bos_id, eos_id=eos_id, given=given)

    def __post_init__(self) -> None:
        """Skip the checks of the base class: the given options were checked."""

    def without_attention(self) -> "ResolvedOptions":
        """The options of the same search where nothing asks for attention."""
        asking = ("return_attention", "replace_unknowns", "attention_layer", "attention_head")
        given = {name: value for name, value in self.given.items() if name not in asking}
        return replace(
            self, return_attention=False, replace_unknowns=False, attention_layer=-1,
            attention_head=None, given=given,
        )  # fmt: skip

    @cached_property
    def fits_greedy_graph(self) -> bool:
        """Whether the greedy search graph implements exactly the options in use."""
        return self._fits_greedy(GREEDY_GRAPH_OPTIONS)

    def fits_greedy_of(self, model: Model) -> bool:
        """Whether the model's greedy search in one call implements exactly the options in use."""
        # Without a token beside the end a row ends as it is, which only stepwise search does.
        if not (self.min_length and model.has_min_length):
            return self.fits_greedy_graph
        known = GREEDY_GRAPH_OPTIONS | {"min_length"}
        return self._fits_greedy(known) and len(self.never_inside) < model.vocab_size

    @cached_property
    def fits_reading(self) -> bool:
        """Whether tokens have the model's own probabilities: no option in use acts on these."""
        return self._fits_greedy(GREEDY_GRAPH_OPTIONS | _OF_BEAMS)

    def _fits_greedy(self, known: frozenset[str]) -> bool:
        rules = GraphRules(frozenset(self.suppress_tokens), self.first_token, self.last_token)
        return rules == self.graph_rules and self._usual and self._knows(known | _RULES)

    @cached_property
    def fits_beam_rules(self) -> bool:
        """Whether ``BeamRules`` can say all options in use."""
        ends = 0 < len(set(self.end_tokens)) <= _MOST_ENDS
        return self.beam_size > 1 and ends and self._knows(BEAM_RULES_OPTIONS)

    @property
    def _usual(self) -> bool:
        """Whether tokens have the meaning that they have in the graphs."""
        return (
            self.end_tokens == (self.eos_id,) and self.usual_start and not self.suppress_sequences
        )

    def _knows(self, known: frozenset[str]) -> bool:
        # The values are checked too: ``dataclasses.replace`` changes them but not ``given``.
        in_use = self.given.keys() | (changed_options(vars(self)).keys() - _ALWAYS_RESOLVED)
        return in_use - _RESOLVED <= known and self.max_length > 0

    @cached_property
    def width(self) -> int:
        """The number of rows in the model's batch that one row needs."""
        return self.num_hypotheses if self.sampling else self.beam_size

    @cached_property
    def never_inside(self) -> frozenset[int]:
        """Ids that no target has before its end: end tokens and suppressed ones."""
        return frozenset((*self.end_tokens, *self.suppress_tokens))

    @cached_property
    def takes_required(self) -> bool:
        """Whether rows may have required phrases."""
        return not (self.sampling or self.return_alternatives or self.beam_groups > 1
                    or self.callback is not None)  # fmt: skip

    @property
    def by_transformers(self) -> bool:
        """Whether the search follows the rules of transformers."""
        return self.search_rules == "transformers"

    @property
    def always_allowed(self) -> tuple[int, ...]:
        """Ids that every shortlist has to contain."""
        return self.end_tokens + (() if self.last_token is None else (self.last_token,))

    def with_first_token(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """Put the forced first token before a prefix, if there is one and the prefix lacks it.

        Raises:
            InputError: there is no room for both.
        """
        if self.first_token is None or prefix[:1] == (self.first_token,):
            return prefix
        last = self.last_token is not None and not prefix
        if self.max_length <= last:  # a forced last token overrides the first
            return prefix
        if len(prefix) >= self.max_length:
            raise InputError(Message(
                "target prefix: with the forced first token its ", str(len(prefix) + 1),
                " tokens exceed ", Option("max_length"), f" {self.max_length}",
            ))  # fmt: skip
        return (self.first_token, *prefix)

    def uncounted(self, prefix: tuple[int, ...]) -> int:
        """The number of prefix tokens that are not scored; a forced first token alone is scored."""
        forced = prefix == (self.first_token,)
        return len(prefix) if self.by_transformers and not forced else 0

    def ends(self, tokens: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each token ends a row."""
        found: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = tokens == self.end_tokens[0]
        for token in self.end_tokens[1:]:
            found |= tokens == token
        return found
