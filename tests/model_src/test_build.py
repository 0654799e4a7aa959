"""The class of attention that a model is built with."""

from typing import Any

from tests.conftest import SETTINGS
from tfexport.model_src import TransformerConfig, build_transformer
from tfexport.model_src.attention import Attention
from tfexport.model_src.checkpoint.checkpoint import Checkpoint


class OtherAttention(Attention):
    """The same under another name."""


CONFIG = TransformerConfig(
    d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=8,
    source_vocab_size=9, target_vocab_size=9, **SETTINGS,
)  # fmt: skip


def attentions(model: Any) -> set[type]:
    return {type(module) for module in model.modules() if isinstance(module, Attention)}


def test_every_attention_is_of_the_class_that_is_asked_for() -> None:
    assert attentions(build_transformer(CONFIG)) == {Attention}
    built = build_transformer(CONFIG, attention_class=OtherAttention)
    assert attentions(built) == {OtherAttention}


def test_a_checkpoint_is_built_with_the_class_too() -> None:
    weights = dict(build_transformer(CONFIG).state_dict())
    checkpoint = Checkpoint("a", None, "native", CONFIG, {}, weights, weights, {})
    assert attentions(checkpoint.build(attention_class=OtherAttention)) == {OtherAttention}
