"""A random OPUS-MT model: a folder of Hugging Face, which every peer reads with its own loader."""

import io
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.configurations import Size

BEAMS = 4  # which the folder asks for
NEVER = -1e4  # added to the logits of tokens that end a row, or fill it


def save_marian(size: Size, folder: Path) -> None:
    """Write the folder, and the ids that systems need next to it.

    The tokens are called as CTranslate2's are elsewhere: t2, t3 and so on.
    """
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    from benchmarks.systems import SPECIAL_IDS

    pad = size.vocab_size - 1
    ids: dict[str, Any] = {
        "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
    }  # fmt: skip
    config = MarianConfig(
        vocab_size=size.vocab_size, d_model=size.d_model, encoder_layers=size.layers,
        decoder_layers=size.layers, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=size.d_ff, decoder_ffn_dim=size.d_ff, max_position_embeddings=512,
        activation_function="swish", scale_embedding=True, **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MarianMTModel(config).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name and "shared" not in name:
            torch.nn.init.xavier_normal_(parameter)  # as trained weights are distributed
        if name.endswith("encoder_attn.out_proj.weight"):
            parameter.mul_(3.0)  # listen to the source
    table = model.model.shared.weight
    torch.nn.init.normal_(table, std=size.d_model**-0.5)
    table[pad] = 0
    model.final_logits_bias.zero_()
    model.final_logits_bias[0, [0, pad]] = NEVER
    generation: Any = GenerationConfig
    # As published folders are configured, but that no end is forced.
    model.generation_config = generation(
        max_length=512, num_beams=BEAMS, bad_words_ids=[[pad]], **ids
    )
    model.save_pretrained(folder)
    _save_tokenizer(size.vocab_size, folder)
    special = {"start": pad, "eos": 0, "pad": pad}
    (folder.parent / SPECIAL_IDS).write_text(json.dumps(special))


def _save_tokenizer(size: int, folder: Path) -> None:
    import sentencepiece

    words = ["</s>", "<unk>", *(f"t{i}" for i in range(2, size - 1)), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a small text for a small model", "that no sentence is split by"]),
        model_writer=model, vocab_size=30, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model.getvalue())
    settings = {"source_lang": "de", "target_lang": "en", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def convert_marian(checkpoint: Path, folder: Path, quantization: str | None) -> None:
    """Convert the folder with CTranslate2's own converter."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(checkpoint)).convert(str(folder), quantization=quantization)
