"""M2M-100 and NLLB of Hugging Face.

The class has no bias of the logits. Its positions begin after that of padding, and have no end;
``max_position_embeddings`` is taken for one.
"""

from tfexport.model_src.checkpoint.bart_like import PRE_NORM, BartLike

M2M_100 = BartLike(
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
).layout()
