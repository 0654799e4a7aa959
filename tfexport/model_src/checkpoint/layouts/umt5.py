"""UMT5 of Hugging Face: each layer has its own table of relative positions."""

from tfexport.model_src.checkpoint.layouts.t5_like import T5Family

LAYOUT = T5Family(
    name="umt5",
    title="UMT5 of Hugging Face",
    tied=True,
    scaled_by_5=True,
    feed_forward="gated-gelu",
    tokenizer_class="TokenizersBackend",
    every_layer=True,
    reference="tfexport.export.reference.t5_like",
).layout()
