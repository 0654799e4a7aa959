"""What a search needs to know besides its rows: options with every token turned into an id."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Settings:
    """Options, resolved for one model.

    Attributes:
        options: how to decode; its tokens are not looked at.
        bos_id: what every row starts from.
        end_tokens: what ends a row.
        max_length: tokens a row at most; the model's own limit is not above it.
        suppress_tokens: ids that are never chosen.
        suppress_sequences: ids of sequences that are never completed.
        own_end: the model's own end token alone ends a row.
        seed: of all draws.
    """

    options: DecodingOptions
    bos_id: int
    end_tokens: tuple[int, ...]
    max_length: int
    suppress_tokens: tuple[int, ...] = ()
    suppress_sequences: tuple[tuple[int, ...], ...] = ()
    own_end: bool = True
    seed: int = field(default=0)

    @property
    def fits_greedy_graph(self) -> bool:
        """Whether a graph that holds greedy search knows every option that was given."""
        return self._fits(GREEDY_GRAPH_OPTIONS)

    @property
    def fits_beam_graph(self) -> bool:
        """Whether a graph that holds beam search knows every option that was given."""
        return self.options.beam_size > 1 and self._fits(BEAM_GRAPH_OPTIONS)

    def _fits(self, known: frozenset[str]) -> bool:
        given = changed_options(vars(self.options)) - _RESOLVED
        banned = self.suppress_tokens or self.suppress_sequences
        return given <= known and self.own_end and not banned and self.max_length > 0

    def ends(self, tokens: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which tokens end a row."""
        return np.isin(tokens, self.end_tokens)
