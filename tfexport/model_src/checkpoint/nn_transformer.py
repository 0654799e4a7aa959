"""The stock torch.nn.Transformer, named as in PyTorch's translation tutorial.

    transformer.*, src_tok_emb.embedding.weight, tgt_tok_emb.embedding.weight,
    positional_encoding.pos_embedding, generator.*

Other names come here through the config's ``rename`` table.
"""

from tfexport.model_src.checkpoint.keymap import Layout, Rule, as_table, thirds


def _layer_rules() -> list[Rule]:
    ours = "{stack}.layers.{layer}."
    theirs = f"transformer.{ours}"
    rules = []
    for their_attn, our_attn in (("self_attn", "self_attn"), ("multihead_attn", "cross_attn")):
        for kind in ("weight", "bias"):
            packed = tuple(f"{ours}{our_attn}.{part}_proj.{kind}" for part in "qkv")
            rules += [
                Rule(f"{theirs}{their_attn}.in_proj_{kind}", packed, thirds),
                Rule(
                    f"{theirs}{their_attn}.out_proj.{kind}", (f"{ours}{our_attn}.out_proj.{kind}",)
                ),
            ]
    for kind in ("weight", "bias"):
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
                    f"transformer.{stack}.layers.{{layer}}.norm{number}.{kind}",
                    (f"{stack}.layers.{{layer}}.{sublayer}_residual.norm.{kind}",),
                )
                for kind in ("weight", "bias")
            ]
    return rules


NN_TRANSFORMER = Layout(
    name="nn-transformer",
    title="torch.nn.Transformer",
    rules=(
        Rule("src_tok_emb.embedding.weight", ("source_embedding.tokens.weight",)),
        Rule("tgt_tok_emb.embedding.weight", ("target_embedding.tokens.weight",)),
        Rule(
            "positional_encoding.pos_embedding",
            ("source_embedding.positions.table", "target_embedding.positions.table"),
            as_table,
        ),
        *_layer_rules(),
        Rule("transformer.{stack}.norm.weight", ("{stack}.norm.weight",)),
        Rule("transformer.{stack}.norm.bias", ("{stack}.norm.bias",)),
        Rule("generator.weight", ("output_proj.weight",)),
        Rule("generator.bias", ("output_proj.bias",)),
    ),
    defaults={
        "scale_embeddings": True,
        "mask_fill": float("-inf"),
        "norm_placement": "post",
        "activation": "relu",
        "norm_eps": 1e-5,
        "norm": "layer",
    },
    required=("num_heads",),
)
