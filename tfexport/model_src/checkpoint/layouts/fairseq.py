"""fairseq's Transformers and BARTs (Ott et al. 2019), of all versions."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tfexport.model_src.checkpoint.keymap import THIRDS, Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.toolkit_options import Options, refused_keys, several, without

_PAD = 1  # of every dictionary

# fmt: off
_WORDS = {
    "side": {"encoder": "source", "decoder": "target"},
    "attention": {"self_attn": "self_attn", "encoder_attn": "cross_attn"},
    "linear": {"fc1": "up", "fc2": "down"},
    "norm_of": {"self_attn_layer_norm": "self_attn", "encoder_attn_layer_norm": "cross_attn",
                "final_layer_norm": "feed_forward"},
    "encoder_norm": {"0": "self_attn", "1": "feed_forward"},
    "decoder_norm": {"0": "self_attn", "1": "cross_attn", "2": "feed_forward"},
}
_TABLE: Entries = {
    "{side}.embed_tokens.weight": "{side}_embedding.tokens.weight",
    "{side}.embed_positions.weight": "{side}_embedding.positions.table",
    "{side}.layernorm_embedding.{kind}": "{side}_embedding.norm.{kind}",
    "{stack}.layer_norm.{kind}": "{stack}.norm.{kind}",
    "decoder.output_projection.{kind}": "output_proj.{kind}",
    "{stack}.layers.{layer}.{attention}.{qkv}_proj.{kind}":
        "{stack}.layers.{layer}.{attention}.{qkv}_proj.{kind}",
    "{stack}.layers.{layer}.{attention}.out_proj.{kind}":
        "{stack}.layers.{layer}.{attention}.out_proj.{kind}",
    "{stack}.layers.{layer}.{linear}.{kind}":
        "{stack}.layers.{layer}.feed_forward.{linear}_proj.{kind}",
    "{stack}.layers.{layer}.{norm_of}.{kind}":
        "{stack}.layers.{layer}.{norm_of}_residual.norm.{kind}",
    # Versions before 0.7.
    "decoder.embed_out": "output_proj.weight",
    "{stack}.layers.{layer}.{attention}.in_proj_{kind}":
        ("{stack}.layers.{layer}.{attention}.{qkv}_proj.{kind}", THIRDS),
    "encoder.layers.{layer}.layer_norms.{encoder_norm}.{kind}":
        "encoder.layers.{layer}.{encoder_norm}_residual.norm.{kind}",
    "decoder.layers.{layer}.layer_norms.{decoder_norm}.{kind}":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.{kind}",
}
# fmt: on

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
_REFUSED_OPTIONS = {
    "adaptive_input": "an adaptive input",
    "adaptive_softmax_cutoff": "an adaptive softmax",
    "no_cross_attention": "a decoder without cross-attention",
    "cross_self_attention": "attention to source and target at once",
    "base_layers": "a mixture of experts",
    "char_inputs": "input of characters",
    "scale_attn": "NormFormer's norm of attention",
    "scale_fc": "NormFormer's norm of the feed-forward",
    "scale_heads": "NormFormer's scale of heads",
    "scale_resids": "NormFormer's scale of residuals",
    "encoder_xformers_att_config": "attention of xFormers",
    "decoder_xformers_att_config": "attention of xFormers",
}
_REFUSED_KEYS = {
    r"adaptive_softmax\.|embed_tokens\.embeddings\.": "an adaptive softmax or input",
    r"project_(in|out)_dim\.": "an embedding of another width than the layers",
    r"\.(attn_ln|ffn_layernorm)\.|\.(c_attn|w_resid)$": "NormFormer",
    r"weight_fake_quant|_scale$|_zero_point$|\.activation_post_process": "a quantized layer",
    r"\.bias_[kv]$": "a learned key or value in addition to those of the words",
    r"^models\.": "a model with separate weights for several language pairs",
}
# Markers of a version, tables that are computed, copies of the weights for a fast path of torch,
# and heads of other tasks.
_UNUSED = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))"
    r"|encoder\.layers\.\d+\.((in|out)_proj|fc[12])_(weight|bias)"
    r"|classification_heads\..*"
)
_OTHER_KIND = re.compile(r"_lm|_moe|non_?autoregressive|levenshtein|s2t|insertion|iterative")


def _flat(args: Any) -> Any:
    """Options as one group, of a file that has a group for each stack."""
    if not isinstance(args, Mapping):
        return args
    flat = dict(args)
    for stack in ("encoder", "decoder"):
        group = args.get(stack)
        flat |= {f"{stack}_{k}": v for k, v in group.items()} if isinstance(group, Mapping) else {}
    return flat


def read_fairseq_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config values from the ``args`` of a checkpoint, or the ``cfg`` of its model.

    Raises:
        ConfigError: options are not supported; all are listed.
    """
    given = Options("fairseq", _flat(values.get("args")))
    name = given.values.get("arch") or given.values.get("_name") or "transformer"
    if not re.match(r"(m?bart|transformer|multilingual_transformer)", str(name)) or (
        _OTHER_KIND.search(str(name))
    ):
        given.problems.append(f"arch: {name!s:.60} is not a Transformer of encoder and decoder")
    given.refuse(_REFUSED_OPTIONS)
    width, ff, heads = (
        [given.integer(f"{stack}_{size}") for stack in ("encoder", "decoder")]
        for size in ("embed_dim", "ffn_embed_dim", "attention_heads")
    )
    if None not in width and width[0] != width[1]:
        given.problems.append(f"a decoder of another width ({width[1]}) than the encoder's")
    before = [given.flag(f"{stack}_normalize_before") for stack in ("encoder", "decoder")]
    placements = ["pre" if each else "post" for each in before]
    shared = given.flag("share_all_embeddings")
    found = {
        "d_model": width[0],
        "d_ff": ff[0],
        "num_heads": heads[0],
        "decoder_num_heads": heads[1] if heads[1] != heads[0] else None,
        "norm_placement": placements[0],
        "decoder_norm_placement": placements[1] if placements[1] != placements[0] else None,
        "activation": given.choice("activation_fn", _ACTIVATIONS, "relu"),
        "scale_embeddings": not given.flag("no_scale_embedding"),
        "tie_embeddings": shared or None,
        "tie_output": shared or given.flag("share_decoder_input_output_embed") or None,
        **_positions(given),
    }
    given.require_none_wrong()
    return several(found)


