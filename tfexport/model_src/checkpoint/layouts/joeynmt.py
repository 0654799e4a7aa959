"""JoeyNMT's Transformer (Kreutzer et al. 2019), version 2."""

from collections.abc import Mapping
from typing import Any

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.toolkit_options import Options, several

# fmt: off
_WORDS = {
    "side": {"encoder": "source", "decoder": "target"},
    "embedding": {"src": "source", "trg": "target"},
    "linear": {"k": "k", "v": "v", "q": "q"},
    "decoder_attention": {"trg_trg_att": "self_attn", "src_trg_att": "cross_attn"},
    "decoder_norm": {"x": "self_attn", "dec": "cross_attn"},
    "matrix": {"0": "up", "3": "down"},
}
_TABLE: Entries = {
    "{embedding}_embed.lut.weight": "{embedding}_embedding.tokens.weight",
    "{side}.pe.pe": ("{side}_embedding.positions.table", POSITION_TABLE),
    "{stack}.layer_norm.{kind}": "{stack}.norm.{kind}",
    "decoder.output_layer.weight": "output_proj.weight",
    "encoder.layers.{layer}.src_src_att.{linear}_layer.{kind}":
        "encoder.layers.{layer}.self_attn.{linear}_proj.{kind}",
    "encoder.layers.{layer}.src_src_att.output_layer.{kind}":
        "encoder.layers.{layer}.self_attn.out_proj.{kind}",
    "encoder.layers.{layer}.layer_norm.{kind}":
        "encoder.layers.{layer}.self_attn_residual.norm.{kind}",
    "decoder.layers.{layer}.{decoder_attention}.{linear}_layer.{kind}":
        "decoder.layers.{layer}.{decoder_attention}.{linear}_proj.{kind}",
    "decoder.layers.{layer}.{decoder_attention}.output_layer.{kind}":
        "decoder.layers.{layer}.{decoder_attention}.out_proj.{kind}",
    "decoder.layers.{layer}.{decoder_norm}_layer_norm.{kind}":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.{kind}",
    "{stack}.layers.{layer}.feed_forward.layer_norm.{kind}":
        "{stack}.layers.{layer}.feed_forward_residual.norm.{kind}",
    "{stack}.layers.{layer}.feed_forward.pwff_layer.{matrix}.{kind}":
        "{stack}.layers.{layer}.feed_forward.{matrix}_proj.{kind}",
}
# fmt: on

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_PLACEMENTS = {"pre": "pre", "post": "post"}


def read_joey_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config values from a ``config.yaml``.

    Raises:
        ConfigError: options are not supported; all are listed.
    """
    given = Options("JoeyNMT", values)
    model = given.inside("model")
    encoder, decoder = model.inside("encoder"), model.inside("decoder")
    for stack in (encoder, decoder):
        stack.choice("type", {"transformer": "transformer"}, "transformer")
    # Without a word about norms, the layers of the encoder and of the decoder differ.
    before = encoder.choice("layer_norm", _PLACEMENTS, "pre")
    decoder_before = decoder.choice("layer_norm", _PLACEMENTS, "post")
    tied = model.flag("tied_embeddings")
    source = encoder.inside("embeddings").flag("scale")
    target = source if tied else decoder.inside("embeddings").flag("scale")
    if target and not source:
        given.problems.append("embeddings: a scale of the target only is not supported")
    heads = [stack.integer("num_heads") for stack in (encoder, decoder)]
    found = {
        "num_heads": heads[0],
        "decoder_num_heads": heads[1] if heads[1] != heads[0] else None,
        "d_model": encoder.integer("hidden_size"),
        "d_ff": encoder.integer("ff_size"),
        "norm_placement": before,
        "decoder_norm_placement": decoder_before if decoder_before != before else None,
        "activation": _same(given, "activation", [
            stack.choice("activation", _ACTIVATIONS, "relu") for stack in (encoder, decoder)
        ]),
        "residual_scale": _same(given, "alpha", [
            stack.number("alpha", 1.0) for stack in (encoder, decoder)
        ]),
        "scale_embeddings": source,
        "scale_target_embeddings": target if source and not target else None,
        "tie_embeddings": tied or None,
        "tie_output": model.flag("tied_softmax") or None,
        **_ids(given.inside("data").inside("special_symbols")),
    }  # fmt: skip
    given.require_none_wrong()
    return several(found)


def _same(given: Options, name: str, pair: list[Any]) -> Any:
    if pair[0] != pair[1]:
        given.problems.append(
            f"{name}: {pair[0]} of the encoder and {pair[1]} of the decoder; one for both is "
            "supported"
        )
    return pair[0]


def _ids(symbols: Options) -> dict[str, int | None]:
    return {name: symbols.integer(name) for name in ("unk_id", "pad_id", "bos_id", "eos_id")}


LAYOUT = Layout(
    name="joeynmt",
    title="a Transformer of JoeyNMT",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "mask_fill": float("-inf"),
        "activation": "relu",
        "norm": "layer",
        "norm_eps": 1e-6,
        "output_bias": False,
        "unk_id": 0,
        "pad_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "add_source_eos": True,
    },
    required=("num_heads", "norm_placement", "scale_embeddings"),
    read_config=read_joey_options,
    model_types=("joeynmt",),
    reference="tfexport.export.reference.toolkits:JOEYNMT",
)
