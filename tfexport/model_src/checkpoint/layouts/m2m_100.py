"""M2M-100 of Hugging Face, and NLLB.

The class has no bias of the logits. Positions are counted from the padding id and have no limit;
the layout takes ``max_position_embeddings`` for one.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import PRE_NORM, BartLike

LAYOUT = BartLike(
    name="m2m-100",
    title="M2M-100 of Hugging Face (NLLB)",
    model_type="m2m_100",
    facts={
        **PRE_NORM,
        "positions": "sinusoidal_t2t",
        "padding_has_position": False,
        "output_bias": False,
    },
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    },
    tokenizer_class="M2M100Tokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
