"""PLBART of Hugging Face: BART for programming languages.

Decoding starts with the language of the target.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import EMBEDDING_NORM, POST_NORM, BartLike

LAYOUT = BartLike(
    name="plbart",
    title="PLBART of Hugging Face",
    model_type="plbart",
    facts={**POST_NORM, **EMBEDDING_NORM, "positions": "learned"},
    class_defaults={
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "scale_embedding": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
    },
    skipped_rows=2,
    reads_texts=True,
    tokenizer_class="PLBartTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
