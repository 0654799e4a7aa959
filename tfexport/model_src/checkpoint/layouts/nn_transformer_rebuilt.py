"""torch.nn.Transformer rebuilt around shared layers: one a stack (``encoder.layer.*``)."""

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, THIRDS, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts.nn_transformer import DEFAULTS, WORDS

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

LAYOUT = Layout(
    name="nn-transformer-rebuilt",
    title="torch.nn.Transformer rebuilt around shared layers",
    table=KeyTable(_REBUILT, WORDS),
    defaults={
        **DEFAULTS,
        "share_encoder_layers": True,
        "share_decoder_layers": True,
        "positions_every_layer": True,
    },
    required=("num_heads", "num_encoder_layers", "num_decoder_layers"),
    reference="tfexport.export.reference.nn_transformer:REBUILT",
)
