"""The Annotated Transformer, as the well-known notebook saves it (Rush 2018)."""

from tfexport.model_src.checkpoint.keymap import Layout, Rule, as_table

_ATTENTIONS = {"self_attn": "self_attn", "src_attn": "cross_attn"}
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_SUBLAYERS = {
    "encoder": ("self_attn", "feed_forward"),
    "decoder": ("self_attn", "cross_attn", "feed_forward"),
}
_NORM = {"a_2": "weight", "b_2": "bias"}
_LAYER = "{stack}.layers.{layer}."


def _rules() -> tuple[Rule, ...]:
    rules = []
    for kind in ("weight", "bias"):
        rules += [
            Rule(f"{_LAYER}{theirs}.linears.{i}.{kind}", (f"{_LAYER}{ours}.{projection}.{kind}",))
            for theirs, ours in _ATTENTIONS.items()
            for i, projection in enumerate(_PROJECTIONS)
        ]
        rules += [
            Rule(f"{_LAYER}feed_forward.w_1.{kind}", (f"{_LAYER}feed_forward.up_proj.{kind}",)),
            Rule(f"{_LAYER}feed_forward.w_2.{kind}", (f"{_LAYER}feed_forward.down_proj.{kind}",)),
            Rule(f"generator.proj.{kind}", (f"output_proj.{kind}",)),
        ]
    for theirs, ours in _NORM.items():
        rules += [
            Rule(
                f"{stack}.layers.{{layer}}.sublayer.{i}.norm.{theirs}",
                (f"{stack}.layers.{{layer}}.{sublayer}_residual.norm.{ours}",),
            )
            for stack, sublayers in _SUBLAYERS.items()
            for i, sublayer in enumerate(sublayers)
        ]
        rules.append(Rule(f"{{stack}}.norm.{theirs}", (f"{{stack}}.norm.{ours}",)))
    for theirs, ours in (("src", "source"), ("tgt", "target")):
        rules += [
            Rule(f"{theirs}_embed.0.lut.weight", (f"{ours}_embedding.tokens.weight",)),
            Rule(f"{theirs}_embed.1.pe", (f"{ours}_embedding.positions.table",), as_table),
        ]
    return tuple(rules)


ANNOTATED = Layout(
    name="annotated",
    title="The Annotated Transformer",
    rules=_rules(),
    defaults={
        "scale_embeddings": True,
        "mask_fill": -1e9,
        "norm_placement": "pre",
        "activation": "relu",
        "norm": "annotated",
        "norm_eps": 1e-6,
    },
    required=("num_heads",),
)
