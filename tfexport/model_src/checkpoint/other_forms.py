"""Models in forms that are not the plain weights of all of their parameters, and the way to those.

Adapters that were not merged, quantised weights, parts of a distributed training, and the files of
other frameworks: each is recognised by its keys, its names or its first bytes.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tfexport.bundle import is_bundle
from tfexport.errors import join_some
from tfexport.model_src.checkpoint.unsupported import MODULE

_MERGE = (
    "Merge them into the model, and save that: model = model.merge_and_unload() of PEFT, then "
    "model.save_pretrained('merged') or torch.save(model.state_dict(), 'model.pt')."
)
_NOT_MERGED = "which are not merged into the weights; without them it would be another model."
_UNQUANTISED = (
    "which are not read: tfexport quantises by itself. Give the model as it was before, or what "
    "model.dequantize() of transformers makes of it."
)

# What the keys of such files have, with what it is and what to do.
_KEYS = (
    (
        r"\blora_(A|B|embedding_A|embedding_B|magnitude_vector|up|down)\b",
        f"weights of LoRA, {_NOT_MERGED} {_MERGE} With loralib, model.eval() merges them.",
    ),
    (
        r"\b(hada_w[12]_[ab]|lokr_w[12]\w*|oft_r|oft_R|vera_lambda_[bd]|ia3_l|boft_[RPs])\b",
        f"weights of adapters (PEFT), {_NOT_MERGED} {_MERGE}",
    ),
    (r"^base_model\.model\.", f"a model inside PEFT's, {_NOT_MERGED} {_MERGE}"),
    (
        r"\badapter_(down|up)\b|\badapters\.[\w-]+\.\w*(down|up)",
        "bottleneck adapters, which are additional layers that no layout has and that cannot be "
        f"merged. If the model is called with them, {MODULE}.",
    ),
    (
        r"\bprompt_embeddings\b|\bprefix_encoder\b|\bprompt_encoder\b",
        "trained prompts or prefixes, which no layout has and which cannot be merged: "
        f"{MODULE}.",
    ),
    (
        r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\.bitsandbytes__|\.(SCB|weight_format)$",
        f"weights that bitsandbytes has quantised, {_UNQUANTISED}",
    ),
    (r"\.(qweight|qzeros)$", f"weights that GPTQ or AWQ has quantised, {_UNQUANTISED}"),
    (
        r"\.(weight_packed|weight_zero_point|W_q|_packed_params)$|\._packed_params\.",
        f"weights that were quantised, {_UNQUANTISED}",
    ),
    (
        r"\b_?flat_param(_\d+)?$",
        "parameters that FSDP has put into one row. Save the full state dict where it was trained: "
        "torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True.",
    ),
)  # fmt: skip

_IN_TRANSFORMERS = (
    "Convert them with transformers 4: AutoModelForSeq2SeqLM.from_pretrained(FOLDER, {flag}=True)"
    ".save_pretrained(OUT)."
)
_ADAPTER_FILES = (
    "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "pytorch_adapter.bin",
)  # fmt: skip
# Names in folders without weights of PyTorch.
_NAMES = (
    (
        r"zero_to_fp32\.py|global_step\d+|.*_optim_states\.pt|mp_rank_\d+_model_states\.pt",
        "parts of a training with DeepSpeed. Join them with its own script: "
        "python zero_to_fp32.py FOLDER OUT.",
    ),
    (
        r".*\.distcp",
        "parts of a distributed checkpoint of PyTorch (FSDP). Join them: python -m "
        "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt.",
    ),
    (
        r".*\.h5|.*\.keras|saved_model\.pb|.*\.ckpt\.index|.*\.data-\d+-of-\d+",
        "weights of TensorFlow. " + _IN_TRANSFORMERS.format(flag="from_tf"),
    ),
    (r".*\.msgpack", "weights of Flax. " + _IN_TRANSFORMERS.format(flag="from_flax")),
    (
        r".*\.onnx",
        "a model that was exported to ONNX already. Give the weights of PyTorch that it was made "
        "of.",
    ),
    (r".*\.gguf", "a GGUF file of llama.cpp. Give the weights that it was made of."),
)  # fmt: skip
_HEADS = (
    (b"\x89HDF\r\n\x1a\n", "model.h5"),
    (b"GGUF", "model.gguf"),
)
_BUNDLE = (
    "a bundle of tfexport, which is exported already: 'tfexport translate', 'serve', 'verify' and "
    "'quantize' take it. Give the checkpoint that it was made of."
)


def describe_form(keys: Iterable[str]) -> str | None:
    """Say in which form the weights with these keys are; None for plain ones."""
    keys = list(keys)
    for pattern, text in _KEYS:
        if found := [key for key in keys if re.search(pattern, key)]:
            return f"holds {text} They are {join_some(found, 3)}."
    return None


def describe_form_of_folder(folder: Path, weights: bool) -> str | None:
    """Say in which form the model of a folder is; None for plain weights, or if nothing shows it.

    Args:
        folder: with its files.
        weights: whether it holds weights of PyTorch, of which only adapters beside them matter.
    """
    if is_bundle(folder):
        return _BUNDLE
    names = sorted(path.name for path in folder.iterdir())
    if adapters := [name for name in _ADAPTER_FILES if name in names]:
        beside = "in addition to its weights" if weights else "alone"
        return (
            f"holds an adapter such as LoRA {beside} ({', '.join(adapters)}). Merge it into the "
            "model, save it, and export that:\n"
            f"  from peft import AutoPeftModelForSeq2SeqLM\n"
            f"  model = AutoPeftModelForSeq2SeqLM.from_pretrained({folder.name!r})\n"
            "  model.merge_and_unload().save_pretrained('merged')"
            + ("\nTo export the model without it, name the file of its weights." if weights else "")
        )
    return None if weights else _describe_names(names)


def describe_form_of_file(path: Path, head: bytes) -> str | None:
    """Say in which form a file is that is no checkpoint of PyTorch, by its name and first bytes."""
    if b"Spec\0" in head[:32]:
        return "a model of CTranslate2. Give the weights that it was converted from."
    name = next((name for mark, name in _HEADS if head.startswith(mark)), path.name)
    return next((text for pattern, text in _NAMES if re.fullmatch(pattern, name)), None)


def _describe_names(names: list[str]) -> str | None:
    for pattern, text in _NAMES:
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            what, _, way = text.partition(". ")
            return f"holds {what} ({join_some(found, 3)}). {way}"
    return None
