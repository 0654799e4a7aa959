"""Checkpoints that are not read: each with the reason and an alternative."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfexport.bundle import is_bundle
from tfexport.errors import CheckpointError, ConfigError, Message, join_some
from tfexport.model_src.config import FRAMING, config_keys, nearest_key

MODULE = "export the module itself with the lines below"
FOLDER = "pass the folder that save_pretrained of transformers wrote, its config.json included"
BY_FORWARD = "with transformers installed, its folder is exported by its own forward"
OPTIMUM = "Optimum exports it to ONNX"
CTRANSLATE2 = "CTranslate2 converts it"


@dataclass(frozen=True)
class Unsupported:
    """A model that is not read.

    Attributes:
        title: the name in messages.
        reason: a clause, "because …" without the word; empty where the title says it.
        ways: clauses that name an alternative.
    """

    title: str
    reason: str
    ways: tuple[str, ...] = (MODULE,)

    def __str__(self) -> str:
        ways = "; ".join(self.ways)
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.title}, which no layout reads{reason}. {ways[0].upper()}{ways[1:]}."


_EXPERTS = "its feed-forward layers are mixtures of experts, chosen for each token by a router"
_N_GRAM = "its decoder predicts several tokens at a time"
_SPEECH = "it reads audio, and no layout reads anything but token ids"
_IMAGE = "its encoder reads images, and no layout reads anything but token ids"
_DECODER = "it is a decoder alone, and tfexport exports an encoder and a decoder"
_ENCODER = "it is an encoder alone, which generates nothing"

# What the forward of a model takes, by the reason why no layout reads it; ids otherwise.
_INPUTS = {
    "Whisper of OpenAI's": '"mel", "float32", ("batch", 80, 3000)',
    _SPEECH: '"input_features", "float32", ("batch", 80, "frames")',
    _IMAGE: '"pixel_values", "float32", ("batch", 3, 224, 224)',
}
_IDS = '"input_ids", "int64", ("batch", "source_length")'


@contextlib.contextmanager
def with_lines(path: Path | None = None, inside: Sequence[Any] | None = None) -> Iterator[None]:
    """Inside the block, add the lines of code to errors that name ``MODULE`` as a way.

    Args:
        path: the checkpoint; None for a module in memory.
        inside: the keys that lead to the state dict in what ``torch.load`` gives; None if it gives
            no state dict, or one with other keys than the module's.
    """
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        raise type(error)(add_lines(error.message, path, inside)) from error.__cause__


def add_lines(
    message: str | Message, path: Path | None = None, inside: Sequence[Any] | None = None
) -> Message:
    """A message, with the lines of code if it names ``MODULE`` as a way; see ``with_lines``."""
    text = str(message)
    if MODULE[1:] not in text:  # it may begin a sentence
        return Message(message)
    inputs = next((code for reason, code in _INPUTS.items() if reason in text), _IDS)
    first = ["from tfexport.export import Input, export"]
    if path is not None:
        first += _loading(path, inside)
    lines = [
        *first,
        f'export(model, "model.bundle", inputs=[Input({inputs})],',
        "       pad_id=PAD_IDX, bos_id=BOS_IDX, eos_id=EOS_IDX, max_length=100)",
    ]
    where = "In your training script (docs/training-script.md has other inputs and calls):"
    return Message(message, f"\n{where}\n\n", "\n".join(lines))


def _loading(path: Path, inside: Sequence[Any] | None) -> list[str]:
    """Lines that build a model with the weights of a file."""
    name = _quoted(str(path))
    made = "model = YourModel()  # as it is built there"
    if inside is None:
        return [f"{made}, with the weights of {name}"]
    if path.suffix == ".safetensors":
        load = f"model.load_state_dict(load_file({name}))"
        return ["from safetensors.torch import load_file", made, load]
    keys = "".join(f"[{_quoted(key) if isinstance(key, str) else repr(key)}]" for key in inside)
    # A file that was saved on a GPU names its device, which this machine may not have.
    load = f'torch.load({name}, map_location="cpu", weights_only=True)'
    return [made, f"model.load_state_dict({load}{keys})"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# By the ``model_type`` of config.json.
UNSUPPORTED = {
    "led": Unsupported(
        "LED", "its encoder attends in windows and to global tokens", (BY_FORWARD, MODULE)
    ),
    "longt5": Unsupported(
        "LongT5", "its encoder attends in windows or through transient global tokens",
        (BY_FORWARD, MODULE, OPTIMUM),
    ),
    "bigbird_pegasus": Unsupported(
        "BigBird-Pegasus", "its encoder attends to random blocks", (BY_FORWARD, MODULE, OPTIMUM)
    ),
    "pegasus_x": Unsupported(
        "Pegasus-X", "its encoder attends in blocks and to global tokens", (BY_FORWARD, MODULE)
    ),
    "prophetnet": Unsupported("ProphetNet", _N_GRAM),
    "xlm-prophetnet": Unsupported("XLM-ProphetNet", _N_GRAM),
    "nllb-moe": Unsupported("NLLB-MoE", _EXPERTS, (BY_FORWARD, MODULE)),
    "switch_transformers": Unsupported("Switch Transformers", _EXPERTS, (BY_FORWARD, MODULE)),
    "mvp": Unsupported(
        "MVP", "it prepends prompts to the keys of every attention", (BY_FORWARD, MODULE)
    ),
    "t5gemma": Unsupported(
        "T5Gemma", "its layers are Gemma's: rotary, grouped and soft-capped attention",
        (BY_FORWARD, MODULE, CTRANSLATE2),
    ),
    "t5gemma2": Unsupported(
        "T5Gemma 2", "its layers are Gemma's: rotary, grouped and soft-capped attention",
        (MODULE, CTRANSLATE2),
    ),
    "encoder-decoder": Unsupported(
        "an encoder-decoder of two models (such as BERT)",
        "the two halves compute differently", (BY_FORWARD, MODULE, OPTIMUM),
    ),
    "whisper": Unsupported("Whisper", _SPEECH, (BY_FORWARD, CTRANSLATE2, OPTIMUM, MODULE)),
    "speech_to_text": Unsupported("Speech2Text", _SPEECH, (BY_FORWARD, MODULE, OPTIMUM)),
    "speech-encoder-decoder": Unsupported(
        "a speech encoder-decoder", _SPEECH, (BY_FORWARD, MODULE)
    ),
    "moonshine": Unsupported("Moonshine", _SPEECH, (BY_FORWARD, MODULE)),
    "seamless_m4t": Unsupported("SeamlessM4T", _SPEECH),
    "seamless_m4t_v2": Unsupported("SeamlessM4T v2", _SPEECH),
    "speecht5": Unsupported("SpeechT5", _SPEECH, (MODULE, OPTIMUM)),
    "vision-encoder-decoder": Unsupported(
        "a vision encoder-decoder (such as TrOCR or Donut)", _IMAGE, (BY_FORWARD, MODULE, OPTIMUM)
    ),
    "trocr": Unsupported("TrOCR's decoder", _IMAGE, (MODULE, OPTIMUM)),
    "pix2struct": Unsupported("Pix2Struct", _IMAGE, (BY_FORWARD, MODULE, OPTIMUM)),
    **{
        kind: Unsupported(f"a decoder-only language model ({kind})", _DECODER, (CTRANSLATE2,))
        for kind in (
            "gpt2", "gptj", "gpt_neox", "gpt_bigcode", "opt", "bloom", "codegen", "falcon", "mpt",
            "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi",
            "phi3", "gpt_oss", "xglm",
        )
    },
    **{
        kind: Unsupported(f"an encoder-only model ({kind})", _ENCODER, (OPTIMUM,))
        for kind in (
            "bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "camembert",
            "deberta-v2", "mpnet", "modernbert",
        )
    },
}  # fmt: skip


_HUGGING_FACE_ALONE = ("architectures", "transformers_version")
_HUGGING_FACE_KEYS = ("model_type", *_HUGGING_FACE_ALONE)
_NO_LAYOUT = "docs/families.md has those that are read"
_ANYWHERE = (MODULE, "see whether Optimum exports or CTranslate2 converts it")

# Models, each with patterns of keys: one key has to match every pattern, and none those
# that start with "!". Only certain marks are listed, never the name of a single layer.
_MARKS: tuple[tuple[Unsupported, tuple[str, ...]], ...] = (
    (UNSUPPORTED["encoder-decoder"], (r"^encoder\.", r"^decoder\..*\.crossattention\.")),
    (
        Unsupported(
            "Whisper of OpenAI's own package",
            "it reads audio, and layouts read token ids",
            (MODULE, CTRANSLATE2),
        ),
        (r"^encoder\.conv1\.", r"^decoder\.blocks\.\d+\.cross_attn\."),
    ),
    (
        Unsupported("an Eole Transformer", "", (MODULE, CTRANSLATE2)),
        (
            r"^(src|tgt)_emb\.embeddings\.weight$",
            r"^(en|de)coder\.transformer_layers\.\d+\.(input|precontext|post_attention)_layernorm\.",
        ),
    ),
    (
        Unsupported("a model with recurrent layers (LSTM or GRU)", ""),
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

# Patterns of keys that only these have, by the ``model_type`` that the config.json of their folder
# has.
_UNSUPPORTED_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("led", (r"\.longformer_self_attn\.",)),
    ("longt5", (r"\.(LocalSelfAttention|TransientGlobalSelfAttention)\.",)),
    ("pegasus_x", (r"\.global_self_attn_layer_norm\.",)),
    ("prophetnet", (r"^prophetnet\.|\.ngram_embeddings\.",)),
    ("switch_transformers", (r"\.mlp\.(router|experts)\.",)),
    ("nllb-moe", (r"\.ffn\.(router|experts)\.",)),
    ("whisper", (r"^model\.encoder\.conv1\.", r"^model\.decoder\.layers\.\d+\.encoder_attn\.")),
    ("vision-encoder-decoder", (r"^encoder\.embeddings\.patch_embeddings\.",)),
)  # fmt: skip


def _fits(names: list[str], patterns: Iterable[str]) -> bool:
    return all(
        any(re.search(pattern.removeprefix("!"), name) for name in names)
        is not pattern.startswith("!")
        for pattern in patterns
    )


def describe_unsupported(names: Iterable[str]) -> str | None:
    """Name the model that a few names of tensors identify; None if none does."""
    names = list(names)
    for kind, patterns in _UNSUPPORTED_NAMES:
        if _fits(names, patterns):
            known = UNSUPPORTED[kind]
            return str(replace(known, ways=(FOLDER, *known.ways)))
    return None


def describe_names(names: Iterable[str]) -> str | None:
    """Name the project or kind of model that the names of tensors belong to; None if unknown."""
    names = list(names)
    if (unsupported := describe_unsupported(names)) is not None:
        return unsupported
    for unsupported_kind, patterns in _MARKS:
        if _fits(names, patterns):
            return str(unsupported_kind)
    return None


def describe_config(values: Mapping[str, Any]) -> str | None:
    """Name the model that a Hugging Face config.json describes, and why it is not read.

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


