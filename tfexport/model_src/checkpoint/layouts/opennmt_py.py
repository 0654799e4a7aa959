"""OpenNMT-py's Transformer (Klein et al. 2017), versions 2 and 3."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tfexport.model_src.checkpoint.keymap import POSITION_TABLE, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.toolkit_options import Options, refused_keys, several, without

# fmt: off
_WORDS = {
    "side": {"encoder": "source", "decoder": "target"},
    "layers": {"encoder.transformer": "encoder.layers", "decoder.transformer_layers":
               "decoder.layers"},
    "linear": {"keys": "k", "values": "v", "query": "q"},
    "matrix": {"w_1": "up", "w_2": "down", "w_3": "gate"},
    "decoder_norm": {"1": "self_attn", "2": "cross_attn"},
    "relative": {"relative_attention_bias": "", "relative_positions_embeddings": ""},
    "index": {"": "", "0.": ""},  # version 2 has the generator's projection in a list
}
_TABLE: Entries = {
    "{side}.embeddings.make_embedding.emb_luts.0.weight": "{side}_embedding.tokens.weight",
    "{side}.embeddings.make_embedding.pe.pe": ("{side}_embedding.positions.table", POSITION_TABLE),
    "{layers}.{layer}.self_attn.linear_{linear}.{kind}":
        "{layers}.{layer}.self_attn.{linear}_proj.{kind}",
    "{layers}.{layer}.self_attn.final_linear.{kind}": "{layers}.{layer}.self_attn.out_proj.{kind}",
    "{layers}.{layer}.self_attn.{relative}.weight": "{layers}.{layer}.self_attn.relative.table",
    "decoder.transformer_layers.{layer}.context_attn.linear_{linear}.{kind}":
        "decoder.layers.{layer}.cross_attn.{linear}_proj.{kind}",
    "decoder.transformer_layers.{layer}.context_attn.final_linear.{kind}":
        "decoder.layers.{layer}.cross_attn.out_proj.{kind}",
    "{layers}.{layer}.feed_forward.{matrix}.{kind}":
        "{layers}.{layer}.feed_forward.{matrix}_proj.{kind}",
    "{layers}.{layer}.feed_forward.layer_norm.{kind}":
        "{layers}.{layer}.feed_forward_residual.norm.{kind}",
    "encoder.transformer.{layer}.layer_norm.{kind}":
        "encoder.layers.{layer}.self_attn_residual.norm.{kind}",
    "decoder.transformer_layers.{layer}.layer_norm_{decoder_norm}.{kind}":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.{kind}",
    "{stack}.layer_norm.{kind}": "{stack}.norm.{kind}",
    "generator.{index}{kind}": "output_proj.{kind}",
}
# fmt: on

_TYPES = {name: name for name in ("transformer",)}
_ATTENTIONS = {name: name for name in ("scaled-dot", "scaled-dot-flash")}
_NORMS = {"standard": "layer", "rms": "rms"}
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "gated-gelu": "gelu",
    "gated-silu": "silu",
}
_POSITIONS = {"SinusoidalInterleaved": "sinusoidal", "SinusoidalConcat": "sinusoidal_t2t"}
_REFUSED_OPTIONS = {
    "copy_attn": "a generator that copies words",
    "parallel_residual": "attention and feed-forward side by side",
    "multiquery": "keys and values of fewer heads than queries",
    "num_kv": "keys and values of fewer heads than queries",
    "sliding_window": "attention to a window",
    "num_experts": "a mixture of experts",
    "lora_layers": "a model with LoRA matrices; merge them first (tools/lora_weights.py), which",
    "lora_embedding": "a model with LoRA matrices; merge them first (tools/lora_weights.py), which",
    "quant_layers": "a quantized model",
    "n_src_feats": "a source with features",
}
_REFUSED_KEYS = {
    r"\.emb_luts\.[1-9]|make_embedding\.mlp\.": "a source with features",
    r"\.lora_[AB]$": "a model with LoRA matrices that are not merged (tools/lora_weights.py)",
    r"^generator\.(linear|linear_copy)\.": "a generator that copies words",
    r"\.(a_2|b_2)$": "the norm of versions before 1",
    r"self_attn\.(average_layer|gating_layer)\.": "average attention",
    r"\.(qweight|qzeros|scales|SCB)$": "a quantized layer",
    r"\.layer_norm_res\.": "attention and feed-forward side by side",
    r"feed_forward\.(gate|experts)\.": "a mixture of experts",
}


def read_opennmt_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config values from the ``opt`` of a checkpoint, and the ids of its special words.

    Raises:
        ConfigError: options are not supported; all are listed.
    """
    given = Options("OpenNMT-py", values.get("opt"))
    given.refuse(_REFUSED_OPTIONS)
    for name, known in (
        ("encoder_type", _TYPES),
        ("decoder_type", _TYPES),
        ("model_task", {"seq2seq": "seq2seq"}),
        ("self_attn_type", _ATTENTIONS),
        ("generator_function", {"softmax": "softmax"}),
    ):
        given.choice(name, known, next(iter(known)))
    found = {
        "num_heads": given.integer("heads"),
        "d_ff": given.integer("transformer_ff"),
        "norm": given.choice("layer_norm", _NORMS, "standard"),
        "norm_eps": given.number("norm_eps", 1e-6),
        "activation": given.choice("pos_ffn_activation_fn", _ACTIVATIONS, "relu"),
        "tie_embeddings": given.flag("share_embeddings") or None,
        "tie_output": given.flag("share_decoder_embeddings") or None,
        **_positions(given),
    }
    given.require_none_wrong()
    ids = values.get("ids")
    return several(found) | (dict(ids) if isinstance(ids, Mapping) else {})


