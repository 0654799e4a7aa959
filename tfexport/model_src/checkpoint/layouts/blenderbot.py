"""Blenderbot of Hugging Face."""

from tfexport.model_src.checkpoint.layouts.bart_like import PRE_NORM, BartLike

LAYOUT = BartLike(
    name="blenderbot",
    title="Blenderbot of Hugging Face",
    model_type="blenderbot",
    facts={**PRE_NORM, "positions": "learned"},
    class_defaults={
        "encoder_attention_heads": 32,
        "decoder_attention_heads": 32,
        "max_position_embeddings": 128,
        "activation_function": "gelu",
        "scale_embedding": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    reads_texts=True,
    tokenizer_class="BlenderbotTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
