"""Marian-NMT's Transformer (Junczys-Dowmunt et al. 2018), as its ``.npz`` files have it."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.model_src.checkpoint.keymap import Entries, KeyTable, OneRow, Transposed
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.toolkit_options import Options, refused_keys, several, without

NEVER = -1e9  # the output bias of an id without a word: its probability is 0 in float32

# fmt: off
_WORDS = {
    "any": {"source": "source", "target": "target"},
    "side": {"encoder": "source", "decoder": "target"},
    "attention": {"self": "self_attn", "context": "cross_attn"},
    "norm": {"ln_scale": "weight", "ln_bias": "bias", "ln_scale_pre": "weight",
             "ln_bias_pre": "bias"},
    "matrix": {"1": "up", "2": "down"},
}
_TABLE: Entries = {
    "{side}_Wemb": "{side}_embedding.tokens.weight",
    "Wemb": "{any}_embedding.tokens.weight",
    "Wpos": "{any}_embedding.positions.table",
    "{side}_emb_{norm}": ("{side}_embedding.norm.{norm}", OneRow()),
    "{stack}_top_{norm}": ("{stack}.norm.{norm}", OneRow()),
    "{stack}_l{layer}_{attention}_W{qkv}":
        ("{stack}.layers.{layer}.{attention}.{qkv}_proj.weight", Transposed()),
    "{stack}_l{layer}_{attention}_b{qkv}":
        ("{stack}.layers.{layer}.{attention}.{qkv}_proj.bias", OneRow()),
    "{stack}_l{layer}_{attention}_Wo":
        ("{stack}.layers.{layer}.{attention}.out_proj.weight", Transposed()),
    "{stack}_l{layer}_{attention}_bo":
        ("{stack}.layers.{layer}.{attention}.out_proj.bias", OneRow()),
    "{stack}_l{layer}_{attention}_Wo_{norm}":
        ("{stack}.layers.{layer}.{attention}_residual.norm.{norm}", OneRow()),
    "{stack}_l{layer}_ffn_W{matrix}":
        ("{stack}.layers.{layer}.feed_forward.{matrix}_proj.weight", Transposed()),
    "{stack}_l{layer}_ffn_b{matrix}":
        ("{stack}.layers.{layer}.feed_forward.{matrix}_proj.bias", OneRow()),
    "{stack}_l{layer}_ffn_ffn_{norm}":
        ("{stack}.layers.{layer}.feed_forward_residual.norm.{norm}", OneRow()),
    "decoder_ff_logit_out_W": ("output_proj.weight", Transposed()),
    "decoder_ff_logit_out_Wt": "output_proj.weight",
    "decoder_ff_logit_out_b": ("output_proj.bias", OneRow()),
}
# fmt: on

_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}
_REFUSED_OPTIONS = {
    "transformer-no-projection": "attention without an output projection",
    "transformer-tied-layers": "layers that are tied to one another",
    "transformer-pool": "a pooled encoder",
    "transformer-no-affine": "a norm without scale and bias",
    "ulr": "a universal representation of languages",
    "right-left": "a model of the target's words from the right to the left",
    "lemma-dim-emb": "factored words",
    "factors-combine": "factored words",
}
_REFUSED_KEYS = {
    r"_l\d+_rnn_": "a recurrent decoder (SSRU, as in Firefox' models)",
    r"_l\d+_aan_": "average attention",
    r"_rms_scale": "an RMSNorm",
    r"_Wh$|_bh$": "a highway connection",
    r"_QuantMult[AB]$|_alpha$": "a quantized layer",
}


def read_marian_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Config values from ``special:model.yml``.

    Raises:
        ConfigError: options are not supported; all are listed.
    """
    given = Options("Marian-NMT", values.get("options"))
    given.refuse(_REFUSED_OPTIONS)
    given.choice("type", {"transformer": 1}, "transformer")
    given.choice("transformer-decoder-autoreg", {"self-attention": 1}, "self-attention")
    for name in ("transformer-ffn-depth", "transformer-decoder-ffn-depth"):
        if (depth := given.integer(name, 2)) not in (0, 2):
            given.problems.append(f"{name}: {depth}; a feed-forward of 2 layers is supported")
    everywhere = given.flag("tied-embeddings-all")
    learned = given.flag("transformer-train-positions")
    found = {
        "num_heads": given.integer("transformer-heads"),
        "d_ff": given.integer("transformer-dim-ffn"),
        "activation": given.choice("transformer-ffn-activation", _ACTIVATIONS, "relu"),
        "norm_placement": _placement(given),
        "tie_embeddings": everywhere or given.flag("tied-embeddings-src") or None,
        "tie_output": everywhere or given.flag("tied-embeddings") or None,
        "positions": "learned" if learned else None,
        "scale_embeddings": not learned,  # where positions are computed, and only there
    }
    given.require_none_wrong()
    return several(found)


