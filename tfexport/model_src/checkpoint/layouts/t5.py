"""T5 of Hugging Face: version 1.0; and 1.1, FLAN and ByT5, which gate and are not tied."""

from tfexport.model_src.checkpoint.t5_like import T5Family

T5 = T5Family(
    name="t5",
    title="T5 of Hugging Face",
    tied=True,
    scaled_by_5=None,
    feed_forward="relu",
).layout()
