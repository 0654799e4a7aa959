"""Marian of Hugging Face: OPUS-MT.

Decoding starts with the padding id; there is no bos.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import POST_NORM, BartLike, Tables

LAYOUT = BartLike(
    name="marian",
    title="Marian of Hugging Face (OPUS-MT)",
    model_type="marian",
    facts={**POST_NORM, "positions": "sinusoidal_halves"},
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "scale_embedding": False,
        "pad_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "decoder_start_token_id": 58100,
    },
    has_start_alone=True,
    tables=Tables(may_differ=True),
    tokenizer_class="MarianTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
