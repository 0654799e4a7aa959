"""torch.nn.Transformer: the stock one, and one rebuilt around shared layers.

Other names come here through the config's ``rename`` table.
"""

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, THIRDS, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout

# fmt: off
_WORDS = {
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

_DEFAULTS = {
    "scale_embeddings": True,
    "mask_fill": float("-inf"),
    "norm_placement": "post",
    "activation": "relu",
    "norm_eps": 1e-5,
    "norm": "layer",
}

NN_TRANSFORMER = Layout(
    name="nn-transformer",
    title="torch.nn.Transformer",
    table=KeyTable(_STOCK, _WORDS),
    defaults=_DEFAULTS,
    required=("num_heads",),
    reference="stock",
    precedence=2,
)


# One ``layer`` for all (``encoder.layer.*``).


# fmt: off
_REBUILT: Entries = {
    "src_tok_emb.embedding.weight": "source_embedding.tokens.weight",
    "tgt_tok_emb.embedding.weight": "target_embedding.tokens.weight",
    "positional_encoding.pos_embedding": ("encoder.positions.table", POSITION_TABLE),
    "generator.{kind}": "output_proj.{kind}",
    "{prefix}{stack}.norm.{kind}": "{stack}.norm.{kind}",
    "{prefix}{stack}.layer.{attention}.in_proj_{kind}":
        ("{stack}.layers.0.{attention}.{qkv}_proj.{kind}", THIRDS),
    "{prefix}{stack}.layer.{attention}.{qkv}_proj_{kind}":
        "{stack}.layers.0.{attention}.{qkv}_proj.{kind}",
    "{prefix}{stack}.layer.{attention}.out_proj.{kind}":
        "{stack}.layers.0.{attention}.out_proj.{kind}",
    "{prefix}{stack}.layer.linear1.{kind}": "{stack}.layers.0.feed_forward.up_proj.{kind}",
    "{prefix}{stack}.layer.linear2.{kind}": "{stack}.layers.0.feed_forward.down_proj.{kind}",
    "{prefix}encoder.layer.{encoder_norm}.{kind}":
        "encoder.layers.0.{encoder_norm}_residual.norm.{kind}",
    "{prefix}decoder.layer.{decoder_norm}.{kind}":
        "decoder.layers.0.{decoder_norm}_residual.norm.{kind}",
}
# fmt: on

NN_TRANSFORMER_REBUILT = Layout(
    name="nn-transformer-rebuilt",
    title="torch.nn.Transformer rebuilt around shared layers",
    table=KeyTable(_REBUILT, _WORDS),
    defaults={
        **_DEFAULTS,
        "share_encoder_layers": True,
        "share_decoder_layers": True,
        "positions_every_layer": True,
    },
    required=("num_heads", "num_encoder_layers", "num_decoder_layers"),
    reference="rebuilt",
    precedence=1,
)
