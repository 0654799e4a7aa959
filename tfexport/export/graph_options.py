"""Options that every graph of an export shares."""

from dataclasses import dataclass, replace

from tfexport.errors import ConfigError, Message, Option, Problem
from tfexport.export.graphs.fused_attention import attention_class
from tfexport.model_src.attention import Attention

# With standard operators, opset 20 is loaded by the oldest supported onnxruntime. Graphs with fused
# attention use 22, which onnxruntime 1.20 refuses to load: there MultiHeadAttention accepts a
# broadcast bias and gives wrong values.
PORTABLE_OPSET, FUSED_OPSET = 20, 22
# Opset to the oldest onnxruntime that loads it, tested with these versions.
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
    """Options of the export that apply to every graph.

    Attributes:
        opset: of the standard operators.
        portable: use standard operators only, for other runtimes than onnxruntime.
        output_attentions: make the cross-attention weights an output.

    Raises:
        ConfigError: an opset that cannot be exported, or only without fused operators.
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
                f"{self.opset}; take a newer one, or standard operators only (",
                Option("portable", True),
                ")",
            )
        if problem is not None:
            raise ConfigError(Message(Problem("opset", problem)))

    @classmethod
    def choose(
        cls, opset: int | None = None, portable: bool = False, output_attentions: bool = False
    ) -> "GraphOptions":
        """These options; the default opset is the one that the oldest onnxruntime loads."""
        if opset is None:
            opset = PORTABLE_OPSET if portable else FUSED_OPSET
        return cls(opset, portable, output_attentions)

    @property
    def minimum_onnxruntime(self) -> str:
        """The oldest onnxruntime that loads the graphs."""
        return _OLDEST_ONNXRUNTIME[self.opset]

    @property
    def attention_class(self) -> type[Attention]:
        """The class of attention to build a model with for export."""
        return attention_class(self.portable, self.output_attentions)

    def with_attentions(self) -> "GraphOptions":
        """The same, giving the cross-attention weights."""
        return replace(self, output_attentions=True)
