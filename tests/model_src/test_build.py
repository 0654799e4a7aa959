"""The class of attention that a model is built with."""

import dataclasses
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


def all_tensors(model: Any) -> list[tuple[str, Any]]:
    parameters = model.named_parameters(remove_duplicate=False)
    return [*parameters, *model.named_buffers(remove_duplicate=False)]


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


def test_models_of_a_checkpoint_share_their_parameters_and_what_is_built_has_its_own() -> None:
    config = dataclasses.replace(CONFIG, tie_embeddings=True, tie_output=True)
    weights = dict(build_transformer(config).state_dict())
    checkpoint = Checkpoint("a", None, "native", config, {}, weights, weights, {})
    first, other = checkpoint.model(), checkpoint.model(OtherAttention)
    assert checkpoint.model(OtherAttention) is other
    assert (attentions(first), attentions(other)) == ({Attention}, {OtherAttention})
    shared = {name: id(tensor) for name, tensor in all_tensors(first)}
    assert shared == {name: id(tensor) for name, tensor in all_tensors(other)}
    tied = {shared[name] for name in shared if name.endswith("tokens.weight")}
    assert tied == {shared["output_proj.weight"]}
    assert not {*shared.values()} & {id(tensor) for _, tensor in all_tensors(checkpoint.build())}
