"""Inputs and outputs of every graph: names, dtypes and axes, as data.

Names follow Hugging Face and Optimum, so that other tools understand the files. The exporter and
the runtime both take names from here.
"""

from dataclasses import dataclass

BATCH = "batch"
SOURCE = "source_length"
TARGET = "target_length"
PAST = "past_length"
PRESENT = f"{PAST} + {TARGET}"

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
ENCODER_ATTENTION_MASK = "encoder_attention_mask"
HIDDEN_STATES = "encoder_hidden_states"
DECODER_ATTENTION_MASK = "decoder_attention_mask"
LOGITS = "logits"
LOG_PROBS = "log_probs"
GENERATE = "generate"
MAX_LENGTH = "max_length"
SEQUENCES = "sequences"
CROSS_ATTENTIONS = "cross_attentions"
SCORES = "scores"
RETURN_SCORES = "return_scores"
DECODER_HIDDEN_STATES = "decoder_hidden_states"
SHORTLIST = "shortlist"
BEAM = "beam"
BEAM_SIZE = "beam_size"
ENOUGH = "enough"
BEAMS = "beams"
ROWS = "rows"
CANDIDATES = "candidates"


@dataclass(frozen=True)
class TensorSpec:
    """One graph input or output.

    Attributes:
        name: as in the file.
        dtype: numpy's name of the element type.
        axes: a number for a fixed axis, a name for a dynamic one.
    """

    name: str
    dtype: str
    axes: tuple[int | str, ...]


SOURCE_INPUTS = (
    TensorSpec(INPUT_IDS, "int64", (BATCH, SOURCE)),
    TensorSpec(ATTENTION_MASK, "int64", (BATCH, SOURCE)),
)


@dataclass(frozen=True)
class GraphSpec:
    """One graph file and the order of its inputs and outputs.

    Attributes:
        name: the graph's role.
        inputs: required ones.
        outputs: identified by their position.
        optional_inputs: with a default value.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional_inputs: tuple[TensorSpec, ...] = ()

    @property
    def filename(self) -> str:
        """The graph's file inside a bundle."""
        return f"{self.name}.onnx"


