"""Tiny Hugging Face models of every family, with weights far from their initial values.

Biases, norms and ``final_logits_bias`` are drawn too, so that none can be forgotten unseen.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.layouts.bart_like import BartLike

OF_FOLDERS = {
    kind: layout
    for layout in LAYOUTS.values()
    if layout.generation is not None
    for kind in layout.model_types
}


def _known_to_transformers() -> list[str]:
    """Every ``model_type`` of a layout that the library has a class for, if it is installed."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return list(OF_FOLDERS)
    return [family for family in OF_FOLDERS if family in CONFIG_MAPPING]


FAMILIES = _known_to_transformers()
BART_LIKE = [
    family
    for family in FAMILIES
    if isinstance(getattr(OF_FOLDERS[family].prepare, "__self__", None), BartLike)
]
T5_LIKE = [family for family in FAMILIES if family not in BART_LIKE]
_BART_SIZES: Mapping[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20,
    "max_position_embeddings": 40,
}  # fmt: skip
_T5_SIZES: Mapping[str, Any] = {
    "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 3,
    "vocab_size": 64,
}  # fmt: skip
# What is published for a family where it is not the class's default.
_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "marian": {
        "pad_token_id": 60, "decoder_start_token_id": 60, "vocab_size": 61,
        "scale_embedding": True, "activation_function": "swish",
    },
    "plbart": {"decoder_start_token_id": 50},
    "mbart": {"scale_embedding": True, "activation_function": "relu", "decoder_start_token_id": 2},
    "pegasus": {"scale_embedding": True, "activation_function": "relu"},
    "blenderbot": {"scale_embedding": True},
    "blenderbot-small": {"scale_embedding": True},
    "fsmt": {"src_vocab_size": 64, "tgt_vocab_size": 56},
    "t5": {"decoder_start_token_id": 0},
}  # fmt: skip


def make_model(
    family: str, seed: int = 0, *, untied: bool = False, embeddings: float = 1.0, **config: Any
) -> Any:
    """A model of a family, in eval mode, with eager attention.

    Args:
        family: its ``model_type``, one of ``FAMILIES``.
        seed: of the weights.
        untied: the output projection is a table of its own.
        embeddings: deviation of the embedding tables; small ones show a norm's eps.
        config: values of the family's config class, which win over a tiny model's.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    sizes = _BART_SIZES if family in BART_LIKE else _T5_SIZES
    values = {"vocab_size": 64, **sizes, **_PUBLISHED.get(family, {}), **config}
    if family == "fsmt":
        del values["vocab_size"]
    if untied:
        values["tie_word_embeddings"] = False
    config_class: Any = transformers.CONFIG_MAPPING[family]
    made = config_class(attn_implementation="eager", **values)
    model = getattr(transformers, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[family])(made)
    if untied:
        holder, part = output_holder(model)
        old = getattr(holder, part)
        new = nn.Linear(old.in_features, old.out_features, bias=False)
        setattr(holder, part, new)
    draw_weights(model, seed, embeddings)
    return model.eval()


def output_holder(model: Any) -> tuple[nn.Module, str]:
    """The module that has the output projection, and its name there."""
    if model.config.model_type == "fsmt":
        return model.model.decoder, "output_projection"
    return model, "lm_head"


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int, embeddings: float = 1.0) -> None:
    """Draw every trained weight anew; computed position tables stay."""
    generator = torch.Generator().manual_seed(seed)
    computed = {
        id(module.weight)
        for module in model.modules()
        if "Sinusoidal" in type(module).__name__ and hasattr(module, "weight")
    }
    for name, weight in model.named_parameters():
        if id(weight) in computed:
            continue
        drawn, size = torch.randn(weight.shape, generator=generator), weight.size(-1)
        if weight.dim() == 1:
            weight.copy_(1 + 0.5 * drawn if name.endswith("weight") else 0.5 * drawn)
        else:
            of_tokens = "embed_tokens" in name or "shared" in name
            deviation = embeddings if of_tokens else 1.0 if _is_table(name) else 1.5 * size**-0.5
            weight.copy_(drawn * deviation)
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.normal_(generator=generator)


def _is_table(name: str) -> bool:
    return any(part in name for part in ("embed_positions", "relative_attention_bias"))


def save_folder(model: Any, path: Path, weights: str = "safetensors", **generation: Any) -> Path:
    """Write a model as a Hugging Face folder, and give the folder.

    Args:
        model: of ``make_model``.
        path: of the folder, which need not exist.
        weights: "safetensors", or "bin" for ``pytorch_model.bin`` with every alias.
        generation: values of generation_config.json on top of the model's own.
    """
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    path.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    if weights == "bin":
        torch.save(model.state_dict(), path / "pytorch_model.bin")
        model.config.save_pretrained(path)
        model.generation_config.save_pretrained(path)
    else:
        model.save_pretrained(path)
    holder, part = output_holder(model)
    own_head = getattr(holder, part).weight is not model.get_decoder().embed_tokens.weight
    change_json(path / "config.json", tie_word_embeddings=not own_head)
    return path


def change_json(path: Path, *without: str, **values: Any) -> None:
    """Set values of a JSON file, and take keys out."""
    found = json.loads(path.read_text())
    kept = {key: value for key, value in {**found, **values}.items() if key not in without}
    path.write_text(json.dumps(kept))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the state dict in a folder."""
    path = folder / "model.safetensors"
    if path.is_file():
        state = load_file(path)
        change(state)
        save_file(state, path)
    else:
        path = folder / "pytorch_model.bin"
        state = torch.load(path)
        change(state)
        torch.save(state, path)


@dataclass(frozen=True)
class Padded:
    """A batch whose rows end at unequal lengths.

    Attributes:
        ids: (B, S), padded on the right with the model's own pad id.
        mask: (B, S), 1 at tokens and 0 at padding.
        target: (B, T), the decoder's start id and T - 1 more.
    """

    ids: Tensor
    mask: Tensor
    target: Tensor


def padded_batch(
    model: Any, seed: int = 0, lengths: Sequence[int] = (9, 5, 1), target: int = 7
) -> Padded:
    """Rows of these lengths, without special ids inside, and ``target`` decoder ids for each."""
    config = model.config
    draw = random.Random(seed)
    source_size = getattr(config, "src_vocab_size", None) or config.vocab_size
    target_size = model.get_output_embeddings().weight.size(0)
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    values = [getattr(config, name, None) for name in names]
    special = {id_ for it in values for id_ in (it if isinstance(it, list) else [it])}
    sources = [id_ for id_ in range(source_size) if id_ not in special]
    targets = [id_ for id_ in range(target_size) if id_ not in special]
    rows = [draw.choices(sources, k=length) for length in lengths]
    longest = max(lengths)
    pad, start = config.pad_token_id, config.decoder_start_token_id
    return Padded(
        torch.tensor([row + [pad] * (longest - len(row)) for row in rows]),
        torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
        torch.tensor([[start, *draw.choices(targets, k=target - 1)] for _ in rows]),
    )


@torch.no_grad()
def log_probs(model: Any, batch: Padded) -> Tensor:
    """(B, T, V): what transformers itself gives."""
    made = model(
        input_ids=batch.ids,
        attention_mask=batch.mask,
        decoder_input_ids=batch.target,
        use_cache=False,
    )
    return torch.log_softmax(made.logits.float(), -1)