def is_one_stack(values: Mapping[str, Any]) -> bool:
    """Whether a Hugging Face config.json is that of an encoder or a decoder alone."""
    found = UNSUPPORTED.get(str(values.get("model_type")))
    return found is not None and found.reason in (_DECODER, _ENCODER)


def is_ours(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of tfexport: at least half of its keys are, misspelt ones included.

    Some keys of Hugging Face are similar (``encoder_layers``), so in their files only exact ones
    count.
    """
    known = (*config_keys(), "rename", "ignore", FRAMING)
    theirs = any(key in values for key in _HUGGING_FACE_ALONE)
    ours = [key for key in values if key in known or (not theirs and nearest_key(key, known))]
    return 2 * len(ours) >= len(values)


# Files that are not the plain weights of a complete model: adapters that were not merged, quantised
# weights, parts of a distributed training, files of other frameworks. Each is recognised by its
# keys, its names or its first bytes.


_MERGE = (
    "Merge them into the model, and save that: model = model.merge_and_unload() of PEFT, then "
    "model.save_pretrained('merged') or torch.save(model.state_dict(), 'model.pt'). "
    "Compare its logits with those before, as merging may give another model: "
    "docs/checkpoints.md, adapters."
)
_NOT_MERGED = "which are not merged into the weights; the model needs them."
_UNQUANTISED = (
    "which are not supported: tfexport quantises by itself. Pass the original model, or what "
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
    (r".*\.gguf", "a GGUF file of llama.cpp. Pass the weights that it was converted from."),
)  # fmt: skip
_HEADS = (
    (b"\x89HDF\r\n\x1a\n", "model.h5"),
    (b"GGUF", "model.gguf"),
)
_BUNDLE = (
    "a bundle of tfexport, which is exported already: 'tfexport translate', 'serve', 'verify' and "
    "'quantize' take it. Pass the checkpoint that it was exported from."
)


def describe_form(keys: Iterable[str]) -> str | None:
    """Describe the form of the weights with these keys; None for plain ones."""
    keys = list(keys)
    for pattern, text in _KEYS:
        if found := [key for key in keys if re.search(pattern, key)]:
            return f"holds {text} They are {join_some(found, 3)}."
    return None


def describe_form_of_folder(folder: Path, weights: bool) -> str | None:
    """Describe the form of the model of a folder; None for plain weights or an unknown form.

    Args:
        folder: the folder with the model's files.
        weights: whether it holds weights of PyTorch; then only adapters matter.
    """
    if is_bundle(folder):
        return _BUNDLE
    names = sorted(path.name for path in folder.iterdir())
    if adapters := [name for name in _ADAPTER_FILES if name in names]:
        how = "in addition to its weights" if weights else "alone"
        return (
            f"holds an adapter such as LoRA {how} ({', '.join(adapters)}). Merge it into the "
            "model, compare the logits of both (docs/checkpoints.md, adapters), save it, and "
            "export that:\n"
            f"  from peft import AutoPeftModelForSeq2SeqLM\n"
            f"  model = AutoPeftModelForSeq2SeqLM.from_pretrained({folder.name!r})\n"
            "  model.merge_and_unload().save_pretrained('merged')"
            + ("\nTo export the model without it, name the file of its weights." if weights else "")
        )
    return None if weights else _describe_names(names)


def describe_form_of_file(path: Path, head: bytes) -> str | None:
    """Describe the form of a file that is no checkpoint of PyTorch, by its name and first bytes."""
    if b"Spec\0" in head[:32]:
        return "a model of CTranslate2. Pass the weights that it was converted from."
    name = next((name for mark, name in _HEADS if head.startswith(mark)), path.name)
    return next((text for pattern, text in _NAMES if re.fullmatch(pattern, name)), None)


def _describe_names(names: list[str]) -> str | None:
    for pattern, text in _NAMES:
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            what, _, way = text.partition(". ")
            return f"holds {what} ({join_some(found, 3)}). {way}"
    return None
