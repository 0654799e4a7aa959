"""Blenderbot-small of Hugging Face.

The decoder does not scale its embeddings, even where ``scale_embedding`` is true, and normalises
them before it adds positions.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import POST_NORM, BartLike

LAYOUT = BartLike(
    name="blenderbot-small",
    title="Blenderbot-small of Hugging Face",
    model_type="blenderbot-small",
    facts={
        **POST_NORM,
        "positions": "learned",
        "source_embedding_norm": "sum",
        "target_embedding_norm": "tokens",
        "scale_target_embeddings": False,
    },
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 512,
        "activation_function": "gelu",
        "scale_embedding": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    framing={},
    reads_texts=True,
    tokenizer_class="BlenderbotSmallTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