def _positions(given: Options) -> dict[str, Any]:
    if given.flag("no_token_positional_embeddings"):
        return {"positions": "none", "max_positions": 1024}
    learned = [given.flag(f"{stack}_learned_pos") for stack in ("encoder", "decoder")]
    if learned[0] != learned[1]:
        given.problems.append("learned positions on only one side are not supported")
    if learned[0]:
        return {"positions": "learned", "first_position": 0}  # unread rows are cut off the table
    longest = [given.integer(f"max_{side}_positions", 1024) or 1 for side in ("source", "target")]
    return {"positions": "sinusoidal_t2t", "max_positions": max(longest)}


def prepare_fairseq(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Leave out unused tensors, and the rows of learned positions that are never read."""
    read, problems = refused_keys(tensors, _REFUSED_KEYS)
    read |= {name: () for name in tensors if _UNUSED.fullmatch(name)}
    notes = []
    for stack, oldest in (("encoder", 2), ("decoder", 3)):
        norms = [name for name in tensors if name.startswith(f"{stack}.layer_norm.")]
        version = tensors.get(f"{stack}.version")
        if norms and version is not None and version.numel() and version.flatten()[0] < oldest:
            read |= dict.fromkeys(norms, ())
            notes.append(f"the {stack}'s last norm is omitted, as fairseq does for its version")
    kept = without(tensors, read)
    tables = [f"{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    learned = {name: kept[name][_PAD + 1 :] for name in tables if name in kept}
    rows = min((len(table) for table in learned.values() if table.dim()), default=0)
    kept |= {name: table[:rows] for name, table in learned.items()}
    read |= {name: (name,) for name in learned}
    values = {"positions": "learned", "first_position": 0} if learned else {}
    return Prepared(kept, read, values, tuple(problems), tuple(notes))


LAYOUT = Layout(
    name="fairseq",
    title="a Transformer of fairseq",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "scale_embeddings": True,
        "mask_fill": float("-inf"),
        "norm_placement": "post",
        "activation": "relu",
        "norm": "layer",
        "norm_eps": 1e-5,
        "positions": "sinusoidal_t2t",
        "first_position": _PAD + 1,
        "max_positions": 1024,
        "bos_id": 0,
        "pad_id": _PAD,
        "eos_id": 2,
        "unk_id": 3,
        "start_id": 2,
        "add_source_eos": True,
    },
    required=("num_heads",),
    read_config=read_fairseq_options,
    model_types=("fairseq",),
    needs_config=True,
    prepare=prepare_fairseq,
    reference="tfexport.export.reference.toolkits:FAIRSEQ",
)
