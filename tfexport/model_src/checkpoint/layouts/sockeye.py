"""Sockeye's Transformer (Hieber et al. 2022), version 3."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tfexport.model_src.checkpoint.keymap import THIRDS, Entries, KeyTable, Split
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.toolkit_options import Options, refused_keys, several, without

_STACKS = ("encoder", "decoder")

# fmt: off
_WORDS = {
    "side": {"encoder": "source", "decoder": "target"},
    "attention": {"self_attention": "self_attn", "autoregr_layer": "self_attn",
                  "enc_attention": "cross_attn"},
    "pair": {"k": "k", "v": "v"},
    "matrix": {"ff1": "up", "ff2": "down", "linear": "up", "gate": "gate"},
    "place": {"pre": "", "post": ""},
    "sublayer": {"self_attention": "self_attn", "autoregr_layer": "self_attn",
                 "enc_attention": "cross_attn", "ff": "feed_forward"},
}
_TABLE: Entries = {
    "embedding_{end}.embedding.weight": "{end}_embedding.tokens.weight",
    "{side}.pos_embedding.weight": "{side}_embedding.positions.table",
    "{stack}.final_process.layer_norm.{kind}": "{stack}.norm.{kind}",
    "output_layer.{kind}": "output_proj.{kind}",
    "{stack}.layers.{layer}.{attention}.ff_in.weight":
        ("{stack}.layers.{layer}.{attention}.{qkv}_proj.weight", THIRDS),
    "{stack}.layers.{layer}.{attention}.ff_q.weight":
        "{stack}.layers.{layer}.{attention}.q_proj.weight",
    "{stack}.layers.{layer}.{attention}.ff_kv.weight":
        ("{stack}.layers.{layer}.{attention}.{pair}_proj.weight", Split(2)),
    "{stack}.layers.{layer}.{attention}.ff_out.weight":
        "{stack}.layers.{layer}.{attention}.out_proj.weight",
    "{stack}.layers.{layer}.{place}_{sublayer}.layer_norm.{kind}":
        "{stack}.layers.{layer}.{sublayer}_residual.norm.{kind}",
    "{stack}.layers.{layer}.ff.{matrix}.{kind}":
        "{stack}.layers.{layer}.feed_forward.{matrix}_proj.{kind}",
}
# fmt: on

_ACTIVATIONS = {"relu": "relu", "swish1": "silu", "gelu": "gelu"}
_POSITIONS = {"fixed": "sinusoidal_halves", "learned": "learned"}
_REFUSED = {
    "lhuc": "LHUC (learning hidden unit contribution)",
    "neural_vocab_selection": "neural vocabulary selection",
}
_REFUSED_STACK = {
    "use_lhuc": "LHUC (learning hidden unit contribution)",
    "block_prepended_cross_attention": "blocking of what is prepended to a source",
}
_REFUSED_KEYS = {
    r"\.factor_embeds\.|^factor_output_layers\.": "a source or target with factors",
    r"\.autoregr_layer\.(forget_gate|linear)\b": "a recurrent decoder (SSRU)",
    r"\.lhuc\.": "LHUC (learning hidden unit contribution)",
    r"^nvs\.": "neural vocabulary selection",
    r"scaling$|\.scale$|\.zero_point$|_packed_params": "a quantized layer",
}


def read_sockeye_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config values from a ``config``.

    Raises:
        ConfigError: options are not supported; all are listed.
    """
    given = Options("Sockeye", values)
    given.refuse(_REFUSED)
    given.choice("dtype", dict.fromkeys(("float32", "float16", "bfloat16"), 0), "float32")
    stacks = [given.inside(f"config_{stack}") for stack in _STACKS]
    for stack in stacks:
        stack.refuse(_REFUSED_STACK)
        stack.choice("decoder_type", {"transformer": 1}, "transformer")
    for side in ("source", "target"):
        given.inside(f"config_embed_{side}").refuse({"factor_configs": f"a {side} with factors"})
    heads = [stack.integer("attention_heads") for stack in stacks]
    placements = [_placement(stack) for stack in stacks]
    tied = str(given.values.get("weight_tying_type", "src_trg_softmax"))
    found = {
        "num_heads": heads[0],
        "decoder_num_heads": heads[1] if heads[1] != heads[0] else None,
        "d_model": stacks[0].integer("model_size"),
        "d_ff": stacks[0].integer("feed_forward_num_hidden"),
        "norm_placement": placements[0],
        "decoder_norm_placement": placements[1] if placements[1] != placements[0] else None,
        "activation": _same(given, "act_type", [
            stack.choice("act_type", _ACTIVATIONS, "relu") for stack in stacks
        ]),
        "positions": _same(given, "positional_embedding_type", [
            stack.choice("positional_embedding_type", _POSITIONS, "fixed") for stack in stacks
        ]),
        "tie_embeddings": ("src" in tied and "trg" in tied) or None,
        "tie_output": "softmax" in tied or None,
    }  # fmt: skip
    given.require_none_wrong()
    return several(found)


