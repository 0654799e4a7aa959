"""The original mathematics of a layout: its form, and how it is built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig


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
