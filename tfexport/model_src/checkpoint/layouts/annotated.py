"""The Annotated Transformer, as the well-known notebook saves it (Rush 2018)."""

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout

# fmt: off
_WORDS = {
    "side": {"src": "source", "tgt": "target"},
    "attention": {"self_attn": "self_attn", "src_attn": "cross_attn"},
    "linear": {"0": "q", "1": "k", "2": "v", "3": "out"},
    "norm_kind": {"a_2": "weight", "b_2": "bias"},
    "encoder_norm": {"0": "self_attn", "1": "feed_forward"},
    "decoder_norm": {"0": "self_attn", "1": "cross_attn", "2": "feed_forward"},
}

_TABLE: Entries = {
    "{side}_embed.0.lut.weight": "{side}_embedding.tokens.weight",
    "{side}_embed.1.pe": ("{side}_embedding.positions.table", POSITION_TABLE),
    "generator.proj.{kind}": "output_proj.{kind}",
    "{stack}.norm.{norm_kind}": "{stack}.norm.{norm_kind}",
    "{stack}.layers.{layer}.{attention}.linears.{linear}.{kind}":
        "{stack}.layers.{layer}.{attention}.{linear}_proj.{kind}",
    "{stack}.layers.{layer}.feed_forward.w_1.{kind}":
        "{stack}.layers.{layer}.feed_forward.up_proj.{kind}",
    "{stack}.layers.{layer}.feed_forward.w_2.{kind}":
        "{stack}.layers.{layer}.feed_forward.down_proj.{kind}",
    "encoder.layers.{layer}.sublayer.{encoder_norm}.norm.{norm_kind}":
        "encoder.layers.{layer}.{encoder_norm}_residual.norm.{norm_kind}",
    "decoder.layers.{layer}.sublayer.{decoder_norm}.norm.{norm_kind}":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.{norm_kind}",
}
# fmt: on

LAYOUT = Layout(
    name="annotated",
    title="The Annotated Transformer",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "scale_embeddings": True,
        "mask_fill": -1e9,
        "norm_placement": "pre",
        "activation": "relu",
        "norm": "annotated",
        "norm_eps": 1e-6,
    },
    required=("num_heads",),
    reference="tfexport.export.reference.annotated",
)