def _placement(given: Options) -> str:
    """The placement of norms, from sequences of operations: d dropout, a addition, n norm."""
    before, after = (
        str(given.values.get(f"transformer-{name}process") or default).replace("d", "")
        for name, default in (("pre", ""), ("post", "dan"))
    )
    if (before, after) not in (("n", "a"), ("", "an")):
        given.problems.append(
            f"transformer-preprocess {before!r} with transformer-postprocess {after!r} is not "
            "supported; supported are 'n' with 'da', and '' with 'dan'"
        )
    for name in ("top", "emb"):
        ends = str(given.values.get(f"transformer-postprocess-{name}") or "")
        if ends.replace("d", "") not in ("", "n"):
            given.problems.append(f"transformer-postprocess-{name}: {ends:.20} is not supported")
    return "pre" if before else "post"


def prepare_marian(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Count layers from 0, and add an id whose embedding is zero, from which decoding starts.

    Marian starts without a word. The last id of the target is used for that;
    its output bias makes it impossible, so that words have the probabilities of Marian.
    """
    read, problems = refused_keys(tensors, _REFUSED_KEYS)
    kept = {}
    for name, tensor in without(tensors, read).items():
        kept[_from_zero(name)] = tensor
        read |= {name: (_from_zero(name),)} if _from_zero(name) != name else {}
    values = _add_start(kept, read)
    odd = [name for name in _TARGETS if name in kept and kept[name].size(-1) % 2]
    problems += ["embeddings of an odd width have no positions of Marian"] if odd else []
    return Prepared(kept, read, values, tuple(problems))


_TARGETS = ("decoder_Wemb", "Wemb")
_OUTPUTS = ("decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt", "decoder_ff_logit_out_b")


def _from_zero(name: str) -> str:
    return re.sub(r"^(encoder|decoder)_l(\d{1,6})_", lambda it: f"{it[1]}_l{int(it[2]) - 1}_", name)


def _add_start(kept: dict[str, Tensor], read: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    name = next((it for it in _TARGETS if it in kept), None)
    if name is None or kept[name].dim() != 2:
        return {}
    start = len(kept[name])
    kept[name] = F.pad(kept[name], (0, 0, 0, 1))
    if "encoder_Wemb" in kept and kept["encoder_Wemb"].dim() == 2:
        rows = len(kept["encoder_Wemb"])
        kept["encoder_Wemb"] = F.pad(kept["encoder_Wemb"], (0, 0, 0, max(0, start + 1 - rows)))
    matrix, transposed, bias_name = _OUTPUTS
    for key, sides in ((matrix, (0, 1)), (transposed, (0, 0, 0, 1))):
        if key in kept and kept[key].dim() == 2:
            kept[key] = F.pad(kept[key], sides)
    read |= {key: (key,) for key in (name, "encoder_Wemb", *_OUTPUTS) if key in kept}
    bias = kept.get(bias_name, torch.zeros(1, start))
    kept[bias_name] = F.pad(bias.reshape(1, -1), (0, 1), value=NEVER)
    return {"bos_id": start, "pad_id": start}


LAYOUT = Layout(
    name="marian-nmt",
    title="a Transformer of Marian-NMT",
    table=KeyTable(_TABLE, _WORDS),
    defaults={
        "mask_fill": -99999999.0,
        "norm": "layer",
        "norm_eps": 1e-6,
        "norm_placement": "post",
        "activation": "relu",
        "scale_embeddings": True,
        "positions": "sinusoidal_t2t",
        "max_positions": 1024,
        "eos_id": 0,
        "unk_id": 1,
        "add_source_eos": True,
    },
    required=("num_heads",),
    read_config=read_marian_options,
    model_types=("marian-nmt",),
    prepare=prepare_marian,
    reference="tfexport.export.reference.toolkits:MARIAN_NMT",
)
