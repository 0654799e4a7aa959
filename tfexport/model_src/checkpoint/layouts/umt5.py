"""UMT5 of Hugging Face, whose layers have their own tables of relative positions."""

from tfexport.model_src.checkpoint.t5_like import T5Family

UMT5 = T5Family(
    name="umt5",
    title="UMT5 of Hugging Face",
    tied=True,
    scaled_by_5=True,
    feed_forward="gated-gelu",
    every_layer=True,
).layout()
