"""MT5 of Hugging Face: the output projection has its own table."""

from tfexport.model_src.checkpoint.layouts.t5_like import T5Family

LAYOUT = T5Family(
    name="mt5",
    title="MT5 of Hugging Face",
    tied=False,
    scaled_by_5=False,
    feed_forward="gated-gelu",
    tokenizer_class="T5Tokenizer",
    reference="tfexport.export.reference.t5_like",
).layout()
