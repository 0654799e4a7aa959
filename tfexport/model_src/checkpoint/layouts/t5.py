"""T5 of Hugging Face: version 1.0; and 1.1, FLAN and ByT5.

The later ones have gates and a separate output projection.
"""

from tfexport.model_src.checkpoint.layouts.t5_like import T5Family

LAYOUT = T5Family(
    name="t5",
    title="T5 of Hugging Face",
    tied=True,
    scaled_by_5=None,
    feed_forward="relu",
    tokenizer_class="T5Tokenizer",
    reference="tfexport.export.reference.t5_like",
).layout()