def _same(given: Options, name: str, pair: list[str]) -> str:
    if pair[0] != pair[1]:
        given.problems.append(f"{name}: {pair[0]} of the encoder and {pair[1]} of the decoder")
    return pair[0]


def _placement(stack: Options) -> str:
    """The placement of norms, from sequences of operations: d dropout, r residual, n norm."""
    before, after = (
        str(stack.values.get(f"{name}process_sequence", default)).replace("d", "")
        for name, default in (("pre", "n"), ("post", "dr"))
    )
    if (before, after) not in (("n", "r"), ("", "rn")):
        stack.problems.append(
            f"preprocess_sequence {before!r} with postprocess_sequence {after!r} is not "
            "supported; supported are 'n' with 'dr', and '' with 'drn'"
        )
    return "pre" if before else "post"


def prepare_sockeye(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Separate keys from values, which alternate by head; cut tables of unequal length."""
    read, problems = refused_keys(tensors, _REFUSED_KEYS)
    read |= {name: () for name in tensors if name.startswith("length_ratio.")}
    kept = without(tensors, read)
    for stack in _STACKS:
        options = Options("Sockeye", config).inside(f"config_{stack}")
        heads = options.integer("attention_heads") or 0
        names = [name for name in kept if name.startswith(f"{stack}.layers.")]
        for name in [it for it in names if it.endswith((".ff_in.weight", ".ff_kv.weight"))]:
            size = kept[name].shape[-1] if kept[name].dim() == 2 else 0
            first = size if name.endswith(".ff_in.weight") else 0
            if heads < 1 or len(kept[name]) != first + 2 * size or size % heads:
                problems.append(f"{name} has no keys and values for {heads} heads of its 'config'")
                continue
            kept[name] = torch.cat([kept[name][:first], *_part(kept[name][first:], heads)])
            read[name] = (name,)
        for name in [it for it in names if ".ff.linear." in it]:  # the gate is ff1 there
            gate = name.replace(".linear.", ".ff1.")
            if gate in kept:
                kept[gate.replace(".ff1.", ".gate.")] = kept.pop(gate)
                read[gate] = (gate.replace(".ff1.", ".gate."),)
    tables = [it for it in (f"{stack}.pos_embedding.weight" for stack in _STACKS) if it in kept]
    rows = min((len(kept[name]) for name in tables if kept[name].dim()), default=0)
    kept |= {name: kept[name][:rows] for name in tables}
    read |= {name: (name,) for name in tables}
    return Prepared(kept, read, {}, tuple(problems))


def _part(rows: Tensor, heads: int) -> list[Tensor]:
    """Keys and values, (E, E) each, from rows that alternate by head, (2 E, E)."""
    both = rows.unflatten(0, (heads, 2, -1))
    return [both[:, i].flatten(0, 1) for i in (0, 1)]


LAYOUT = Layout(
    name="sockeye",
    title="a Transformer of Sockeye",
    table=KeyTable(_TABLE, {**_WORDS, "end": {"source": "source", "target": "target"}}),
    defaults={
        "scale_embeddings": True,
        "mask_fill": float("-inf"),
        "norm_placement": "pre",
        "activation": "relu",
        "norm": "layer",
        "norm_eps": 1e-6,
        "attention_bias": False,
        "positions": "sinusoidal_halves",
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "add_source_eos": True,
    },
    required=("num_heads",),
    read_config=read_sockeye_options,
    model_types=("sockeye",),
    prepare=prepare_sockeye,
    reference="tfexport.export.reference.toolkits:SOCKEYE",
)
