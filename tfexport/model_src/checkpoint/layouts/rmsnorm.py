"""The RMSNorm Transformer: one query, key and value matrix a head, no biases, SiLU."""

from tfexport.model_src.checkpoint.keymap import Layout, Rule

_STACKS = {
    "encoder": ({"multi_head_attention": "self_attn"}, ("self_attn", "feed_forward")),
    "decoder": (
        {"masked_multi_head_attention": "self_attn", "multi_head_attention": "cross_attn"},
        ("self_attn", "cross_attn", "feed_forward"),
    ),
}


def _rules() -> tuple[Rule, ...]:
    rules = [
        Rule("input_embedding.weight", ("source_embedding.tokens.weight",)),
        Rule("output_embedding.weight", ("target_embedding.tokens.weight",)),
        Rule("linear.weight", ("output_proj.weight",)),
        Rule("linear.bias", ("output_proj.bias",)),
    ]
    for stack, (attentions, sublayers) in _STACKS.items():
        theirs, ours = f"{stack}_blocks.{{layer}}.", f"{stack}.layers.{{layer}}."
        for their_attn, our_attn in attentions.items():
            rules += [
                Rule(
                    f"{theirs}{their_attn}.attention_blocks.{{head}}.{part.upper()}_net.weight",
                    (f"{ours}{our_attn}.{part}_proj.weight",),
                )
                for part in "qkv"
            ]
            rules.append(
                Rule(f"{theirs}{their_attn}.W_net.weight", (f"{ours}{our_attn}.out_proj.weight",))
            )
        rules += [
            Rule(f"{theirs}rms_norm{i}.weight", (f"{ours}{sublayer}_residual.norm.weight",))
            for i, sublayer in enumerate(sublayers, start=1)
        ]
        rules += [
            Rule(f"{theirs}feed_forward.net.0.weight", (f"{ours}feed_forward.up_proj.weight",)),
            Rule(f"{theirs}feed_forward.net.2.weight", (f"{ours}feed_forward.down_proj.weight",)),
        ]
    return tuple(rules)


RMSNORM = Layout(
    name="rmsnorm",
    title="the RMSNorm Transformer",
    rules=_rules(),
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
)
