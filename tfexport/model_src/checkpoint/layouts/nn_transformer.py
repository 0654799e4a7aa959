"""The stock torch.nn.Transformer, bare or named as in PyTorch's translation tutorial.

    transformer.*, src_tok_emb.embedding.weight, tgt_tok_emb.embedding.weight,
    positional_encoding.pos_embedding, generator.*

Other names come here through the config's ``rename`` table. The same names with one ``layer`` for
all (``encoder.layer.*``) are those of an nn.Transformer rebuilt around shared layers.
"""

from tfexport.model_src.checkpoint.keymap import Layout, Rule, as_table, thirds

_KINDS = ("weight", "bias")


def _layer_rules(theirs: str) -> list[Rule]:
    """The rules of one layer, whose keys start with ``theirs``."""
    ours = "{stack}.layers.{layer}." if "{layer}" in theirs else "{stack}.layers.0."
    rules = []
    for their_attn, our_attn in (("self_attn", "self_attn"), ("multihead_attn", "cross_attn")):
        attention = f"{theirs}{their_attn}."
        for kind in _KINDS:
            packed = tuple(f"{ours}{our_attn}.{part}_proj.{kind}" for part in "qkv")
            rules += [
                Rule(f"{attention}in_proj_{kind}", packed, thirds),
                Rule(f"{attention}out_proj.{kind}", (f"{ours}{our_attn}.out_proj.{kind}",)),
            ]
        rules += [
            Rule(f"{attention}{part}_proj_{kind}", (f"{ours}{our_attn}.{part}_proj.{kind}",))
            for part in "qkv"
            for kind in _KINDS
        ]
    for kind in _KINDS:
        rules += [
            Rule(f"{theirs}linear1.{kind}", (f"{ours}feed_forward.up_proj.{kind}",)),
            Rule(f"{theirs}linear2.{kind}", (f"{ours}feed_forward.down_proj.{kind}",)),
        ]
    # The second norm of an encoder layer closes the feed-forward, of a decoder layer the
    # cross-attention, so norms are written out for each stack.
    for stack, sublayers in {
        "encoder": ("self_attn", "feed_forward"),
        "decoder": ("self_attn", "cross_attn", "feed_forward"),
    }.items():
        for number, sublayer in enumerate(sublayers, start=1):
            rules += [
                Rule(
                    f"{theirs}norm{number}.{kind}".replace("{stack}", stack),
                    (f"{ours}{sublayer}_residual.norm.{kind}".replace("{stack}", stack),),
                )
                for kind in _KINDS
            ]
    return rules


def _rules(layer: str) -> tuple[Rule, ...]:
    edges = [
        Rule("src_tok_emb.embedding.weight", ("source_embedding.tokens.weight",)),
        Rule("tgt_tok_emb.embedding.weight", ("target_embedding.tokens.weight",)),
        *(Rule(f"generator.{kind}", (f"output_proj.{kind}",)) for kind in _KINDS),
    ]
    stacks = []
    for prefix in ("transformer.", ""):  # inside a model of its own, or bare
        stacks += _layer_rules(f"{prefix}{{stack}}.{layer}")
        stacks += [Rule(f"{prefix}{{stack}}.norm.{k}", (f"{{stack}}.norm.{k}",)) for k in _KINDS]
    return (*edges, *stacks)


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
    rules=(
        *_rules("layers.{layer}."),
        Rule(
            "positional_encoding.pos_embedding",
            ("source_embedding.positions.table", "target_embedding.positions.table"),
            as_table,
        ),
    ),
    defaults=_DEFAULTS,
    required=("num_heads",),
)

REBUILT = Layout(
    name="nn-transformer-rebuilt",
    title="torch.nn.Transformer rebuilt around shared layers",
    rules=(
        *_rules("layer."),
        Rule("positional_encoding.pos_embedding", ("encoder.positions.table",), as_table),
    ),
    defaults={
        **_DEFAULTS,
        "share_encoder_layers": True,
        "share_decoder_layers": True,
        "positions_every_layer": True,
    },
    required=("num_heads", "num_encoder_layers", "num_decoder_layers"),
)
