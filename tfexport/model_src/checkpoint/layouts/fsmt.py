"""FSMT of Hugging Face: models of fairseq, as those of WMT19.

Each side has its own vocabulary. The class has no bias of the logits. Positions are counted from
the padding id and have no limit; the layout takes ``max_position_embeddings`` for one. Padding is
never written, as in fairseq: transformers 4 and 5 give the tokens after it different positions.
"""

from tfexport.model_src.checkpoint.layouts.bart_like import POST_NORM, BartLike, Tables

LAYOUT = BartLike(
    name="fsmt",
    title="FSMT of Hugging Face",
    model_type="fsmt",
    facts={**POST_NORM, "positions": "sinusoidal_t2t", "output_bias": False},
    writes_padding=False,
    class_defaults={
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "relu",
        "scale_embedding": True,
        "tie_word_embeddings": False,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "max_length": 200,
        "num_beams": 5,
        "decoder_start_token_id": 2,
    },
    # Before transformers 5, the class tied its output projection, which files then lack.
    tables=Tables("{prefix}decoder.output_projection.weight", shared=False, head_always_tied=True),
    source_vocabulary="src_vocab_size",
    target_vocabulary="tgt_vocab_size",
    tokenizer_class="FSMTTokenizer",
    reference="tfexport.export.reference.bart_like",
).layout()
