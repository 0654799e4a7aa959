"""The original mathematics of a layout: its form, and how it is built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer


class Reference(Protocol):
    """An encoder-decoder without a cache.

    Attributes:
        title: for people.
        no_original: why this is not the original mathematics; None if it is.
    """

    title: str
    no_original: str | None

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, S) ids and mask, 1 = keep, to what ``decode`` takes: encoder states (B, S, E)."""

    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """Encoder states (B, S, E), their mask, and a target prefix (B, T) to logits (B, T, V).

        With ``last_only`` the logits of the last position alone, (B, 1, V).
        """


@dataclass(frozen=True)
class Original:
    """The original mathematics of a layout, under the name ORIGINAL in the layout's module.

    Attributes:
        build: gives it the tensors of a checkpoint of the layout.
        covers: whether the original can have the settings of a config.
    """

    build: Callable[[Checkpoint], Reference]
    covers: Callable[[TransformerConfig], bool]


class ModuleReference:
    """The project's own modules, run over the full prefix without a cache."""

    title = "tfexport's own modules, uncached"

    def __init__(self, model: Transformer, no_original: str) -> None:
        """Take a model, and the reason why no original is run."""
        self._model = model
        self.no_original: str | None = no_original

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See ``Reference``."""
        hidden, _ = self._model.encode(input_ids, attention_mask)
        return hidden

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """See ``Reference``."""
        cross = self._model.decoder.project_memory(hidden)
        past = self._model.decoder.empty_cache(hidden)
        logits, _ = self._model.step(decoder_input_ids, past, cross, attention_mask)
        return logits[:, -1:] if last_only else logits
