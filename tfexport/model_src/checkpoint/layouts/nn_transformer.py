"""torch.nn.Transformer, the stock one.

Other names come here through the config's ``rename`` table.
"""

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, THIRDS, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout

# fmt: off
WORDS = {
    "prefix": {"transformer.": "", "": ""},  # inside its own model, or bare
    "attention": {"self_attn": "self_attn", "multihead_attn": "cross_attn"},
    # The second norm of an encoder layer closes the feed-forward, of a decoder layer the
    # cross-attention.
    "encoder_norm": {"norm1": "self_attn", "norm2": "feed_forward"},
    "decoder_norm": {"norm1": "self_attn", "norm2": "cross_attn", "norm3": "feed_forward"},
}

_STOCK: Entries = {
    "src_tok_emb.embedding.weight": "source_embedding.tokens.weight",
    "tgt_tok_emb.embedding.weight": "target_embedding.tokens.weight",
    "positional_encoding.pos_embedding": ("{side}_embedding.positions.table", POSITION_TABLE),
    "generator.{kind}": "output_proj.{kind}",
    "{prefix}{stack}.norm.{kind}": "{stack}.norm.{kind}",
    "{prefix}{stack}.layers.{layer}.{attention}.in_proj_{kind}":
        ("{stack}.layers.{layer}.{attention}.{qkv}_proj.{kind}", THIRDS),
    "{prefix}{stack}.layers.{layer}.{attention}.{qkv}_proj_{kind}":
        "{stack}.layers.{layer}.{attention}.{qkv}_proj.{kind}",
    "{prefix}{stack}.layers.{layer}.{attention}.out_proj.{kind}":
        "{stack}.layers.{layer}.{attention}.out_proj.{kind}",
    "{prefix}{stack}.layers.{layer}.linear1.{kind}":
        "{stack}.layers.{layer}.feed_forward.up_proj.{kind}",
    "{prefix}{stack}.layers.{layer}.linear2.{kind}":
        "{stack}.layers.{layer}.feed_forward.down_proj.{kind}",
    "{prefix}encoder.layers.{layer}.{encoder_norm}.{kind}":
        "encoder.layers.{layer}.{encoder_norm}_residual.norm.{kind}",
    "{prefix}decoder.layers.{layer}.{decoder_norm}.{kind}":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.{kind}",
}
# fmt: on

DEFAULTS = {
    "scale_embeddings": True,
    "mask_fill": float("-inf"),
    "norm_placement": "post",
    "activation": "relu",
    "norm_eps": 1e-5,
    "norm": "layer",
}

LAYOUT = Layout(
    name="nn-transformer",
    title="torch.nn.Transformer",
    table=KeyTable(_STOCK, WORDS),
    defaults=DEFAULTS,
    required=("num_heads",),
    reference="tfexport.export.reference.nn_transformer:STOCK",
)
