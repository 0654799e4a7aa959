"""The RMSNorm Transformer: one query, key and value matrix a head, no biases, SiLU."""

from tfexport.model_src.checkpoint.keymap import Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout

# fmt: off
_WORDS = {
    "side": {"input": "source", "output": "target"},
    "stack": {"encoder_blocks": "encoder", "decoder_blocks": "decoder"},
    "qkv": {"Q": "q", "K": "k", "V": "v"},
    "attention": {"masked_multi_head_attention": "self_attn", "multi_head_attention": "cross_attn"},
    "encoder_norm": {"rms_norm1": "self_attn", "rms_norm2": "feed_forward"},
    "decoder_norm":
        {"rms_norm1": "self_attn", "rms_norm2": "cross_attn", "rms_norm3": "feed_forward"},
}

_TABLE: Entries = {
    "{side}_embedding.weight": "{side}_embedding.tokens.weight",
    "linear.{kind}": "output_proj.{kind}",
    "encoder_blocks.{layer}.multi_head_attention.attention_blocks.{head}.{qkv}_net.weight":
        "encoder.layers.{layer}.self_attn.{qkv}_proj.weight",
    "encoder_blocks.{layer}.multi_head_attention.W_net.weight":
        "encoder.layers.{layer}.self_attn.out_proj.weight",
    "decoder_blocks.{layer}.{attention}.attention_blocks.{head}.{qkv}_net.weight":
        "decoder.layers.{layer}.{attention}.{qkv}_proj.weight",
    "decoder_blocks.{layer}.{attention}.W_net.weight":
        "decoder.layers.{layer}.{attention}.out_proj.weight",
    "{stack}.{layer}.feed_forward.net.0.weight":
        "{stack}.layers.{layer}.feed_forward.up_proj.weight",
    "{stack}.{layer}.feed_forward.net.2.weight":
        "{stack}.layers.{layer}.feed_forward.down_proj.weight",
    "encoder_blocks.{layer}.{encoder_norm}.weight":
        "encoder.layers.{layer}.{encoder_norm}_residual.norm.weight",
    "decoder_blocks.{layer}.{decoder_norm}.weight":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.weight",
}
# fmt: on

LAYOUT = Layout(
    name="rmsnorm",
    title="the RMSNorm Transformer",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "scale_embeddings": False,
        "mask_fill": float("-inf"),
        "norm_placement": "post",
        "activation": "silu",
        "norm": "rms",
        "norm_eps": 1e-5,
        "dropout": 0.0,
    },
    required=("num_heads",),
    reference="tfexport.export.reference.rmsnorm",
)
