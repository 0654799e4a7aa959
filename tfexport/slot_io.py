"""Inputs and outputs of the graph of a running batch, whose rows stand at positions of their own.

See ``graph_io``, which has those of the other graphs.
"""

from tfexport.graph_io import BATCH, INPUT_IDS, LOGITS, CacheShape, GraphSpec, TensorSpec

STEP = "step"
POSITIONS = "positions"
SOURCE_LENGTHS = "source_lengths"
RETURN_LOGITS = "return_logits"
BEST = "best"
BUFFER = "buffer_length"
SOURCE_BUFFER = "source_buffer_length"
LOGIT_ROWS = "logit_rows"


def slot_width(head_dim: int) -> int:
    """Values of a head in the buffers of ``step_graph``: GroupQueryAttention wants eights."""
    return -(-head_dim // 8) * 8


def step_graph(cache: CacheShape, vocab_size: int) -> GraphSpec:
    """One step of rows that stand at positions of their own.

    The caches are buffers, longer than what they hold: row b has ``positions[b]`` tokens in the
    decoder's, to which the graph adds one, and ``source_lengths[b]`` in the encoder's, of which
    ``last`` has the last one, too. In place, if the same memory is given for ``past_key_values``
    and ``present``. Heads are padded with zeros to ``slot_width``. ``best`` is the argmax of the
    logits; the logits have no rows if ``return_logits`` is false.
    """
    wide = CacheShape(cache.num_layers, cache.num_heads, slot_width(cache.head_dim))
    last = tuple(
        TensorSpec(f"last.{layer}.encoder.{part}", "float32", (BATCH, 1, wide.width))
        for layer in range(cache.num_layers)
        for part in ("key", "value")
    )
    return GraphSpec(
        STEP,
        inputs=(
            TensorSpec(INPUT_IDS, "int64", (BATCH, 1)),
            TensorSpec(POSITIONS, "int32", (BATCH,)),
            TensorSpec(SOURCE_LENGTHS, "int32", (BATCH,)),
            TensorSpec(RETURN_LOGITS, "bool", ()),
            *wide.tensors("past_key_values.{layer}.decoder", BUFFER),
            *wide.tensors("past_key_values.{layer}.encoder", SOURCE_BUFFER),
            *last,
        ),
        outputs=(
            TensorSpec(BEST, "int64", (BATCH, 1)),
            TensorSpec(LOGITS, "float32", (LOGIT_ROWS, vocab_size)),
            *wide.tensors("present.{layer}.decoder", BUFFER),
            *wide.tensors("present.{layer}.encoder", SOURCE_BUFFER),
        ),
    )
