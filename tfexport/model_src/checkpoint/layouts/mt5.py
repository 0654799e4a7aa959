"""MT5 of Hugging Face, whose output projection is a table of its own."""

from tfexport.model_src.checkpoint.t5_like import T5Family

MT5 = T5Family(
    name="mt5",
    title="MT5 of Hugging Face",
    tied=False,
    scaled_by_5=False,
    feed_forward="gated-gelu",
).layout()
