"""The project's own modules over the whole prefix, for checkpoints without an original."""

import torch
from torch import Tensor

from tfexport.model_src.transformer import Transformer


class ModuleReference:
    """The project's own modules, run over the whole prefix without a cache."""

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
