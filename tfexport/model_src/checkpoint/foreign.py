"""Recognition of checkpoints of other projects, with advice on each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfexport.model_src.checkpoint.framing import FRAMING
from tfexport.model_src.checkpoint.unsupported import MODULE, UNSUPPORTED, Unsupported
from tfexport.model_src.config import config_keys, nearest_key

_HUGGING_FACE_ALONE = ("architectures", "transformers_version")
_HUGGING_FACE_KEYS = ("model_type", *_HUGGING_FACE_ALONE)
_CONVERT = "is not supported yet; Optimum exports it to ONNX, CTranslate2 converts it"
_CTRANSLATE2 = "is not supported yet; CTranslate2 converts it"
_ALONE = "is not supported yet"
_NO_LAYOUT = "no layout reads a config.json of its kind (docs/families.md)"
_ANYWHERE = (MODULE, "see whether Optimum exports or CTranslate2 converts it")
_ENCODER_DECODER = (
    "is not supported: tfexport exports Transformers of an encoder and a decoder with "
    "cross-attention (docs/architectures.md)"
)

# Families, each with a pattern of keys that only it has; the first match counts.
_TELL_TALES = (
    (
        "an encoder-decoder of two BERTs of Hugging Face",
        r"^decoder\..*\.crossattention\.",
        _CONVERT,
    ),
    ("an Eole Transformer", r"^(src|tgt)_emb\.embeddings\.weight$", _CTRANSLATE2),
    ("a recurrent network (LSTM or GRU)", r"\b(weight|bias)_[ih]h_l\d", _ENCODER_DECODER),
    (
        "a decoder-only language model",
        r"^(model\.layers|transformer\.h|gpt_neox\.layers)\.\d+\.",
        _ENCODER_DECODER,
    ),
    ("a model with rotary attention", r"\.rotary_emb\.", _ENCODER_DECODER),
    ("a BERT of Hugging Face", r"\.attention\.self\.query\.weight$", _ENCODER_DECODER),
    ("a model with batch normalisation", r"\.running_mean$", _ENCODER_DECODER),
    ("a convolutional network", r"(^|\.)conv\d*\.(.*\.)?weight$", _ENCODER_DECODER),
)

# Patterns of keys that only these have, by the ``model_type`` that their config.json would have.
_UNSUPPORTED_NAMES = (
    ("led", r"\.longformer_self_attn\."),
    ("longt5", r"\.(LocalSelfAttention|TransientGlobalSelfAttention)\."),
    ("pegasus_x", r"\.global_self_attn_layer_norm\."),
    ("prophetnet", r"^prophetnet\.|\.ngram_embeddings\."),
    ("switch_transformers", r"\.mlp\.(router|experts)\."),
    ("nllb-moe", r"\.ffn\.(router|experts)\."),
    ("whisper", r"^model\.encoder\.conv[12]\."),
    ("vision-encoder-decoder", r"^encoder\.embeddings\.patch_embeddings\."),
)


def describe_unsupported(names: Iterable[str]) -> str | None:
    """Say which model a few names of tensors give away, whatever the others are; None if none."""
    names = list(names)
    for kind, pattern in _UNSUPPORTED_NAMES:
        if any(re.search(pattern, name) for name in names):
            return str(UNSUPPORTED[kind])
    return None


def describe_names(names: Iterable[str]) -> str | None:
    """Say which project or kind of model the names of tensors belong to; None if unknown."""
    names = list(names)
    if (unsupported := describe_unsupported(names)) is not None:
        return unsupported
    for family, pattern, verdict in _TELL_TALES:
        if any(re.search(pattern, name) for name in names):
            return f"{family}, which {verdict}."
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
