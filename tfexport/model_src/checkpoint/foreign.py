"""Recognition of checkpoints of other projects, with advice on each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfexport.model_src.checkpoint.framing import FRAMING
from tfexport.model_src.checkpoint.unsupported import (
    CTRANSLATE2,
    MODULE,
    OPTIMUM,
    UNSUPPORTED,
    Unsupported,
)
from tfexport.model_src.config import config_keys, nearest_key

_HUGGING_FACE_ALONE = ("architectures", "transformers_version")
_HUGGING_FACE_KEYS = ("model_type", *_HUGGING_FACE_ALONE)
_NO_LAYOUT = "docs/families.md has those that are read"
_ANYWHERE = (MODULE, "see whether Optimum exports or CTranslate2 converts it")

# Models, each with patterns of keys: one has to be there for every pattern, and none for those
# behind "!". They say what is certain, and none of them is the name of a layer alone.
_TELL_TALES: tuple[tuple[Unsupported, tuple[str, ...]], ...] = (
    (UNSUPPORTED["encoder-decoder"], (r"^encoder\.", r"^decoder\..*\.crossattention\.")),
    (
        Unsupported("an Eole Transformer", "no layout reads it", (MODULE, CTRANSLATE2)),
        (
            r"^(src|tgt)_emb\.embeddings\.weight$",
            r"^(en|de)coder\.transformer_layers\.\d+\.(input|precontext|post_attention)_layernorm\.",
        ),
    ),
    (
        Unsupported(
            "a model with recurrent layers (LSTM or GRU)", "no layout has any", (MODULE,)
        ),
        (r"\b(weight|bias)_[ih]h_l\d",),
    ),
    (
        Unsupported(
            "a decoder-only language model",
            "its keys name no encoder",
            (CTRANSLATE2, f"if it has an encoder, {MODULE}"),
        ),
        (
            r"^(model\.layers|transformer\.h|gpt_neox\.layers)\.\d+\.",
            r"!enc|src|source|cross",
        ),
    ),
    (
        Unsupported("a BERT of Hugging Face", "its keys name no decoder", (OPTIMUM, MODULE)),
        (r"\.attention\.self\.query\.weight$", r"!dec|tgt|target|cross"),
    ),
)  # fmt: skip

# Patterns of keys that only these have, by the ``model_type`` that their config.json would have.
_UNSUPPORTED_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("led", (r"\.longformer_self_attn\.",)),
    ("longt5", (r"\.(LocalSelfAttention|TransientGlobalSelfAttention)\.",)),
    ("pegasus_x", (r"\.global_self_attn_layer_norm\.",)),
    ("prophetnet", (r"^prophetnet\.|\.ngram_embeddings\.",)),
    ("switch_transformers", (r"\.mlp\.(router|experts)\.",)),
    ("nllb-moe", (r"\.ffn\.(router|experts)\.",)),
    ("whisper", (r"^model\.encoder\.conv1\.", r"^model\.decoder\.layers\.\d+\.encoder_attn\.")),
    ("whisper", (r"^encoder\.conv1\.", r"^decoder\.blocks\.\d+\.cross_attn\.")),
    ("vision-encoder-decoder", (r"^encoder\.embeddings\.patch_embeddings\.",)),
)  # fmt: skip


def _fits(names: list[str], patterns: Iterable[str]) -> bool:
    return all(
        any(re.search(pattern.removeprefix("!"), name) for name in names)
        is not pattern.startswith("!")
        for pattern in patterns
    )


def describe_unsupported(names: Iterable[str]) -> str | None:
    """Say which model a few names of tensors give away, whatever the others are; None if none."""
    names = list(names)
    for kind, patterns in _UNSUPPORTED_NAMES:
        if _fits(names, patterns):
            return str(UNSUPPORTED[kind])
    return None


def describe_names(names: Iterable[str]) -> str | None:
    """Say which project or kind of model the names of tensors belong to; None if unknown."""
    names = list(names)
    if (unsupported := describe_unsupported(names)) is not None:
        return unsupported
    for unsupported_kind, patterns in _TELL_TALES:
        if _fits(names, patterns):
            return str(unsupported_kind)
    return None


def describe_config(values: Mapping[str, Any]) -> str | None:
    """Say which model a Hugging Face config.json describes, and why it is not read.

    Returns:
        None for a file that is not of Hugging Face.
    """
    if not any(key in values for key in _HUGGING_FACE_KEYS) or is_ours(values):
        return None
    architectures = values.get("architectures")
    named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    title = architectures[0][:80] if named and architectures else "model"
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in UNSUPPORTED:
        return str(UNSUPPORTED[kind])
    detail = f" (model_type {kind[:80]})" if isinstance(kind, str) else ""
    return str(Unsupported(f"a Hugging Face {title}{detail}", _NO_LAYOUT, _ANYWHERE))


def is_ours(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of tfexport: at least half of its keys are, misspelt ones included.

    Some keys of Hugging Face are similar (``encoder_layers``), so in their files only exact ones
    count.
    """
    known = (*config_keys(), "rename", "ignore", FRAMING)
    theirs = any(key in values for key in _HUGGING_FACE_ALONE)
    ours = [key for key in values if key in known or (not theirs and nearest_key(key, known))]
    return 2 * len(ours) >= len(values)
