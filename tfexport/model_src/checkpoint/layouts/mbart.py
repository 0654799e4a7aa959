"""mBART of Hugging Face, and mBART-50."""

from tfexport.model_src.checkpoint.layouts.bart_like import EMBEDDING_NORM, PRE_NORM, BartLike

LAYOUT = BartLike(
    name="mbart",
    title="mBART of Hugging Face",
    model_type="mbart",
    facts={**PRE_NORM, **EMBEDDING_NORM, "positions": "learned"},
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "scale_embedding": False,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
    },
    skipped_rows=2,
    tokenizer_class="MBartTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