@dataclass(frozen=True)
class CacheShape:
    """The sizes that decide the shape of every cache tensor."""

    num_layers: int
    num_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Values of all heads together."""
        return self.num_heads * self.head_dim

    def tensors(self, name: str, axis: str) -> tuple[TensorSpec, ...]:
        """Key and value of every layer; ``name`` holds the layer as ``{layer}``."""
        axes = (BATCH, self.num_heads, axis, self.head_dim)
        return tuple(
            TensorSpec(f"{name.format(layer=layer)}.{part}", "float32", axes)
            for layer in range(self.num_layers)
            for part in ("key", "value")
        )


def past_decoder(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """Self-attention keys and values that go into the decoder."""
    return cache.tensors("past_key_values.{layer}.decoder", PAST)


def past_encoder(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """Cross-attention keys and values that go into the decoder."""
    return cache.tensors("past_key_values.{layer}.encoder", SOURCE)


def present_decoder(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """Self-attention keys and values that come out of the decoder."""
    return cache.tensors("present.{layer}.decoder", PRESENT)


def present_encoder(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """Cross-attention keys and values that come out of the encoder."""
    return cache.tensors("present.{layer}.encoder", SOURCE)


def encoder_graph(cache: CacheShape, d_model: int) -> GraphSpec:
    """Source ids to encoder states and the cross-attention cache."""
    return GraphSpec(
        "encoder",
        inputs=SOURCE_INPUTS,
        outputs=(
            TensorSpec(HIDDEN_STATES, "float32", (BATCH, SOURCE, d_model)),
            *present_encoder(cache),
        ),
    )


def decoder_graph(cache: CacheShape, vocab_size: int) -> GraphSpec:
    """Target ids and both caches to logits, the longer cache and the cross-attention weights."""
    weights = (BATCH, cache.num_layers, cache.num_heads, TARGET, SOURCE)
    return GraphSpec(
        "decoder",
        inputs=(
            TensorSpec(INPUT_IDS, "int64", (BATCH, TARGET)),
            TensorSpec(ENCODER_ATTENTION_MASK, "int64", (BATCH, SOURCE)),
            *past_decoder(cache),
            *past_encoder(cache),
        ),
        outputs=(
            TensorSpec(LOGITS, "float32", (BATCH, TARGET, vocab_size)),
            *present_decoder(cache),
            TensorSpec(CROSS_ATTENTIONS, "float32", weights),
        ),
    )


def shortlist_graph(cache: CacheShape) -> GraphSpec:
    """``decoder_graph`` with an input ``candidates``, and logits of these ids only."""
    decoder = decoder_graph(cache, 0)
    return GraphSpec(
        SHORTLIST,
        inputs=(*decoder.inputs, TensorSpec(CANDIDATES, "int64", (CANDIDATES,))),
        outputs=(
            TensorSpec(LOGITS, "float32", (BATCH, TARGET, CANDIDATES)),
            *decoder.outputs[1:],
        ),
    )


def forward_graph(
    d_model: int,
    num_heads: int,
    vocab_size: int | None,
    attention_biases: bool = False,
    log_probs: bool = False,
    decoder_num_heads: int | None = None,
) -> GraphSpec:
    """A source and a whole target to logits; the causal mask is part of the graph.

    Args:
        d_model: E.
        num_heads: H.
        vocab_size: V; None for a model without embeddings, from vectors to hidden states.
        attention_biases: add three inputs, which are added to the attention scores.
        log_probs: add an output, the log-softmax of the logits.
        decoder_num_heads: H of the decoder, where it differs.
    """
    heads = num_heads if decoder_num_heads is None else decoder_num_heads
    masks = (
        TensorSpec(ATTENTION_MASK, "int64", (BATCH, SOURCE)),
        TensorSpec(DECODER_ATTENTION_MASK, "int64", (BATCH, TARGET)),
    )
    if vocab_size is None:
        sides = (
            TensorSpec("inputs_embeds", "float32", (BATCH, SOURCE, d_model)),
            TensorSpec("decoder_inputs_embeds", "float32", (BATCH, TARGET, d_model)),
        )
        outputs = [TensorSpec(DECODER_HIDDEN_STATES, "float32", (BATCH, TARGET, d_model))]
    else:
        sides = (
            TensorSpec(INPUT_IDS, "int64", (BATCH, SOURCE)),
            TensorSpec("decoder_input_ids", "int64", (BATCH, TARGET)),
        )
        outputs = [TensorSpec(LOGITS, "float32", (BATCH, TARGET, vocab_size))]
        if log_probs:
            outputs.append(TensorSpec(LOG_PROBS, "float32", (BATCH, TARGET, vocab_size)))
    biases = (
        TensorSpec("encoder_attention_bias", "float32", (BATCH, num_heads, SOURCE, SOURCE)),
        TensorSpec("decoder_attention_bias", "float32", (BATCH, heads, TARGET, TARGET)),
        TensorSpec("cross_attention_bias", "float32", (BATCH, heads, TARGET, SOURCE)),
    )
    return GraphSpec(
        "forward",
        inputs=(sides[0], masks[0], sides[1], masks[1], *(biases if attention_biases else ())),
        outputs=tuple(outputs),
    )


def generate_graph(
    attention: CacheShape | None = None,
    can_skip_scores: bool = False,
    inputs: tuple[TensorSpec, ...] = SOURCE_INPUTS,
) -> GraphSpec:
    """A source to whole sequences: encoder, cache and the greedy loop in one graph.

    Args:
        attention: layers and heads of the cross-attention, if its weights are an output.
        can_skip_scores: add the optional input ``return_scores``, as in a bundle; if it is false,
            the scores are NaN.
        inputs: of the encoder.
    """
    weights: tuple[TensorSpec, ...] = ()
    if attention is not None:
        shape = (BATCH, attention.num_layers, attention.num_heads, TARGET, SOURCE)
        weights = (TensorSpec(CROSS_ATTENTIONS, "float32", shape),)
    return GraphSpec(
        GENERATE,
        inputs=(*inputs, TensorSpec(MAX_LENGTH, "int64", ())),
        outputs=(
            TensorSpec(SEQUENCES, "int64", (BATCH, TARGET)),
            TensorSpec(SCORES, "float32", (BATCH,)),
            *weights,
        ),
        optional_inputs=(TensorSpec(RETURN_SCORES, "bool", ()),) if can_skip_scores else (),
    )


def beam_graph(inputs: tuple[TensorSpec, ...] = SOURCE_INPUTS) -> GraphSpec:
    """A source to the record of a beam search over T steps.

    ``beam_size`` is K. A sentence is finished after ``enough`` finished hypotheses. The record
    holds the top N = 2 K candidates of each step: their tokens, the beams they extend, and the
    log-probabilities of these tokens. The next step continues the first K that are not end tokens.
    """
    record = (TARGET, BATCH, CANDIDATES)
    return GraphSpec(
        BEAM,
        inputs=(
            *inputs,
            TensorSpec(MAX_LENGTH, "int64", ()),
            TensorSpec(BEAM_SIZE, "int64", ()),
            TensorSpec(ENOUGH, "int64", ()),
        ),
        outputs=(
            TensorSpec("tokens", "int64", record),
            TensorSpec("parents", "int64", record),
            TensorSpec("log_probs", "float32", record),
        ),
    )
