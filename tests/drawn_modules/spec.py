"""What is known of a drawn module besides its source: how it is called, and its sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

PAD, BOS, EOS = 0, 1, 2
MAX_LENGTH = 12  # tokens that are decoded
BATCH = "batch"
Axes = tuple[int | str, ...]


@dataclass(frozen=True)
class InputSpec:
    """One input of the forward.

    Attributes:
        name: of the parameter, or what it is called in rows.
        dtype: numpy's name.
        axes: a number for a fixed size, a name for one that varies.
        kind: how its numbers are drawn: ids, floats, mask, lengths or relative_lengths.
        below: the smallest number that is too large for ids.
    """

    name: str
    dtype: str
    axes: Axes
    kind: str
    below: int = 0


@dataclass(frozen=True)
class Spec:
    """A drawn module.

    Attributes:
        seed: of the draw.
        labels: its productions.
        inputs: of the forward but the target, in order.
        target_axes: of the target ids.
        by_call: the file has a function ``call(model, *inputs, target)``.
        source_words: size of the source's vocabulary, whose ids are drawn below it.
        least: the least size of each axis that varies.
        most: the largest size of each axis that varies.
        refused_because: why an export has to refuse it; empty if it has to export it.
    """

    seed: int
    labels: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    target_axes: tuple[str, str]
    by_call: bool
    source_words: int
    least: Mapping[str, int]
    most: Mapping[str, int]
    refused_because: str

    @property
    def has_ids(self) -> bool:
        """Whether ``Translator.generate`` takes rows of ids."""
        names = {each.name for each in self.inputs}
        return "input_ids" in names and names <= {"input_ids", "attention_mask"}
