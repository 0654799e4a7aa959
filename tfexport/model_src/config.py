"""The config of an encoder-decoder Transformer, which defines what it computes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tfexport.bundle import SpecialIds
from tfexport.errors import ConfigError, join_problems, join_some, nearest_name, shown

# The largest value of every integer, far above those of published models: a larger one is a mistake
# or an attack, which would otherwise show only when memory runs out.
BOUNDS = {
    "d_model": 2**16,
    "num_heads": 2**12,
    "num_encoder_layers": 2**9,
    "num_decoder_layers": 2**9,
    "d_ff": 2**20,
    "source_vocab_size": 2**24,
    "target_vocab_size": 2**24,
    "head_dim": 2**16,
    "max_positions": 2**24,
    "pad_id": 2**24 - 1,
    "bos_id": 2**24 - 1,
    "eos_id": 2**24 - 1,
    "unk_id": 2**24 - 1,
    "start_id": 2**24 - 1,
    "first_position": 2**16,
    "relative_buckets": 2**16,
    "relative_max_distance": 2**16,
    "decoder_num_heads": 2**12,
    "decoder_d_ff": 2**20,
}
# Position tables may be computed, so that no file bounds them: max_positions * d_model values.
MAX_TABLE_VALUES = 2**26


def wrong_types(config: Any) -> Iterable[str]:
    """A sentence for each value of a wrong type, or out of its bounds."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                choices = ", ".join(repr(c) for c in get_args(hint))
                yield f"{field.name}: {shown(value)} is not one of {choices}"
        elif hint is bool:
            if not isinstance(value, bool):
                yield f"{field.name}: {shown(value)} is not true or false"
        elif hint is float:
            if not _is_real(value):
                yield f"{field.name}: {shown(value)} is not a number"
        elif value is None and type(None) in get_args(hint):
            continue
        elif isinstance(value, bool) or not isinstance(value, int):
            yield f"{field.name}: {shown(value)} is not an integer"
        elif value > BOUNDS[field.name]:
            yield f"{field.name}: {shown(value)} is more than {BOUNDS[field.name]}"
        elif value < 0:  # whether 0 will do depends on the key
            yield f"{field.name}: {shown(value)} is negative"


