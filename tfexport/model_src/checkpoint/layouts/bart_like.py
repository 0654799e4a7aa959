"""BART and similar models of Hugging Face: one architecture with switches, set by the class.

Each family is a ``BartLike`` in a file of its own. The keys are the same in all, so only
``model_type`` distinguishes them.

Source: transformers 5.23, ``models/*/modeling_*.py`` and ``configuration_*.py``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.model_src.checkpoint.generation_config import Generation, read_generation
from tfexport.model_src.checkpoint.keymap import Entries, KeyTable, RowsFrom, SingleRow
from tfexport.model_src.checkpoint.layout import Layout, Prepared
from tfexport.model_src.checkpoint.unsupported import MODULE
from tfexport.model_src.embedding import halves_table, t2t_table

_SAME = 1e-5  # sinusoids of float32
_NEAR = 1e-2  # of float16 too
_COMPUTED: Mapping[str, Callable[[int, int], Tensor]] = {
    "sinusoidal_halves": halves_table,
    "sinusoidal_t2t": t2t_table,
}


@dataclass(frozen=True)
class Tables:
    """Which tables a family has.

    Attributes:
        head: the key of the output projection, in which ``{prefix}`` is that of the file's keys.
        shared: both sides have one table.
        may_differ: sides have separate tables if ``share_encoder_decoder_embeddings`` is false.
        head_always_tied: in a file without an output projection it is the target's table, even if
            ``tie_word_embeddings`` is false.
    """

    head: str = "lm_head.weight"
    shared: bool = True
    may_differ: bool = False
    head_always_tied: bool = False

    def differ(self, config: Mapping[str, Any]) -> bool:
        """Whether config.json gives each side its own table."""
        return self.may_differ and config.get("share_encoder_decoder_embeddings") is False


def share_tables(
    tensors: Mapping[str, Tensor], tables: Tables, prefix: str, config: Mapping[str, Any]
) -> Prepared:
    """Find every embedding table under its own name, or else under that of one it is tied to.

    A .safetensors file holds a tensor once, under one of its names; a .bin file under all.

    Args:
        tensors: the tensors of the file.
        tables: the embedding tables of the family.
        prefix: the prefix of the file's keys, see ``BartLike``, or "".
        config: values of config.json and its class's defaults.
    """
    shared = f"{prefix}shared.weight"
    source, target = (f"{prefix}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    head = tables.head.replace("{prefix}", prefix)
    tied = config.get("tie_word_embeddings") is not False
    tied_head = tied or tables.head_always_tied
    one = tables.shared and not tables.differ(config)
    if one:
        names = {source: [shared, target], target: [shared, source], head: []}
        names[source] += [head] if tied else []
        names[target] += [head] if tied else []
        names[head] += [shared, target, source] if tied else []
    else:
        sized = tied and tables.head_always_tied  # FSMT's config speaks of all three
        names = {source: [target, head] if sized else [], target: [], head: []}
        names[target] += [head] if tied_head else []
        names[head] += [target] if tied_head else []
    found = _resolve(tensors, names, shared if one else None, tied, head)
    if one or shared not in tensors:
        return found
    alone = f"{shared} is not used by a model with separate tables for each side"
    kept = {name: tensor for name, tensor in found.tensors.items() if name != shared}
    return Prepared(kept, {**found.read, shared: ()}, problems=(alone,), notes=found.notes)


def _resolve(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, list[str]],
    shared: str | None,
    tied: bool,
    head: str,
) -> Prepared:
    made = dict(tensors)
    read: dict[str, tuple[str, ...]] = {}
    for name, others in names.items():
        there = next((other for other in (name, *others) if other in tensors), None)
        if there is not None and there != name:
            made[name] = tensors[there]
            read[there] = (*read.get(there, ()), name)
    if shared in tensors:
        assert shared is not None
        del made[shared]
        read.setdefault(shared, ())  # every other name is there
    notes = []
    if not tied and head not in made:
        notes.append(
            f"tie_word_embeddings is false in config.json, so no table takes the place of {head}"
        )
    present = [name for name in (shared, *names) if name is not None and name in tensors]
    problems = []
    if not tied and shared is not None:
        tables = [name for name in present if name != head]
        problems += [
            f"{name} is missing, and nothing says which table it has: {', '.join(tables)} differ"
            for name in names
            if name in made.keys() - tensors.keys()
            and not all(_equal(tensors, tables[0], it) for it in tables)
        ]
    if tied and shared is not None and not all(_equal(tensors, present[0], it) for it in present):
        notes.append(
            f"{', '.join(present)} differ, although config.json ties them: each is used unchanged"
        )
    return Prepared(made, read, problems=tuple(problems), notes=tuple(notes))


def _equal(tensors: Mapping[str, Tensor], first: str, second: str) -> bool:
    a, b = tensors[first], tensors[second]
    return a is b or a.is_meta or b.is_meta or torch.equal(a, b)


def read_positions(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], prefix: str, first: int
) -> Prepared:
    """Drop saved sinusoids, which are computed again; other tables stay, as learned.

    Args:
        tensors: the tensors of the file.
        facts: config values of the family.
        prefix: the prefix of the file's keys, see ``BartLike``, or "".
        first: row of tensor2tensor's sinusoids for the first token.
    """
    kind = facts["positions"]
    if kind not in _COMPUTED:
        return Prepared(tensors)
    first = first if kind == "sinusoidal_t2t" else 0
    stems = [f"{prefix}{stack}.embed_positions" for stack in ("encoder", "decoder")]
    # M2M-100 had these in its files, and never reads them.
    unread = {name: it for name in (f"{stem}.weights" for stem in stems)
              if (it := _distance(tensors, name, kind, first)) is not None}  # fmt: skip
    saved = {name: it for name in (f"{stem}.weight" for stem in stems)
             if (it := _distance(tensors, name, kind, first)) is not None}  # fmt: skip
    problems = [f"{name} is not a sinusoidal table" for name, it in unread.items() if it > _NEAR]
    others = [name for name, distance in saved.items() if distance > _SAME]
    dropped = {**unread, **({} if others else saved)}
    values: dict[str, Any] = {"positions": "learned"} if others else {}
    if saved and not others and kind == "sinusoidal_halves":
        values["max_positions"] = len(tensors[next(iter(saved))])
    kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    if others:
        kept |= {name: tensors[name][first:] for name in saved}
    note = f"{', '.join(others)} are not sinusoids to {_SAME}, and used unchanged"
    return Prepared(
        kept, dict.fromkeys(dropped, ()), values, tuple(problems), (note,) if others else ()
    )


def _distance(tensors: Mapping[str, Tensor], name: str, kind: str, first: int) -> float | None:
    """How far a saved table is from the computed one; None if it is no table."""
    table = tensors.get(name)
    if table is None or table.dim() != 2 or table.is_meta or not table.isfinite().all():
        return None
    difference = (table - _COMPUTED[kind](*table.shape))[first:]
    return difference.abs().max().item() if difference.numel() else 0.0


# Of ``activation_function``.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}
# Other names of keys of config.json, which every class takes too.
_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
# Sizes that the weights show too; values of a config.json are checked against those.
_SIZES = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
}
POST_NORM: Mapping[str, Any] = {
    "norm_placement": "post", "encoder_final_norm": False, "decoder_final_norm": False,
}  # fmt: skip
PRE_NORM: Mapping[str, Any] = {
    "norm_placement": "pre", "encoder_final_norm": True, "decoder_final_norm": True,
}  # fmt: skip
EMBEDDING_NORM: Mapping[str, Any] = {
    "source_embedding_norm": "sum", "target_embedding_norm": "sum",
}  # fmt: skip
_ALWAYS: Mapping[str, Any] = {
    "norm": "layer",
    "norm_eps": 1e-5,
    "norm_bias": True,
    "attention_bias": True,
    "feed_forward_bias": True,
    "source_embedding_norm": "none",
    "target_embedding_norm": "none",
    "gated_feed_forward": False,
    "decoder_norm_placement": "same",
}
_STARTS_WITH_PADDING = "decoder_start_token_id is pad_token_id, which has no position here"
_ELSEWHERE = f"Otherwise {MODULE}."


@dataclass(frozen=True)
class BartLike:
    """One family.

    Attributes:
        name: the name of the layout.
        title: the name in messages.
        model_type: the ``model_type`` of its config.json.
        facts: config values that its class fixes, in addition to those of all families.
        class_defaults: values of its config class where config.json has none.
        framing: config values of the special tokens around a source text.
        skipped_rows: the rows of a learned position table before that of the first token.
        writes_padding: whether decoding may write the padding token.
        has_start_alone: whether decoding starts from an id other than bos.
        reads_texts: see ``Layout``.
        tokenizer_class: see ``Layout``.
        reference: see ``Layout``.
        tables: names of its embedding tables.
        prefix: of the keys of a model with a head; those of a bare model have none.
        source_vocabulary: the key of config.json with the source's size.
        target_vocabulary: the key with the target's.
    """

    name: str
    title: str
    model_type: str
    facts: Mapping[str, Any]
    class_defaults: Mapping[str, Any]
    framing: Mapping[str, Any] = field(default_factory=lambda: {"add_source_eos": True})
    skipped_rows: int = 0
    writes_padding: bool = True
    has_start_alone: bool = False
    reads_texts: bool = False
    tokenizer_class: str = ""
    reference: str | None = None
    tables: Tables = field(default_factory=Tables)
    prefix: str = "model."
    source_vocabulary: str = "vocab_size"
    target_vocabulary: str = "vocab_size"

    def layout(self) -> Layout:
        """The layout of the family."""
        return Layout(
            name=self.name,
            title=self.title,
            table=KeyTable(self._entries(), {"prefix": {self.prefix: "", "": ""}, **_WORDS}),
            defaults={"mask_fill": float("-inf"), **self.framing},
            required=("num_heads", "activation", "scale_embeddings"),
            read_config=self.read_config,
            model_types=(self.model_type,),
            needs_config=True,
            prepare=self.prepare,
            generation=self.read_generation,
            reads_texts=self.reads_texts,
            tokenizer_class=self.tokenizer_class,
            reference=self.reference,
        )

    def read_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of a config.json as tfexport's config values.

        Raises:
            ConfigError: values are not supported or contradict the class; all are listed.
        """
        given = self._given(config)
        problems = [] if _without_old_keys(config) else [*self._contradictions(config)]
        if problems := [*problems, *_unsupported(given, self._counts_padding)]:
            raise ConfigError(join_problems(f"config.json of {self.title}", problems, _ELSEWHERE))
        heads, decoder_heads = given["encoder_attention_heads"], given["decoder_attention_heads"]
        values = {
            "num_heads": heads,
            "decoder_num_heads": 0 if decoder_heads == heads else decoder_heads,
            "max_positions": given["max_position_embeddings"],
            "activation": ACTIVATIONS[given["activation_function"]],
            "scale_embeddings": given["scale_embedding"],
            **{ours: config[theirs] for theirs, ours in _SIZES.items() if theirs in config},
            **self._vocabularies(config),
            **self._ids(given),
        }
        if "encoder_ffn_dim" in config and "decoder_ffn_dim" in config:
            inner = config["decoder_ffn_dim"]
            values["decoder_d_ff"] = 0 if inner == config["encoder_ffn_dim"] else inner
        if self._counts_padding:
            values["first_position"] = first_position(given)
        return values

    def read_generation(
        self, config: Mapping[str, Any], generation: Mapping[str, Any]
    ) -> Generation:
        """See ``read_generation``; an old config.json leaves its class's values out."""
        found = read_generation({**self.class_defaults, **config}, generation)
        pad = self._given(config).get("pad_token_id")
        if self._counts_padding and found.start_id is not None and found.start_id == pad:
            raise ConfigError(f"generation_config.json: {_STARTS_WITH_PADDING}.")
        if not self.writes_padding and pad is not None:
            banned = sorted({*found.defaults.get("suppress_tokens", ()), pad})
            found = replace(found, defaults={**found.defaults, "suppress_tokens": banned})
        return found

    def prepare(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
        """Tied tables under every name, a saved table of sinusoids checked, no zero bias."""
        given = self._given(config)
        prefix = self.prefix if any(name.startswith(self.prefix) for name in tensors) else ""
        shared = share_tables(tensors, self.tables, prefix, given)
        kept, read = dict(shared.tensors), dict(shared.read)
        for stack in ("encoder", "decoder"):  # of fairseq, from which it was converted
            if kept.pop(name := f"{prefix}{stack}.version", None) is not None:
                read[name] = ()
        bias = kept.get("final_logits_bias")
        if bias is not None and not bias.is_meta and not bias.any():
            del kept["final_logits_bias"]
            read["final_logits_bias"] = ()
        values = {**_ALWAYS, **self.facts}
        found = read_positions(kept, values, prefix, first_position(given))
        return Prepared(
            tensors=found.tensors,
            read={**read, **found.read},
            values={**values, **found.values},
            problems=(*_wrong_prefixes(tensors, prefix), *shared.problems, *found.problems),
            notes=(*shared.notes, *found.notes, *self._notes(config)),
        )

    @property
    def _counts_padding(self) -> bool:
        """Whether positions are those of ids that are not padding."""
        return bool(self.facts["positions"] == "sinusoidal_t2t")

    def _given(self, config: Mapping[str, Any]) -> dict[str, Any]:
        aliases = {own: config[name] for name, own in _ALIASES.items() if name in config}
        return {**self.class_defaults, **aliases, **config}

    def _vocabularies(self, config: Mapping[str, Any]) -> dict[str, Any]:
        sizes = {
            "source_vocab_size": config.get(self.source_vocabulary),
            "target_vocab_size": config.get(self.target_vocabulary),
        }
        if self.tables.differ(config):
            sizes["target_vocab_size"] = config.get("decoder_vocab_size")
        return {key: size for key, size in sizes.items() if size is not None}

    def _ids(self, given: Mapping[str, Any]) -> dict[str, Any]:
        start = given.get("decoder_start_token_id")
        bos = given.get("bos_token_id")
        # A null is not the class's default: the model has no other start.
        if self.has_start_alone or (bos is None and not self.framing.get("add_source_bos")):
            bos = start
        eos = given.get("eos_token_id")
        return {
            "pad_id": given.get("pad_token_id"),
            "bos_id": bos,
            "eos_id": eos[0] if isinstance(eos, list) else eos,
            "start_id": None if start == bos else start,
        }

    def _contradictions(self, config: Mapping[str, Any]) -> list[str]:
        """Old keys of the config, ignored by the class, whose values contradict it."""
        facts = {**_ALWAYS, **self.facts}
        decided = {
            "normalize_before": facts["norm_placement"] == "pre",
            "add_final_layer_norm": facts["encoder_final_norm"],
            "normalize_embedding": facts["source_embedding_norm"] != "none",
            "static_position_embeddings": facts["positions"] != "learned",
        }
        return [
            f"{key} is {shown(config[key])}, but every model of this type computes as if it were "
            f"{str(value).lower()}"
            for key, value in decided.items()
            if config.get(key) not in (None, value)
        ]

    def _notes(self, config: Mapping[str, Any]) -> list[str]:
        """Remarks on old keys that contradict the class and that it does not read."""
        written = config.get("transformers_version")
        unread = self._contradictions(config) if _without_old_keys(config) else []
        return [f"{it}; transformers {written} does not read the key" for it in unread]

    def _entries(self) -> Entries:
        norm = "token_norm" if self.facts.get("target_embedding_norm") == "tokens" else "norm"
        learned = self.facts["positions"] == "learned"
        rows = RowsFrom(self.skipped_rows if learned else 0)
        return {
            "{prefix}shared.weight": "{side}_embedding.tokens.weight",
            "{prefix}{of}.embed_tokens.weight": "{of}_embedding.tokens.weight",
            "{prefix}{of}.embed_positions.weight": ("{of}_embedding.positions.table", rows),
            "{prefix}encoder.layernorm_embedding.{kind}": "source_embedding.norm.{kind}",
            "{prefix}decoder.layernorm_embedding.{kind}": f"target_embedding.{norm}.{{kind}}",
            self.tables.head: "output_proj.weight",
            "final_logits_bias": ("output_proj.bias", SingleRow()),
            **_LAYERS,
        }


# fmt: off
_WORDS = {
    "of": {"encoder": "source", "decoder": "target"},
    "attention": {"self_attn": "self_attn", "encoder_attn": "cross_attn"},
    "proj": {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "out_proj"},
    "linear": {"fc1": "up_proj", "fc2": "down_proj"},
}
_LAYERS: Entries = {
    "{prefix}{stack}.layer_norm.{kind}": "{stack}.norm.{kind}",
    "{prefix}{stack}.layers.{layer}.{attention}.{proj}.{kind}":
        "{stack}.layers.{layer}.{attention}.{proj}.{kind}",
    "{prefix}{stack}.layers.{layer}.{attention}_layer_norm.{kind}":
        "{stack}.layers.{layer}.{attention}_residual.norm.{kind}",
    "{prefix}{stack}.layers.{layer}.{linear}.{kind}":
        "{stack}.layers.{layer}.feed_forward.{linear}.{kind}",
    "{prefix}{stack}.layers.{layer}.final_layer_norm.{kind}":
        "{stack}.layers.{layer}.feed_forward_residual.norm.{kind}",
}
# fmt: on


def first_position(given: Mapping[str, Any]) -> int:
    """The row of fairseq's sinusoids that the first token reads: the one after padding's."""
    pad = given.get("pad_token_id")
    return pad + 1 if isinstance(pad, int) else 2


def _without_old_keys(config: Mapping[str, Any]) -> bool:
    """Whether a folder was saved by a version whose classes read no ``normalize_before``.

    Until transformers 4.2 one class had all these models, with switches in config.json; files that
    were saved later may keep its keys.
    """
    version = re.match(r"(\d+)\.(\d+)", str(config.get("transformers_version")))
    return version is not None and (int(version[1]), int(version[2])) >= (4, 2)


def _wrong_prefixes(tensors: Mapping[str, Tensor], prefix: str) -> list[str]:
    """Sentences about tensors that have the name of another one but for the prefix."""
    return [
        f"both {name} and {prefix}{name} are present"
        for name in tensors
        if prefix and f"{prefix}{name}" in tensors
    ]


def _unsupported(given: Mapping[str, Any], counted: bool) -> list[str]:
    """Sentences; with ``counted``, positions are those of ids that are not padding."""
    problems = []
    start = given.get("decoder_start_token_id")
    if counted and start is not None and start == given.get("pad_token_id"):
        problems.append(_STARTS_WITH_PADDING)
    activation = given["activation_function"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"activation_function: {shown(activation)} is not supported; use {known}")
    if given.get("is_encoder_decoder") is False or given.get("is_decoder") is True:
        problems.append("it describes a decoder only; only encoder-decoders are supported")
    if given.get("quantization_config") is not None:
        problems.append("quantization_config: quantized weights are not read; save it in float")
    eos = given.get("eos_token_id")
    if isinstance(eos, list) and len(eos) != 1:
        problems.append(f"eos_token_id: {shown(eos)} is not a single id")
    return problems
