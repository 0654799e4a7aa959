"""The productions of the grammar, and the draw of one design of a module from a seed.

A production is named ``group/name``. Groups are drawn in the order of ``GRAMMAR``; a production can
be drawn where its condition holds for what was drawn before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Condition = Callable[["Design"], bool]


@dataclass(frozen=True)
class Production:
    """One way to write one part of a module.

    Attributes:
        group: the part.
        name: the way.
        weight: how often it is drawn, relative to the others of its group.
        where: whether it can be drawn after what was drawn before.
        refused_because: why an export has to refuse it; empty if it has to export it.
    """

    group: str
    name: str
    weight: float = 1.0
    where: Condition = lambda design: True
    refused_because: str = ""

    @property
    def label(self) -> str:
        return f"{self.group}/{self.name}"


@dataclass
class Design:
    """What was drawn for one module.

    Attributes:
        seed: determines all of it.
        choices: the name of the production that was drawn, by group.
        source_words: size of the source's vocabulary.
        target_words: size of the target's vocabulary.
        layers: of the encoder and of the decoder.
        heads: of each attention.
        fill: the number that hides a score, as source text.
    """

    seed: int
    choices: dict[str, str] = field(default_factory=dict)
    source_words: int = 17
    target_words: int = 17
    layers: int = 1
    heads: int = 2
    fill: str = "-1e9"

    def has(self, group: str, *names: str) -> bool:
        """Whether one of some productions of a group was drawn."""
        return self.choices.get(group) in names

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"{group}/{name}" for group, name in self.choices.items())

    @property
    def line(self) -> str:
        """The module, described in one line."""
        return f"seed {self.seed}: {' '.join(self.labels)}"

    @property
    def refused_because(self) -> str:
        """Why an export has to refuse the module; empty if it has to export it."""
        reasons = (BY_LABEL[label].refused_because for label in self.labels)
        return "; ".join(reason for reason in reasons if reason)


IDS = ("ids", "ids_and_features")
IMAGES = ("image_width", "image_both", "image_fixed")
TORCH_LAYERS = ("torch_transformer", "torch_decoder", "torch_layers")
SEPARATE_MASKS = (*TORCH_LAYERS, "torch_multihead")  # masks of positions and of padding
SCORES = ("by_hand", "packed_qkv", "grouped_kv", "multi_query", "talking_heads", "gated")
SDPA = ("sdpa_causal", "sdpa_mask")
RECURRENT = ("gru", "lstm", "cell_loop", "lstm_cell_loop")
ADDITIVE_POSITIONS = ("none", "sinusoid_buffer", "sinusoid_sequence_first", "learned_arange")


def _is(group: str, *names: str) -> Condition:
    return lambda design: design.has(group, *names)


def _not(group: str, *names: str) -> Condition:
    return lambda design: not design.has(group, *names)


def _all(*conditions: Condition) -> Condition:
    return lambda design: all(condition(design) for condition in conditions)


_transformer = _is("decoder", "transformer")
_scored = _all(_transformer, _is("attention", *SCORES))
_turned = _all(_transformer, _is("attention", *SCORES, *SDPA))
_frames_or_images = _is("input", "frames", *IMAGES)
_text = _is("input", "ids")
_masked = _is("source_mask", "inside", "attention_mask", "lengths")
_by_hand = _all(_transformer, _not("attention", *TORCH_LAYERS))
_untied = _not("embedding", "tied_head", "all_tied")
_sequence_first = _is("layout", "sequence_first")


def _packs(design: Design) -> bool:
    return _masked(design) and design.has("stride", "none")


def _is_one_torch_transformer(design: Design) -> bool:
    return design.has("decoder", "transformer") and design.has("encoder", "torch_encoder")


_ROWS: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "input": [
        ("ids", 9), ("ids_and_features", 1), ("frames", 3.5), ("image_width", 2),
        ("image_both", 1), ("image_fixed", 1), ("regions", 1),
    ],
    "source_mask": [
        ("none", 2), ("inside", 5, _is("input", *IDS)), ("attention_mask", 2, _text),
        ("lengths", 0.7, _is("input", "ids", "frames")),
        ("relative_lengths", 0.6, _is("input", "frames")),
    ],
    "stride": [
        ("none", 6), ("conv", 1, _is("input", "ids", "frames", *IMAGES)),
        ("conv_twice", 2, _frames_or_images), ("maxpool", 1, _frames_or_images),
        ("maxpool_twice", 1, _frames_or_images), ("avgpool", 1, _frames_or_images),
        ("patches_padded", 1, _frames_or_images), ("patches_cropped", 1, _frames_or_images),
        ("patches_unfold", 1, _is("input", *IMAGES)),
        ("stacked_frames", 1.5, _is("input", "frames")),
    ],
    "encoder": [
        ("transformer", 5), ("torch_encoder", 4), ("gru_bidirectional", 1),
        ("lstm_packed", 1.5, _packs), ("conv_batch_norm", 1), ("conv_group_norm", 0.7),
        ("cell_pooling", 0.6), ("running_mean", 0.4), ("none", 1),
    ],
    "decoder": [
        ("transformer", 12), ("gru", 1), ("lstm", 1),
        ("cell_loop", 0.3, lambda design: True, "a Python loop over the target"),
        ("lstm_cell_loop", 0.3, lambda design: True, "a Python loop over the target"),
        ("running_mean", 0.7), ("causal_conv", 0.8),
    ],
    "attention": [
        ("by_hand", 3), ("torch_multihead", 2),
        ("torch_transformer", 5, _is_one_torch_transformer),
        ("torch_decoder", 2, _transformer), ("torch_layers", 1, _transformer),
        ("sdpa_causal", 1, _transformer), ("sdpa_mask", 1, _transformer),
        ("einsum", 1, _transformer), ("packed_qkv", 1, _transformer),
        ("grouped_kv", 1, _transformer), ("multi_query", 1, _transformer),
        ("talking_heads", 1, _transformer), ("gated", 1, _transformer),
        ("memory_slots", 1, _transformer), ("cosine", 1, _transformer),
        ("loop_over_heads", 1, _transformer),
        ("additive", 6, _not("decoder", "transformer")),
    ],
    "layout": [
        ("batch_first", 8),
        ("transposed_around", 3, _all(_transformer, _is("attention", *TORCH_LAYERS))),
        (
            "sequence_first", 5,
            _all(
                _transformer, _text, _is("attention", *TORCH_LAYERS), _is("stride", "none"),
                _is("encoder", "torch_encoder", "none"), _not("source_mask", "lengths"),
            ),
        ),
    ],
    "positions": [
        ("none", 0.7), ("sinusoid_buffer", 2), ("sinusoid_sequence_first", 2),
        ("learned_arange", 2), ("learned_parameter", 2, _not("layout", "sequence_first")),
        ("rebuilt_in_forward", 1, _not("layout", "sequence_first")),
        ("fixed_length", 1, _all(_transformer, _not("layout", "sequence_first"))),
        ("rotary_interleaved", 2, _turned), ("rotary_halves", 2, _turned),
        ("rotary_complex", 2, _turned),
        (
            "rotary_kept_table", 0.8, _turned,
            "a table that is kept between calls and made again for a longer one",
        ),
        ("relative_buckets", 2.5, _scored), ("alibi", 2.5, _scored),
        ("relative_clamped", 2.5, _scored),
    ],
    "picture_positions": [
        ("none", 1), ("rows_and_columns", 1, _is("input", *IMAGES)),
    ],
    "embedding": [
        ("separate", 4), ("shared", 1, _is("input", *IDS)), ("tied_head", 1.5),
        ("all_tied", 1.5, _is("input", *IDS)), ("factorised", 1),
    ],
    "source_name": [
        ("usual", 4), ("src", 1, _all(_is("input", *IDS), _not("source_mask", "attention_mask"))),
    ],
    "embedding_scale": [("none", 2), ("sqrt_d", 1)],
    "padding_idx": [("none", 2), ("padding_idx", 1)],
    "norm": [
        ("post_layer", 3), ("pre_layer", 3),
        ("rms", 2, _by_hand), ("scale", 1.5, _by_hand),
    ],
    "last": [("no_norm", 3), ("final_norm", 3), ("added_after_last_norm", 1)],
    "feed_forward": [
        ("relu", 3), ("gelu", 2), ("glu", 1.5, _by_hand),
        ("conv_along_source", 2, _all(_is("encoder", "transformer"), _by_hand)),
    ],
    "target_mask": [
        ("is_causal", 1, _all(_transformer, _is("attention", "sdpa_causal"))),
        *(
            (name, weight, _all(_transformer, _not("attention", "sdpa_causal")))
            for name, weight in (
                ("triu_bool", 1), ("tril_bool", 1), ("tril_out", 1), ("float_inf", 1),
                ("square_subsequent", 1.5), ("large_negative", 1), ("cached_buffer", 1),
                ("arange", 1),
            )
        ),
        ("none", 1, _not("decoder", "transformer")),
    ],
    "mask_place": [
        ("inside", 3),
        (
            "outside", 1,
            _all(
                _transformer, _not("target_mask", "cached_buffer", "is_causal"),
                _not("positions", "fixed_length"),
            ),
        ),
        (
            "if_none", 1,
            _all(_transformer, _not("target_mask", "is_causal")),
        ),
    ],
    "target_padding": [
        ("none", 3),
        ("own", 1, _all(_transformer, _not("attention", "sdpa_causal"))),
    ],
    "helpers": [
        ("none", 3), ("head_in_forward", 3), ("head_in_decode", 2),
        ("submodules", 2, _not("attention", "torch_transformer")),
    ],
    "methods": [
        ("none", 6), ("greedy_decode", 1), ("generate", 1), ("step_and_start", 1),
        ("raising", 1.2, _is("helpers", "none", "submodules")),
    ],
    "result": [
        ("tensor", 7), ("tuple", 1), ("list", 0.7), ("dict_logits", 0.6), ("dict_other", 0.7),
        ("dataclass", 1), ("namedtuple", 0.7), ("flattened", 1),
        ("batch_second", 0.7, _not("layout", "sequence_first")), ("log_softmax", 1.5),
        (
            "with_attention", 2,
            _all(_transformer, _is("attention", *SCORES), _not("helpers", "submodules")),
        ),
    ],
    "flow": [
        ("plain", 5), ("if_training", 1.5), ("assert_shapes", 1),
        ("assert_lengths", 4, _is("source_mask", "lengths")),
        ("layer_made", 0.35, lambda design: True, "a layer that the forward makes"),
    ],
    "wrapper": [
        ("none", 10), ("lightning", 1), ("data_parallel", 1), ("compiled", 0.7),
        ("weight_norm", 1, _untied), ("spectral_norm", 1, _untied), ("lora", 1, _untied),
        (
            "sequential_subclass", 1.5,
            _all(_by_hand, _is("feed_forward", "relu", "gelu", "conv_along_source")),
        ),
        ("script_part", 0.7, lambda design: True, "a part that is TorchScript"),
    ],
}  # fmt: skip
GRAMMAR: Mapping[str, tuple[Production, ...]] = {
    group: tuple(Production(group, *row) for row in rows) for group, rows in _ROWS.items()
}
BY_LABEL: Mapping[str, Production] = {
    production.label: production for group in GRAMMAR.values() for production in group
}


def draw_design(seed: int) -> Design:
    """The design of one module; the same for one seed.

    Each group has its own numbers, so that a new group leaves the draws of the others as they are.
    """
    design = Design(seed)
    for group, productions in GRAMMAR.items():
        possible = [each for each in productions if each.where(design)]
        weights = [each.weight for each in possible]
        (drawn,) = Random(f"drawn module {seed} {group}").choices(possible, weights)
        design.choices[group] = drawn.name
    rng = Random(f"drawn module {seed}")
    design.target_words = rng.randint(17, 40)
    same = design.has("embedding", "shared", "all_tied")
    design.source_words = design.target_words if same else rng.randint(17, 40)
    design.layers = rng.choice((1, 1, 2))
    design.heads = 4 if design.has("attention", "grouped_kv") else rng.choice((2, 4))
    design.fill = rng.choice(('float("-inf")', "-1e9", "torch.finfo(torch.float32).min"))
    return design