def _is_real(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def wrong_values(config: Any) -> Iterable[str]:
    """A sentence for each contradiction between values of right types."""
    positive = ["d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff"]
    positive += ["max_positions", "source_vocab_size", "target_vocab_size"]
    for name in positive:
        value = getattr(config, name)
        if value is not None and value < 1:
            yield f"{name}: {value} is not positive"
    if config.max_positions * config.d_model > MAX_TABLE_VALUES:
        yield (
            f"max_positions: a table of {config.max_positions} positions of d_model "
            f"{config.d_model} has more than {MAX_TABLE_VALUES} values"
        )
    if config.head_dim == 0 and config.num_heads > 0 and config.d_model % config.num_heads:
        yield (
            f"num_heads: {config.num_heads} heads do not divide d_model {config.d_model}; "
            "give another num_heads, or head_dim"
        )
    if not (math.isfinite(config.norm_eps) and config.norm_eps >= 0):
        yield f"norm_eps: {config.norm_eps} is not a small positive number"
    if not 0 <= config.dropout < 1:
        yield f"dropout: {config.dropout} is not in [0, 1)"
    if not config.mask_fill < 0:
        yield f"mask_fill: {config.mask_fill} is not negative; use -inf or e.g. -1e9"
    if (config.source_vocab_size is None) != (config.target_vocab_size is None):
        yield "source_vocab_size and target_vocab_size: give both, or neither"
    if config.tie_embeddings and config.source_vocab_size != config.target_vocab_size:
        yield (
            f"tie_embeddings: one table cannot serve {config.source_vocab_size} source "
            f"and {config.target_vocab_size} target ids"
        )
    yield from _wrong_decoder(config)
    if config.has_embeddings:
        yield from _wrong_ids(config)


def _wrong_decoder(config: Any) -> Iterable[str]:
    heads = config.decoder_num_heads
    inner = config.num_heads * config.head_dim or config.d_model
    if heads and inner % heads:
        yield f"decoder_num_heads: {heads} heads do not divide the {inner} values of all heads"
    if not (math.isfinite(config.residual_scale) and config.residual_scale > 0):
        yield f"residual_scale: {config.residual_scale} is not a positive number"
    if config.relative_positions.startswith("buckets"):
        buckets, distance = config.relative_buckets, config.relative_max_distance
        if buckets < 4:
            yield f"relative_buckets: {buckets} is fewer than 4"
        elif distance <= buckets // 2:
            yield f"relative_max_distance: {distance} is not above relative_buckets / 2"
    elif config.relative_positions == "shaw" and config.relative_max_distance < 1:
        yield f"relative_max_distance: {config.relative_max_distance} is not positive"
    elif config.relative_positions == "rotary" and any(
        it and inner % it == 0 and inner // it % 2 for it in (config.num_heads, heads)
    ):
        yield "relative_positions: rotary rotates pairs of values, but the head size is odd"


def _wrong_ids(config: Any) -> Iterable[str]:
    used = {"source": ["pad_id"], "target": ["pad_id", "bos_id", "eos_id", "start_id"]}
    used["source"] += ["bos_id"] if config.add_source_bos else []
    used["source"] += ["eos_id"] if config.add_source_eos else []
    used["source"] += ["unk_id"]
    for side, names in used.items():
        size = config.source_vocab_size if side == "source" else config.target_vocab_size
        for name in names:
            value = getattr(config, name)
            if value is not None and size is not None and not 0 <= value < size:
                yield f"{name}: {value} is not an id of the {side} vocabulary (0 to {size - 1})"
    for side in ("bos", "eos"):
        if getattr(config, f"add_source_{side}") and getattr(config, f"{side}_id") is None:
            yield f"add_source_{side} needs {side}_id"


Norm = Literal["layer", "annotated", "rms"]
NormPlacement = Literal["post", "pre", "res_post"]
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
PositionKind = Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none"]
EmbeddingNorm = Literal["none", "tokens", "sum"]
RelativePositions = Literal["none", "buckets", "buckets_every_layer", "shaw", "rotary"]

BUNDLE_IDS = ("pad_id", "bos_id", "eos_id")  # required for decoding


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that decides what the model computes, and nothing else.

    Attributes:
        d_model: E, the width of the residual stream.
        num_heads: H.
        num_encoder_layers: how often the encoder applies a layer.
        num_decoder_layers: how often the decoder applies a layer.
        d_ff: width inside the feed-forward sublayers.
        source_vocab_size: rows of the source embedding; None for a model without embeddings.
        target_vocab_size: V, rows of the target embedding and of the output projection, or None.
        head_dim: D; 0 for d_model / num_heads.
        norm: "layer" (torch.nn.LayerNorm), "annotated" (unbiased deviation, eps outside the root)
            or "rms".
        norm_eps: added under the root, or to the deviation for "annotated".
        norm_bias: whether a LayerNorm has a bias; "rms" has none.
        norm_placement: "post" norm(x + f(x)), "pre" x + f(norm(x)), "res_post" x + norm(f(x)).
        encoder_final_norm: a norm after the last encoder layer.
        decoder_final_norm: a norm after the last decoder layer.
        activation: the activation of the feed-forward sublayers.
        attention_bias: whether the four attention projections have biases.
        feed_forward_bias: whether the two feed-forward projections have biases.
        output_bias: whether the output projection has a bias.
        tie_embeddings: source and target embeddings are one table.
        tie_output: the output projection is the target embedding's table.
        positions: kind of position table added to the embeddings.
        max_positions: rows of the position table, and so the longest sequence.
        positions_every_layer: the encoder adds its table before its stack and again at the start
            of every layer, and the decoder adds none.
        scale_embeddings: multiply token embeddings by sqrt(d_model).
        share_encoder_layers: the encoder applies one layer num_encoder_layers times.
        share_decoder_layers: the decoder applies one layer num_decoder_layers times.
        dropout: probability, in training only.
        mask_fill: the bias of a masked score: -inf, or a large negative number.
        pad_id: fills a batch's shorter rows; no mask is ever derived from it.
        bos_id: the decoder's start token.
        eos_id: the end token.
        unk_id: the unknown token.
        add_source_bos: bos_id is put before the ids of a source text.
        add_source_eos: eos_id is put after the ids of a source text.
        start_id: the decoder's start token, if it differs from bos_id.
        first_position: row of a computed table that belongs to the first token.
        source_embedding_norm: a norm of the source's embeddings: of the "tokens" only, or of the
            "sum" of tokens and positions.
        target_embedding_norm: the same for the target.
        scale_target_embeddings: ``scale_embeddings`` acts on the target's side too.
        gated_feed_forward: the feed-forward is down(activation(gate(x)) * up(x)).
        scale_scores: attention scores are divided by sqrt(head_dim).
        relative_positions: of self-attention: "buckets" (T5: one table of biases a stack),
            "buckets_every_layer", "shaw" (vectors added to keys and values) or "rotary" (each
            pair of neighbouring values is turned).
        relative_buckets: rows of a table of buckets.
        relative_max_distance: the distance from which on all share the last bucket; for "shaw" the
            largest distance with its own value.
        decoder_num_heads: heads of the decoder; 0 for as many as the encoder has.
        decoder_d_ff: width inside the decoder's feed-forward; 0 for the encoder's.
        decoder_norm_placement: the placement in the decoder's layers; "same" as in the encoder.
        padding_has_position: a padding token that the decoder itself writes has a position like
            any other; in M2M-100 it has none.
        residual_scale: factor of the residual stream x where a sublayer's output is added to it.
    """

    d_model: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    d_ff: int
    source_vocab_size: int | None = None
    target_vocab_size: int | None = None
    head_dim: int = 0
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_placement: NormPlacement = "post"
    encoder_final_norm: bool = True
    decoder_final_norm: bool = True
    activation: Activation = "relu"
    attention_bias: bool = True
    feed_forward_bias: bool = True
    output_bias: bool = True
    tie_embeddings: bool = False
    tie_output: bool = False
    positions: PositionKind = "sinusoidal"
    max_positions: int = 512
    positions_every_layer: bool = False
    scale_embeddings: bool = True
    share_encoder_layers: bool = False
    share_decoder_layers: bool = False
    dropout: float = 0.1
    mask_fill: float = -math.inf
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    add_source_bos: bool = False
    add_source_eos: bool = False
    start_id: int | None = None
    first_position: int = 0
    source_embedding_norm: EmbeddingNorm = "none"
    target_embedding_norm: EmbeddingNorm = "none"
    scale_target_embeddings: bool = True
    gated_feed_forward: bool = False
    scale_scores: bool = True
    relative_positions: RelativePositions = "none"
    relative_buckets: int = 32
    relative_max_distance: int = 128
    decoder_num_heads: int = 0
    decoder_d_ff: int = 0
    decoder_norm_placement: Literal["same", "post", "pre", "res_post"] = "same"
    residual_scale: float = 1.0
    padding_has_position: bool = True

    def __post_init__(self) -> None:
        problems = list(wrong_types(self))
        if not problems:
            problems += wrong_values(self)
        if problems:
            raise ConfigError(join_problems("config", problems))
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
        if self.norm == "rms":
            object.__setattr__(self, "norm_bias", False)
        for name in ("norm_eps", "dropout", "mask_fill", "residual_scale"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransformerConfig":
        """Build a config from JSON values; every unknown or missing key is named at once."""
        problems = unknown_keys(values, config_keys())
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            problems.append(f"missing: {', '.join(missing)}")
        if problems:
            raise ConfigError(join_problems("config", problems))
        return cls(**{key: _from_json(value) for key, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON values; ``from_dict`` gives the same config back."""
        return {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}

    @property
    def has_embeddings(self) -> bool:
        """Whether the model takes token ids; if not, it takes vectors."""
        return self.source_vocab_size is not None

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning.

        Raises:
            ConfigError: ``pad_id``, ``bos_id`` or ``eos_id`` is None.
        """
        if self.pad_id is None or self.bos_id is None or self.eos_id is None:
            missing = [key for key in BUNDLE_IDS if getattr(self, key) is None]
            raise ConfigError(f"config: no tokens can be decoded without {', '.join(missing)}.")
        return SpecialIds(self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.start_id)

    @property
    def decoder_start_id(self) -> int | None:
        """The id that decoding starts from; None if it is not known."""
        return self.bos_id if self.start_id is None else self.start_id

    @property
    def decoder(self) -> "DecoderSizes":
        """Sizes of the decoder; by default those of the encoder."""
        heads = self.decoder_num_heads or self.num_heads
        head_dim = self.num_heads * self.head_dim // heads
        placement = self.decoder_norm_placement
        return DecoderSizes(
            heads,
            head_dim,
            self.decoder_d_ff or self.d_ff,
            self.norm_placement if placement == "same" else placement,
        )

    @property
    def longest(self) -> int | None:
        """The longest sequence in tokens; None if no position table sets a limit."""
        return None if self.positions == "none" else self.max_positions


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes that the decoder's layers may have otherwise than the encoder's."""

    num_heads: int
    head_dim: int
    d_ff: int
    norm_placement: NormPlacement


_REQUIRED = ("d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff")


def config_keys() -> tuple[str, ...]:
    """The names of all config keys, in the order of their declaration."""
    return tuple(f.name for f in fields(TransformerConfig))


def choices(key: str) -> tuple[str, ...]:
    """The values of a config key that has few; () for one with any."""
    hint = get_type_hints(TransformerConfig)[key]
    if hint is bool:
        return ("true", "false")
    return get_args(hint) if get_origin(hint) is Literal else ()


def unknown_keys(keys: Iterable[str], known: Iterable[str]) -> list[str]:
    """Name unknown keys, each with the known key that is nearest to it.

    Returns:
        One sentence for each of a few keys that are near a known one, and one for the others.
    """
    known = list(known)
    problems: list[str] = []
    strange: list[str] = []
    for key in keys:
        if key not in known:
            near = nearest_key(key, known) if len(problems) < 8 else None
            if near is None:
                strange.append(shown(key))
            else:
                problems.append(f"unknown key {shown(key)}; did you mean {near!r}?")
    if strange:
        word = "key" if len(strange) == 1 else "keys"
        listed = join_some(strange)
        problems.append(f"unknown {word} {listed}; known keys: {', '.join(known)}")
    return problems


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key that a misspelt one means, if it is near enough to any."""
    return nearest_name(key, known, cutoff=0.75)


def _to_json(value: Any) -> Any:
    # JSON has no infinities; a bare -Infinity would break every parser but Python's.
    return repr(value) if isinstance(value, float) and math.isinf(value) else value


def _from_json(value: Any) -> Any:
    return float(value) if value in ("-inf", "inf") else value


# Templates of special tokens: ``framing=tutorial`` among the settings, or ``"framing": "tutorial"``
# in a config, sets the special ids and which of them surround a source text.


FRAMING = "framing"  # a config key that is not part of the model
FRAMINGS: dict[str, dict[str, Any]] = {
    # "Language Translation with nn.Transformer and torchtext", of pytorch.org/tutorials.
    "tutorial": {
        "unk_id": 0,
        "pad_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "add_source_bos": True,
        "add_source_eos": True,
    },
}


def read_framing(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The template of special tokens that a config names: its origin, and its values.

    Returns:
        None if they name none.

    Raises:
        ValueError: an unknown name; the message is a problem of the config.
    """
    if FRAMING not in given:
        return None
    name = given[FRAMING]
    if not isinstance(name, str) or name not in FRAMINGS:
        near = nearest_name(name, FRAMINGS) if isinstance(name, str) else None
        hint = "" if near is None else f"; did you mean {near!r}?"
        known = ", ".join(map(repr, FRAMINGS))
        raise ValueError(f"framing: {shown(name)} is not known{hint}; known are: {known}")
    return f"{FRAMING}={name}", FRAMINGS[name]
