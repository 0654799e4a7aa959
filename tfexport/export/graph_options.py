"""Export options that apply to every graph."""

from dataclasses import dataclass, replace

from tfexport.errors import ConfigError, Message, Option, Problem
from tfexport.export.graphs.fused_attention import attention_class
from tfexport.model_src.attention import Attention

# The oldest supported onnxruntime loads graphs of standard operators with opset 20. Graphs with
# fused attention use opset 22, so that onnxruntime 1.20 does not load them: its MultiHeadAttention
# accepts a broadcast bias, but computes wrong values with it.
PORTABLE_OPSET, FUSED_OPSET = 20, 22
# The oldest onnxruntime that loads each opset, as tested.
_OLDEST_ONNXRUNTIME = {
    18: "1.18",
    19: "1.18",
    20: "1.18",
    21: "1.18",
    22: "1.21",
    23: "1.23",
    24: "1.24",
    25: "1.24",
}


@dataclass(frozen=True)
class GraphOptions:
    """Export options that apply to every graph.

    Attributes:
        opset: the opset version of the standard operators.
        portable: use only standard operators, for runtimes other than onnxruntime.
        output_attentions: add the cross-attention weights as an output.

    Raises:
        ConfigError: the opset is not supported, or only if ``portable`` is true.
    """

    opset: int = FUSED_OPSET
    portable: bool = False
    output_attentions: bool = False

    def __post_init__(self) -> None:
        known = list(_OLDEST_ONNXRUNTIME)
        problem: str | Message | None = None
        if self.opset not in known:
            problem = f"{self.opset} is not one of {known[0]} to {known[-1]}"
        elif self.opset < FUSED_OPSET and not self.portable:
            problem = Message(
                f"graphs with onnxruntime's own operators need {FUSED_OPSET} or more, not "
                f"{self.opset}; use a newer opset, or only standard operators (",
                Option("portable", True),
                ")",
            )
        if problem is not None:
            raise ConfigError(Message(Problem("opset", problem)))

    @classmethod
    def choose(
        cls, opset: int | None = None, portable: bool = False, output_attentions: bool = False
    ) -> "GraphOptions":
        """Create options; the default opset is the one that the oldest onnxruntime can load."""
        if opset is None:
            opset = PORTABLE_OPSET if portable else FUSED_OPSET
        return cls(opset, portable, output_attentions)

    @property
    def minimum_onnxruntime(self) -> str:
        """The oldest onnxruntime that loads the graphs."""
        return _OLDEST_ONNXRUNTIME[self.opset]

    @property
    def attention_class(self) -> type[Attention]:
        """The attention class of models that are built for the export."""
        return attention_class(self.portable, self.output_attentions)

    def with_attentions(self) -> "GraphOptions":
        """A copy with ``output_attentions=True``."""
        return replace(self, output_attentions=True)
