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
# The options that the graphs of a whole search implement. A graph takes a batch only if every
# option in use is listed here: one that was forgotten goes to the stepwise search.
GREEDY_GRAPH_OPTIONS = _AROUND_SEARCH
BEAM_GRAPH_OPTIONS = _AROUND_SEARCH | {
    "beam_size", "num_hypotheses", "patience", "return_token_scores",
}  # fmt: skip
# Of these the resolved values count, which ``_fits`` looks at one by one.
_RESOLVED = frozenset({"end_tokens", "suppress_tokens", "suppress_sequences", "disable_unk"})
_ALWAYS_RESOLVED = frozenset({"seed"})  # has a value even if none was given


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions(DecodingOptions):
    """Options by which a search decodes, under the names of ``DecodingOptions``.

    Made with ``of``; a copy with other values, of ``dataclasses.replace``, is judged by these
    values as well as by ``given``. Listed here are the options whose resolved values may differ
    from those that were given.

    Attributes:
        seed: of the random numbers.
        max_length: tokens of a row at most, bounded by the model's own limit.
        suppress_tokens: ids that are never chosen; with ``disable_unk`` the unknown token's too.
        suppress_sequences: ids of sequences that are never completed.
        end_tokens: ids that end a row; at least one.
        bos_id: the decoder's start token.
        eos_id: the model's own end token.
        given: options that were given and are not the defaults, with the given values.
    """

    seed: int = 0
    suppress_tokens: tuple[int, ...] = ()
    suppress_sequences: tuple[tuple[int, ...], ...] = ()
    end_tokens: tuple[int, ...]
    bos_id: int
    eos_id: int
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
        eos_id: int | None = None,
        seed: int = 0,
    ) -> "ResolvedOptions":
        """Options with their resolved values in the place of the given ones.

        ``eos_id`` is the first of ``end_tokens`` by default.
        """
        values = _values(options)
        given = {name: values[name] for name in changed_options(values)}
        eos_id = end_tokens[0] if eos_id is None else eos_id
        values |= {
            "seed": seed, "max_length": max_length, "suppress_tokens": suppress_tokens,
            "suppress_sequences": suppress_sequences, "end_tokens": end_tokens,
        }  # fmt: skip
        return cls(**values, bos_id=bos_id, eos_id=eos_id, given=given)

    def __post_init__(self) -> None:
        """Check nothing: the given options were checked, and limits of a model contradict none."""

    @property
    def fits_greedy_graph(self) -> bool:
        """Whether the graph of greedy search implements every option in use."""
        return self._fits(GREEDY_GRAPH_OPTIONS)

    @property
    def fits_beam_graph(self) -> bool:
        """Whether the graph of beam search implements every option in use."""
        return self.beam_size > 1 and self._fits(BEAM_GRAPH_OPTIONS)

    def _fits(self, known: frozenset[str]) -> bool:
        # By the values too: ``dataclasses.replace`` changes them and leaves ``given`` as it was.
        in_use = self.given.keys() | (changed_options(_values(self)) - _ALWAYS_RESOLVED)
        banned = self.suppress_tokens or self.suppress_sequences
        return (
            in_use - _RESOLVED <= known
            and self.end_tokens == (self.eos_id,)
            and not banned
            and self.max_length > 0
        )

    def ends(self, tokens: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which tokens end a row."""
        return np.isin(tokens, self.end_tokens)


def _values(options: DecodingOptions) -> dict[str, Any]:
    return {option.name: getattr(options, option.name) for option in fields(DecodingOptions)}
