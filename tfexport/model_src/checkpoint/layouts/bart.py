"""BART of Hugging Face."""

from tfexport.model_src.checkpoint.layouts.bart_like import EMBEDDING_NORM, POST_NORM, BartLike

LAYOUT = BartLike(
    name="bart",
    title="BART of Hugging Face",
    model_type="bart",
    facts={**POST_NORM, **EMBEDDING_NORM, "positions": "learned"},
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
        "decoder_start_token_id": 2,
    },
    framing={"add_source_bos": True, "add_source_eos": True},
    skipped_rows=2,
    reads_texts=True,
    tokenizer_class="RobertaTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
