"""The interface of reference models, which compute the original formulas of a layout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer


class Reference(Protocol):
    """An encoder-decoder model without a cache, with which exports are compared.

    Attributes:
        title: the name of the model in reports.
        no_original: why the model is not the original of the layout; None if it is.
    """

    title: str
    no_original: str | None

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask (B, S), 1 = keep, to encoder states (B, S, E), the input of ``decode``."""

    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """Encoder states (B, S, E), their mask, and a target prefix (B, T) to logits (B, T, V).

        With ``last_only``, only the logits of the last position, (B, 1, V).
        """


@dataclass(frozen=True)
class Original:
    """The reference model of a layout, which names it in ``reference``.

    Attributes:
        build: builds the model from the tensors of a checkpoint.
        covers: whether the model supports the settings of a config.
    """

    build: Callable[[Checkpoint], Reference]
    covers: Callable[[TransformerConfig], bool]


class ModuleReference:
    """The project's own modules, run over the full prefix without a cache."""

    title = "tfexport's own modules, uncached"

    def __init__(self, model: Transformer, no_original: str) -> None:
        """Wrap a model; ``no_original`` is the reason why no original is run."""
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
