"""What a search needs to know besides its rows: options with every token turned into an id."""

from dataclasses import dataclass, field

import numpy as np

from tfexport.runtime.model import Ids
from tfexport.runtime.options import DecodingOptions


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
    def is_plain(self) -> bool:
        """Whether taking the best token is all there is to do."""
        options = self.options
        return (
            options.beam_size == 1
            and not options.sampling
            and not options.return_token_scores
            and self._takes_logits_as_they_are
        )

    @property
    def is_plain_beam(self) -> bool:
        """Whether following one group of the best tokens, until enough end, is all there is."""
        options = self.options
        return (
            options.beam_size > 1
            and options.beam_groups == 1
            and options.early_stopping
            and self._takes_logits_as_they_are
        )

    @property
    def _takes_logits_as_they_are(self) -> bool:
        options = self.options
        return (
            self.own_end
            and self.max_length > 0
            and not self.suppress_tokens
            and not self.suppress_sequences
            and not options.min_length
            and not options.no_repeat_ngram_size
            and options.repetition_penalty == 1
            and not options.needs_attention
            and options.callback is None
        )

    def ends(self, tokens: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which tokens end a row."""
        return np.isin(tokens, self.end_tokens)
