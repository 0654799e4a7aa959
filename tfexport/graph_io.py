"""Inputs and outputs of every graph as data, including those of a user's module.

Names follow Hugging Face and Optimum, so that other tools understand the files. The exporter and
the runtime both take names from here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
STATES = "states"
EMBEDDINGS = "embeddings"
GENERATE = "generate"
MAX_LENGTH = "max_length"
SEQUENCES = "sequences"
CROSS_ATTENTIONS = "cross_attentions"
ALIGNMENT = "alignment"
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


class TensorSpec(NamedTuple):
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


class GraphSpec(NamedTuple):
    """One graph file and the order of its inputs and outputs.

    Attributes:
        name: the graph's role.
        inputs: required ones.
        outputs: identified by their position.
        optional_inputs: the inputs with a default value.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional_inputs: tuple[TensorSpec, ...] = ()

    @property
    def filename(self) -> str:
        """The graph's file inside a bundle."""
        return f"{self.name}.onnx"


class CacheShape(NamedTuple):
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
    """A source and a complete target to logits; the causal mask is part of the graph.

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
    """A source to complete sequences: encoder, cache and the greedy loop in one graph.

    Args:
        attention: layers and heads of the cross-attention, if its weights are an output.
        can_skip_scores: add the optional input ``return_scores``, as in a bundle; if it is false,
            the scores are NaN.
        inputs: the inputs of the encoder.
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


RULES = "rules."  # before names of inputs, which no parameter of a module can have
# Inputs of ``beam_graph``: the fields of ``runtime.model.interface.BeamRules``. ``stop`` is an
# index of ``STOPS``; a forced token is negative for none; rows of sequences are padded in front
# with ``ANY_TOKEN``, to two tokens at least; source tokens are given for the n-grams of sources,
# else without columns, and padded with ``NO_TOKEN``.
BEAM_RULES = tuple(
    TensorSpec(f"{RULES}{name}", dtype, axes)
    for name, dtype, axes in (
        ("ends", "int64", ("ends",)),
        ("start", "int64", ()),
        ("stop", "int64", ()),
        ("length_penalty", "float64", ()),
        ("on_log_probs", "bool", ()),
        ("renormalize", "bool", ()),
        ("first_token", "int64", ()),
        ("last_token", "int64", ()),
        ("min_length", "int64", ()),
        ("ngram", "int64", ()),
        ("source_ngram", "int64", ()),
        ("repetition_penalty", "float32", ()),
        ("suppressed", "int64", ("suppressed",)),
        ("suppressed_first", "int64", ("suppressed_first",)),
        ("sequences", "int64", ("sequences", "sequence_length")),
        ("source_tokens", "int64", (BATCH, "source_tokens")),
    )
)
STOPS = ("early", "present", "next", "longest")
ANY_TOKEN, NO_TOKEN = -1, -2