def _positions(given: Options) -> dict[str, Any]:
    """Embeddings are scaled where positions are added to them, and only there."""
    added = given.flag("position_encoding")
    found: dict[str, Any] = {"scale_embeddings": added, "positions": "none"}
    if added:
        kind = "position_encoding_type"
        found["positions"] = given.choice(kind, _POSITIONS, "SinusoidalInterleaved")
    return found | _relative(given)


def _relative(given: Options) -> dict[str, Any]:
    """Relative positions; the sign of one number decides their kind."""
    distance = given.integer("max_relative_positions", 0) or 0
    if (given.integer("relative_positions_buckets", 0) or 0) > 0:
        return {"relative_positions": "buckets_every_layer", "relative_max_distance": distance}
    if distance > 0:
        return {"relative_positions": "shaw", "relative_max_distance": distance}
    if distance == -1:
        if not given.flag("rotary_interleave", True):
            given.problems.append("rotary_interleave: false is not supported")
        if (base := given.number("rotary_theta", 1e4)) != 1e4:
            given.problems.append(f"rotary_theta: {base} is not supported; only 10000 is")
        given.refuse({"rotary_dim": "turning a part of a head"})
        return {"relative_positions": "rotary"}
    if distance:
        given.problems.append(f"max_relative_positions: {distance}: ALiBi is not supported")
    return {}


def prepare_opennmt(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Refuse tensors of what is not supported; name the gate of a gated feed-forward.

    OpenNMT-py calls the gate ``w_1`` and the other half ``w_3``, so the two are exchanged.
    """
    read, problems = refused_keys(tensors, _REFUSED_KEYS)
    kept = without(tensors, read)
    for name in [name for name in kept if ".feed_forward.w_3." in name]:
        other = name.replace(".w_3.", ".w_1.")
        if other in kept:
            kept[name], kept[other] = kept[other], kept[name]
            read |= {name: (other,), other: (name,)}
    tables = [name for name in kept if name.endswith(".relative_attention_bias.weight")]
    values = {"relative_buckets": len(kept[tables[0]])} if tables and kept[tables[0]].dim() else {}
    return Prepared(kept, read, values, tuple(problems))


LAYOUT = Layout(
    name="opennmt-py",
    title="a Transformer of OpenNMT-py",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "mask_fill": -1e18,
        "norm_placement": "pre",
        "activation": "relu",
        "norm": "layer",
        "norm_eps": 1e-6,
    },
    required=("num_heads",),
    read_config=read_opennmt_options,
    model_types=("opennmt-py",),
    needs_config=True,
    prepare=prepare_opennmt,
    reference="tfexport.export.reference.toolkits:OPENNMT_PY",
)
