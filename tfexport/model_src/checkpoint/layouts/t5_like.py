"""T5 and similar models of Hugging Face: keys, config.json, tied tables, the scaled output.

Versions of transformers differ in two points: whether the table of tokens is also the output
projection, and whether states are multiplied by d_model^-0.5 before it. Before 5, both follow
``tie_word_embeddings``, by default true for T5 and UMT5 and false for MT5. From 5 on that value is
always written as true; the projection is the file's own if it has one; T5 writes
``scale_decoder_outputs``, MT5 never scales and UMT5 always does. A config.json without a version is
read by the rule of 4. A file is read by the rule of the version that wrote it. (5.23 reads a tied
MT5 and an untied UMT5 that 4.57 wrote by its own rule, and so scales them otherwise.)

Source: Raffel et al. 2020; transformers, models/t5, models/mt5 and models/umt5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.model_src.checkpoint.generation_config import read_generation
from tfexport.model_src.checkpoint.keymap import Entries, KeyTable
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.layouts.bart_like import ACTIVATIONS
from tfexport.model_src.checkpoint.unsupported import MODULE

_TOKENS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def share_one_table(made: dict[str, Tensor], read: dict[str, tuple[str, ...]]) -> list[str]:
    """Keep the table of tokens under its first name only; sentences about others that differ."""
    there = [name for name in _TOKENS if name in made]
    if not there:
        return []
    first, problems = made[there[0]], []
    for name in there:
        if not same_values(made.pop(name), first):
            problems.append(f"{name} is another table than {there[0]}; this model has one")
        if name != "shared.weight":
            read[name] = ("shared.weight",)
    made["shared.weight"] = first
    return problems


def two_feed_forwards(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sentences about feed-forwards that are gated and not."""
    plain = [name for name in tensors if name.endswith(".DenseReluDense.wi.weight")]
    gated = [name.replace(".wi.", ".wi_1.") for name in plain]
    return [
        f"{name} and {other} are both present; a feed-forward has only one of them"
        for name, other in zip(plain, gated, strict=True)
        if other in tensors
    ]