def beam_graph(inputs: tuple[TensorSpec, ...] = SOURCE_INPUTS) -> GraphSpec:
    """A source to the record of a beam search over T steps.

    ``beam_size`` is K. No sentence is done before its greatest length without ``enough`` finished
    hypotheses. The record holds the best N = K (1 + end tokens) candidates of each step: their
    tokens, the beams they extend, and the log-probabilities of these tokens. The next step
    continues the first K that are not end tokens. ``steps`` says after which step a sentence was
    done; it is -1 where the rules allow it no token. A forced first token is a step, too.
    """
    record = (TARGET, BATCH, CANDIDATES)
    return GraphSpec(
        BEAM,
        inputs=(
            *inputs,
            TensorSpec(MAX_LENGTH, "int64", ()),
            TensorSpec(BEAM_SIZE, "int64", ()),
            TensorSpec(ENOUGH, "int64", ()),
            *BEAM_RULES,
        ),
        outputs=(
            TensorSpec("tokens", "int64", record),
            TensorSpec("parents", "int64", record),
            TensorSpec("log_probs", "float32", record),
            TensorSpec("steps", "int64", (BATCH,)),
        ),
    )


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
    """One step of a continuous batch, whose rows are at different positions.

    The caches are buffers, longer than what they hold: row b has ``positions[b]`` tokens in the
    decoder's, to which the graph adds one, and ``source_lengths[b]`` in the encoder's, of which
    ``last`` has the last one, too. The step works in place if ``past_key_values`` and ``present``
    are the same memory. Heads are padded with zeros to ``slot_width``. ``best`` is the argmax of
    the logits; the logits have no rows if ``return_logits`` is false.
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


DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
POSITION = "position"
# Names of graph inputs in addition to the module's own.
RESERVED = (
    MAX_LENGTH, BEAM_SIZE, ENOUGH, RETURN_SCORES, POSITION,
)  # fmt: skip


class Growth(NamedTuple):
    """An axis of the state that grows.

    Attributes:
        start: its size before the first step: a number, or the name of an axis of the memory.
        step: how many values each step adds.
    """

    start: int | str
    step: int


class ModuleIO(NamedTuple):
    """The tensors of the graphs of a user's module; docs/modules.md has the contract.

    Attributes:
        inputs: the inputs of ``encode``.
        memory: ``memory.{i}``, the outputs of ``encode``; the batch is the first axis.
        state: ``past.{i}``; the batch is the first axis here too.
        growth: axes of the state that grow, by name.
        many_tokens: whether a step takes any number of tokens, or only one.
        padded: whether rows of unequal length may share a batch, padded on the right.
        recomputes: whether every step computes the complete prefix again.
        below: for each input that holds ids, the smallest number that is too large.
        longest: for each axis of the inputs that the code treats otherwise from some size on, the
            largest size before.
    """

    inputs: tuple[TensorSpec, ...]
    memory: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    growth: Mapping[str, Growth]
    many_tokens: bool
    padded: bool
    recomputes: bool
    below: Mapping[str, int]
    longest: Mapping[str, int] = MappingProxyType({})

    @property
    def takes_ids(self) -> bool:
        """Whether the only inputs are ids and their mask."""
        names = {tensor.name for tensor in self.inputs}
        return INPUT_IDS in names and names <= {
            INPUT_IDS, ATTENTION_MASK
        }  # fmt: skip

    @property
    def masked(self) -> bool:
        """Whether there is an ``attention_mask``."""
        return any(tensor.name == ATTENTION_MASK for tensor in self.inputs)

    def state_named(self, prefix: str) -> tuple[TensorSpec, ...]:
        """The state between two steps, under other names."""
        return self._renamed(prefix, {})

    def state_before(self, prefix: str = "past") -> tuple[TensorSpec, ...]:
        """The state before the first step."""
        return self._renamed(prefix, {name: axis.start for name, axis in self.growth.items()})

    def state_after(self, tokens: str, prefix: str = "present") -> tuple[TensorSpec, ...]:
        """The state after a step of ``tokens`` tokens."""
        after = {
            name: f"{name} + {tokens if axis.step == 1 else f'{axis.step} * {tokens}'}"
            for name, axis in self.growth.items()
        }
        return self._renamed(prefix, after)

    def _renamed(self, prefix: str, axes: Mapping[str, int | str]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                f"{prefix}.{i}",
                tensor.dtype,
                tuple(axes.get(axis, axis) if isinstance(axis, str) else axis
                      for axis in tensor.axes),
            )
            for i, tensor in enumerate(self.state)
        )  # fmt: skip

    def states_graph(self, outputs: tuple[TensorSpec, ...]) -> GraphSpec:
        """The module's inputs to the states that a recognised decoder attends to.

        If it masks some, which are kept is the second output.
        """
        return GraphSpec(STATES, self.inputs, outputs)

    def alignment_graph(self, heads: int, memory: int | str) -> GraphSpec:
        """The module's inputs and target ids to the weights of some heads of cross-attention.

        Args:
            heads: how many.
            memory: the positions that they attend to.
        """
        weights = TensorSpec(CROSS_ATTENTIONS, "float32", (BATCH, heads, TARGET, memory))
        name = f"decoder_{INPUT_IDS}" if self.takes_ids else INPUT_IDS
        ids = TensorSpec(name, "int64", (BATCH, TARGET))
        return GraphSpec(ALIGNMENT, (*self.inputs, ids), (weights,))

    def embeddings_graph(self, output: TensorSpec) -> GraphSpec:
        """The module's inputs to what the layers of a recognised encoder take."""
        return GraphSpec(EMBEDDINGS, self.inputs, (output,))

    def encoder_graph(self) -> GraphSpec:
        """The module's inputs to its memory, and its state before the first step."""
        return GraphSpec("encoder", self.inputs, (*self.memory, *self.state_before("present")))

    def decoder_graph(self, vocab_size: int) -> GraphSpec:
        """Target ids, their position, state and memory to logits and the next state."""
        tokens: int | str = TARGET if self.many_tokens else 1
        return GraphSpec(
            "decoder",
            inputs=(
                TensorSpec(INPUT_IDS, "int64", (BATCH, tokens)),
                TensorSpec(POSITION, "int64", ()),
                *self.state,
                *self.memory,
            ),
            outputs=(
                TensorSpec(LOGITS, "float32", (BATCH, tokens, vocab_size)),
                *self.state_after(str(tokens)),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for a manifest."""
        return {
            "inputs": [tensor_to_dict(tensor) for tensor in self.inputs],
            "memory": [tensor_to_dict(tensor) for tensor in self.memory],
            "state": [tensor_to_dict(tensor) for tensor in self.state],
            "growth": {n: {"start": a.start, "step": a.step} for n, a in self.growth.items()},
            "many_tokens": self.many_tokens,
            "padded": self.padded,
            "recomputes": self.recomputes,
            "below": dict(self.below),
            **({"longest": dict(self.longest)} if self.longest else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModuleIO":
        """From the JSON values of a manifest, which has been checked."""
        tensors = {
            key: tuple(map(tensor_from_dict, values[key])) for key in ("inputs", "memory", "state")
        }
        growth = {name: Growth(**axis) for name, axis in values["growth"].items()}
        others: dict[str, Any] = {
            name: values[name] for name in ("many_tokens", "padded", "recomputes", "below")
        }
        inputs, memory, state = tensors["inputs"], tensors["memory"], tensors["state"]
        longest = values.get("longest", {})
        return cls(inputs, memory, state, growth, **others, longest=longest)


def tensor_from_dict(values: Mapping[str, Any]) -> TensorSpec:
    """From the JSON values of a manifest, which has been checked."""
    return TensorSpec(values["name"], values["dtype"], tuple(values["axes"]))


def tensor_to_dict(tensor: TensorSpec) -> dict[str, Any]:
    """As JSON values, for a manifest."""
    return {"name": tensor.name, "dtype": tensor.dtype, "axes": list(tensor.axes)}
