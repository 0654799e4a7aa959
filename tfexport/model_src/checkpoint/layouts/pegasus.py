"""Pegasus of Hugging Face.

Decoding starts with the padding id; there is no bos.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import PRE_NORM, BartLike

LAYOUT = BartLike(
    name="pegasus",
    title="Pegasus of Hugging Face",
    model_type="pegasus",
    facts={**PRE_NORM, "positions": "sinusoidal_halves"},
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "scale_embedding": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
    has_start_alone=True,
    reads_texts=True,
    tokenizer_class="PegasusTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