def read_heads(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The heads and buckets of a table of biases, and the size of a head."""
    block = "encoder.block.0.layer.0.SelfAttention"
    table = tensors.get(f"{block}.relative_attention_bias.weight")
    queries = tensors.get(f"{block}.q.weight")
    if table is None or table.dim() != 2 or not table.numel():
        return {}
    buckets, heads = table.shape
    sizes = {"num_heads": heads, "relative_buckets": buckets}
    if queries is not None and queries.dim() == 2 and queries.size(0) % heads == 0:
        sizes["head_dim"] = queries.size(0) // heads
    return sizes


def same_values(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are the same table; one of a type that is not read is like no other."""
    if other is None or one.shape != other.shape:
        return False
    return one is other or (not (one.is_meta or other.is_meta) and torch.equal(one, other))


_WORDS = {
    "linear": {"q": "q", "k": "k", "v": "v", "o": "out"},
    "encoder_norm": {"0": "self_attn", "1": "feed_forward"},
    "decoder_norm": {"0": "self_attn", "1": "cross_attn", "2": "feed_forward"},
    "ff": {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"},
}
# fmt: off
_TABLE: Entries = {
    "shared.weight": "{side}_embedding.tokens.weight",
    "lm_head.weight": "output_proj.weight",
    "{stack}.final_layer_norm.weight": "{stack}.norm.weight",
    "{stack}.block.{layer}.layer.0.SelfAttention.{linear}.weight":
        "{stack}.layers.{layer}.self_attn.{linear}_proj.weight",
    "decoder.block.{layer}.layer.1.EncDecAttention.{linear}.weight":
        "decoder.layers.{layer}.cross_attn.{linear}_proj.weight",
    "encoder.block.{layer}.layer.1.DenseReluDense.{ff}.weight":
        "encoder.layers.{layer}.feed_forward.{ff}_proj.weight",
    "decoder.block.{layer}.layer.2.DenseReluDense.{ff}.weight":
        "decoder.layers.{layer}.feed_forward.{ff}_proj.weight",
    "encoder.block.{layer}.layer.{encoder_norm}.layer_norm.weight":
        "encoder.layers.{layer}.{encoder_norm}_residual.norm.weight",
    "decoder.block.{layer}.layer.{decoder_norm}.layer_norm.weight":
        "decoder.layers.{layer}.{decoder_norm}_residual.norm.weight",
}
_OF_A_STACK: Entries = {
    "{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight":
        "{stack}.relative.table",
}
_OF_A_LAYER: Entries = {
    "{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight":
        "{stack}.layers.{layer}.self_attn.relative.table",
}
# fmt: on
_HEAD, _LAST_NORM = "lm_head.weight", "decoder.final_layer_norm.weight"
# Of early checkpoints; the attention to the source has no positions.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_RENAMED = {
    "d_model": "d_model",
    "d_kv": "head_dim",
    "d_ff": "d_ff",
    "num_heads": "num_heads",
    "num_layers": "num_encoder_layers",
    "relative_attention_num_buckets": "relative_buckets",
    "relative_attention_max_distance": "relative_max_distance",
    "layer_norm_epsilon": "norm_eps",
    "dropout_rate": "dropout",
    "pad_token_id": "pad_id",
    "eos_token_id": "eos_id",
    "decoder_start_token_id": "bos_id",
}
# Keys that change the computation, with the only supported values.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (True,),
    "is_decoder": (False, None),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False, None),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class T5Family:
    """One family.

    Attributes:
        name: the name of the layout, and the ``model_type``.
        title: the name in messages.
        tied: ``tie_word_embeddings`` where a config.json lacks it.
        scaled_by_5: whether version 5 of transformers scales the output; None where the config.json
            that it writes has the answer.
        feed_forward: ``feed_forward_proj`` where a config.json lacks it.
        tokenizer_class: see ``Layout``.
        reference: see ``Layout``.
        every_layer: each layer has its own table of relative positions.
    """

    name: str
    title: str
    tied: bool
    scaled_by_5: bool | None
    feed_forward: str
    tokenizer_class: str = ""
    reference: str | None = None
    every_layer: bool = False

    def layout(self) -> Layout:
        """The layout."""
        tables = _OF_A_LAYER if self.every_layer else _OF_A_STACK
        return Layout(
            name=self.name,
            title=self.title,
            table=KeyTable({**_TABLE, **tables}, _WORDS),
            defaults=self._defaults(),
            required=("num_heads", "activation"),
            read_config=self.read_config,
            model_types=(self.name,),
            needs_config=True,
            prepare=self.prepare,
            generation=read_generation,
            reads_texts=True,
            tokenizer_class=self.tokenizer_class,
            takes_start_token=False,
            reference=self.reference,
        )

    def _defaults(self) -> dict[str, Any]:
        return {
            "norm": "rms",
            "norm_eps": 1e-6,
            "norm_placement": "pre",
            "positions": "none",
            "relative_positions": "buckets_every_layer" if self.every_layer else "buckets",
            "relative_buckets": 32,
            "relative_max_distance": 128,
            "scale_embeddings": False,
            "scale_scores": False,
            "pad_id": 0,
            "bos_id": 0,
            "eos_id": 1,
            "unk_id": 2,
            "add_source_eos": True,
            "output_bias": False,
        }

    def read_config(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A config.json of Hugging Face to config values.

        Raises:
            ConfigError: values are not supported; all are listed.
        """
        problems: list[str] = []
        for key, allowed in _ONLY.items():
            if key in values and values[key] not in allowed:
                problems.append(f"{key}: {shown(values[key])} is not supported")
        values = {
            **{own: values[name] for name, own in _ALIASES.items() if name in values},
            **values,
        }
        read = {new: values[old] for old, new in _RENAMED.items() if values.get(old) is not None}
        if values.get("vocab_size") is not None:
            read |= dict.fromkeys(("source_vocab_size", "target_vocab_size"), values["vocab_size"])
        depth = values.get("num_decoder_layers")
        depth = values.get("num_layers") if depth is None else depth
        read |= {} if depth is None else {"num_decoder_layers": depth}
        if "pad_id" in read:
            read.setdefault("bos_id", read["pad_id"])
        ends = read.get("eos_id")
        if isinstance(ends, list):
            read["eos_id"] = ends[0] if len(ends) == 1 else None
            if len(ends) != 1:
                problems.append(f"eos_token_id: {shown(ends)} is not a single id")
        read |= _read_feed_forward({"feed_forward_proj": self.feed_forward, **values}, problems)
        if problems:
            subject = f"config.json of a {self.title}"
            raise ConfigError(join_problems(subject, problems, f"Otherwise {MODULE}."))
        return read

    def prepare(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
        """One table of tokens, the output's scale in the last norm; see ``Layout``."""
        made = dict(tensors)
        read: dict[str, tuple[str, ...]] = {}
        problems = share_one_table(made, read)
        if made.pop(_UNUSED, None) is not None:
            read[_UNUSED] = ()
        table, head = made.get("shared.weight"), made.get(_HEAD)
        own_head = head is not None and not same_values(head, table)
        scaled = self._is_scaled(config, own_head)
        if table is None and head is not None:
            made["shared.weight"] = head
        elif table is not None and head is None:
            made[_HEAD] = table
        problems += self._contradictions(config, head is not None, own_head)
        norm = made.get(_LAST_NORM)
        if norm is not None and norm.dim() == 1 and norm.numel() and scaled:
            made[_LAST_NORM] = norm * norm.size(0) ** -0.5
        problems += two_feed_forwards(tensors)
        return Prepared(made, read, read_heads(made), tuple(problems))

    def _is_scaled(self, config: Mapping[str, Any], own_head: bool) -> bool:
        if _wrote_5(config):
            stated = config.get("scale_decoder_outputs", config.get("tie_word_embeddings"))
            return stated is not False if self.scaled_by_5 is None else self.scaled_by_5
        if not config:  # only the tensors show it
            return self.tied and not own_head
        return bool(config.get("tie_word_embeddings", self.tied))

    def _contradictions(
        self, config: Mapping[str, Any], has_head: bool, own_head: bool
    ) -> list[str]:
        for key in ("tie_word_embeddings", "scale_decoder_outputs"):
            if not isinstance(value := config.get(key, True), bool):
                return [f"{key}: {shown(value)} is not true or false"]
        tied = config.get("tie_word_embeddings", self.tied)
        if not tied and not has_head:
            return [
                f"{_HEAD} is missing, and tie_word_embeddings is false, so no other table "
                "takes its place"
            ]
        if tied and own_head and config and not _wrote_5(config):
            return [
                f"{_HEAD} is another table than shared.weight, although tie_word_embeddings is "
                "true: transformers 4 computes with shared.weight and transformers 5 with the "
                "other; set it to false in config.json, or remove one table from the file"
            ]
        return []


def _wrote_5(config: Mapping[str, Any]) -> bool:
    """Whether transformers 5, or a later one, wrote a config.json."""
    version = config.get("transformers_version")
    major = version.partition(".")[0] if isinstance(version, str) else ""
    return major.isdecimal() and len(major) < 4 and int(major) >= 5


def _read_feed_forward(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The activation, and whether it gates; problems are added."""
    kind = values["feed_forward_proj"]
    parts = kind.split("-") if isinstance(kind, str) else []
    gated = len(parts) == 2 and parts[0] == "gated"
    # The tanh approximation, in spite of the name.
    name = "gelu_new" if kind == "gated-gelu" else parts[-1] if parts else ""
    if name not in ACTIVATIONS or len(parts) > 1 + gated:
        problems.append(f"feed_forward_proj: {shown(kind)} is not supported")
        return {}
    activation = ACTIVATIONS[name]
    also = values.get("dense_act_fn")
    if also is not None and (not isinstance(also, str) or ACTIVATIONS.get(also) != activation):
        problems.append(f"dense_act_fn: {shown(also)} contradicts feed_forward_proj {kind!r}")
    if values.get("is_gated_act") not in (None, gated):
        problems.append(
            f"is_gated_act: {shown(values['is_gated_act'])} contradicts feed_forward_proj {kind!r}"
        )
    return {"activation": activation, "gated_feed_forward": gated}
