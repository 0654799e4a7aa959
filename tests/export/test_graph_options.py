"""Options that every graph of an export shares."""

import pytest

from tfexport.errors import ConfigError
from tfexport.export.graph_options import GraphOptions
from tfexport.export.graphs.fused_attention import FusedAttention, FusedSelfAttention
from tfexport.model_src.attention import Attention


@pytest.mark.parametrize(
    ("portable", "opset", "oldest"),
    [(False, 22, "1.21"), (True, 20, "1.18")],
    ids=["fused", "portable"],
)
def test_opset_by_default_is_that_of_the_oldest_onnxruntime(
    portable: bool, opset: int, oldest: str
) -> None:
    options = GraphOptions.choose(portable=portable)
    assert options.opset == opset
    assert options.minimum_onnxruntime == oldest


@pytest.mark.parametrize("opset", [17, 26])
def test_opset_that_cannot_be_exported_is_refused(opset: int) -> None:
    with pytest.raises(ConfigError, match=f"opset: {opset} is not one of 18 to 25"):
        GraphOptions(opset, portable=True)


def test_fused_operators_need_a_newer_opset_than_standard_ones() -> None:
    assert GraphOptions(20, portable=True).opset == 20
    with pytest.raises(ConfigError, match=r"need 22 or more, not 20; .*portable=True") as raised:
        GraphOptions(20)
    assert "--" not in str(raised.value)


def test_attention_class_follows_the_options() -> None:
    assert GraphOptions().attention_class is FusedAttention
    assert GraphOptions().with_attentions().attention_class is FusedSelfAttention
    assert GraphOptions(20, portable=True).with_attentions().attention_class is Attention
