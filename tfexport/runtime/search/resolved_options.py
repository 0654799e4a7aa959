"""Decoding options, resolved for one model: every token an id, every limit and seed a number."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tfexport.runtime.model.bundle_model import Ids
from tfexport.runtime.options import DecodingOptions, changed_options

# Options that act before the search or on what it found, so that any search serves them.
_AROUND_SEARCH = frozenset({
    "length_penalty", "max_length", "max_input_length", "truncate", "return_scores",
    "return_end_token", "batch_size", "batch_type",
})  # fmt: skip
# What the graphs that hold a whole search can do. A graph takes a request only if every option
# that was given stands here: one that nobody has thought of goes to the search step by step.
GREEDY_GRAPH_OPTIONS = _AROUND_SEARCH
BEAM_GRAPH_OPTIONS = _AROUND_SEARCH | {
    "beam_size", "num_hypotheses", "patience", "return_token_scores",
}  # fmt: skip
# Judged by what they were resolved to, not by what was given.
_RESOLVED = frozenset({"end_tokens", "suppress_tokens", "suppress_sequences", "disable_unk"})


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions(DecodingOptions):
    """Options by which a search decodes, under the names of ``DecodingOptions``.

    Only ``of`` makes one; a value that differs from what was given is listed here.

    Attributes:
        seed: of all draws.
        max_length: tokens a row at most; not above the model's own limit.
        suppress_tokens: ids that are never chosen, with ``disable_unk`` the unknown token's too.
        suppress_sequences: ids of sequences that are never completed.
        end_tokens: ids that end a row; at least one.
        bos_id: what every row starts from.
        own_end: the model's own end token alone ends a row.
        given: options that were given and are not the defaults, with the values they came with.
    """

    seed: int = 0
    suppress_tokens: tuple[int, ...] = ()
    suppress_sequences: tuple[tuple[int, ...], ...] = ()
    end_tokens: tuple[int, ...]
    bos_id: int
    own_end: bool = True
    given: Mapping[str, Any]

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
        own_end: bool = True,
        seed: int = 0,
    ) -> "ResolvedOptions":
        """Put what options were resolved to in the place of what was given."""
        values = {option.name: getattr(options, option.name) for option in fields(DecodingOptions)}
        given = {name: values[name] for name in changed_options(values)}
        values |= {
            "seed": seed, "max_length": max_length, "suppress_tokens": suppress_tokens,
            "suppress_sequences": suppress_sequences, "end_tokens": end_tokens,
        }  # fmt: skip
        return cls(**values, bos_id=bos_id, own_end=own_end, given=given)

    def __post_init__(self) -> None:
        """Check nothing: what was given was checked, and a model's limit contradicts none of it."""

    @property
    def fits_greedy_graph(self) -> bool:
        """Whether a graph that holds greedy search knows every option that was given."""
        return self._fits(GREEDY_GRAPH_OPTIONS)

    @property
    def fits_beam_graph(self) -> bool:
        """Whether a graph that holds beam search knows every option that was given."""
        return self.beam_size > 1 and self._fits(BEAM_GRAPH_OPTIONS)

    def _fits(self, known: frozenset[str]) -> bool:
        banned = self.suppress_tokens or self.suppress_sequences
        return (
            self.given.keys() - _RESOLVED <= known
            and self.own_end
            and not banned
            and self.max_length > 0
        )

    def ends(self, tokens: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which tokens end a row."""
        return np.isin(tokens, self.end_tokens)
