"""Drawn models: any config of ``TransformerConfig``, with weights far from initial ones."""

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tfexport_native import Model, Tensor

from tfexport.model_src import Transformer, TransformerConfig, build_transformer

START, END, PAD = 1, 2, 0
MOST_ROUNDING = 1e-5  # of logits, by eager code
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def draw_config(seed: int) -> TransformerConfig:
    """Any valid config, its sizes small and often odd."""
    draw = random.Random(seed)
    any_of = draw.choice

    def flag() -> bool:
        return draw.random() < 0.5

    relative = any_of(["none", "buckets", "buckets_every_layer", "shaw", "rotary"])
    heads = any_of([1, 2, 3, 4])
    head_dim = any_of([2, 4, 6, 8, 16, 18] if relative == "rotary" else [1, 3, 5, 7, 8, 9, 16, 17])
    decoder_heads = 0
    if flag():
        wholes = [n for n in range(1, heads * head_dim + 1) if heads * head_dim % n == 0]
        even = [n for n in wholes if (heads * head_dim // n) % 2 == 0]
        decoder_heads = any_of(even if relative == "rotary" else wholes)
    target = any_of([9, 17, 33, 70, 131])
    tied = flag()
    norm = any_of(["layer", "annotated", "rms"])
    return TransformerConfig(
        # One of annotated's deviations, over d_model - 1, needs more than one value.
        d_model=any_of([6, 16, 23, 40, 65]),
        num_heads=heads,
        head_dim=head_dim,
        num_encoder_layers=any_of([1, 2, 3]),
        num_decoder_layers=any_of([1, 2, 3]),
        d_ff=any_of([5, 16, 31, 64]),
        source_vocab_size=target if tied else any_of([8, 29]),
        target_vocab_size=target,
        norm=norm,
        norm_eps=any_of([1e-6, 1e-5, 1e-3]),
        norm_bias=flag(),
        norm_placement=any_of(["post", "pre", "res_post"]),
        encoder_final_norm=flag(),
        decoder_final_norm=flag(),
        activation=any_of(["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]),
        attention_bias=flag(),
        feed_forward_bias=flag(),
        output_bias=flag(),
        tie_embeddings=tied,
        tie_output=flag(),
        positions=any_of(
            ["sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "learned", "none"]
        ),
        max_positions=any_of([24, 31]),
        positions_every_layer=draw.random() < 0.2,
        scale_embeddings=flag(),
        share_encoder_layers=draw.random() < 0.3,
        share_decoder_layers=draw.random() < 0.3,
        pad_id=PAD,
        bos_id=START,
        eos_id=END,
        start_id=any_of([None, END, PAD]),
        first_position=any_of([0, 2]),
        source_embedding_norm=any_of(["none", "tokens", "sum"]),
        target_embedding_norm=any_of(["none", "tokens", "sum"]),
        scale_target_embeddings=flag(),
        gated_feed_forward=flag(),
        scale_scores=draw.random() < 0.7,
        relative_positions=relative,
        relative_buckets=any_of([4, 7, 8, 16]),
        relative_max_distance=any_of([9, 12, 20]),
        decoder_num_heads=decoder_heads,
        decoder_d_ff=any_of([0, 12, 33]),
        decoder_norm_placement=any_of(["same", "post", "pre", "res_post"]),
        residual_scale=any_of([1.0, 1.0, 0.8, 1.3]),
        padding_has_position=flag(),
    )  # fmt: skip


def draw_model(config: TransformerConfig, seed: int) -> Transformer:
    """Every weight has noise of its own: norms, biases, tables.

    Weights are as large as float32 allows: some configs (unscaled scores, norms of nearly equal
    values) amplify rounding, so that eager code itself is far from float64; theirs are smaller.
    """
    for gain in (1.3, 0.9, 0.6, 0.4):
        model = _draw_weights(config, seed, gain)
        if _rounding(model, seed) < MOST_ROUNDING:
            break
    return model


def _draw_weights(config: TransformerConfig, seed: int, gain: float) -> Transformer:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # of the first weights
    model = build_transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.3 * noise)
            else:
                parameter.mul_(gain).add_(0.1 * noise)
    return model


def _rounding(model: Transformer, seed: int) -> float:
    """How far logits of float32 are from those of float64."""
    exact = copy.deepcopy(model).double()
    sources, most = draw_sources(model.config, seed), 0.0
    with torch.no_grad():
        for ids, tokens in zip(sources, draw_tokens(model.config, seed, len(sources)), strict=True):
            source, target = torch.tensor([ids]), torch.tensor(tokens[None])
            given = (source, source * 0 + 1, target, target * 0 + 1)
            most = max(most, float((model(*given) - exact(*given)).abs().max()))
    return most


def engine_config(config: TransformerConfig, **rules: Any) -> dict[str, Any]:
    """The keys of ``engine/config.h``."""
    sizes, ids = config.decoder, config.special_ids
    names = (
        "d_model", "num_heads", "head_dim", "d_ff", "num_encoder_layers", "num_decoder_layers",
        "source_vocab_size", "target_vocab_size", "norm", "norm_eps", "norm_placement",
        "activation", "source_embedding_norm", "target_embedding_norm", "residual_scale",
        "norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
        "feed_forward_bias", "output_bias", "positions_every_layer", "share_encoder_layers",
        "share_decoder_layers", "gated_feed_forward", "scale_scores", "relative_positions",
        "relative_buckets", "relative_max_distance", "pad_id", "eos_id",
    )  # fmt: skip
    scale = float(np.sqrt(config.d_model)) if config.scale_embeddings else 1.0
    return {name: getattr(config, name) for name in names} | {
        "decoder_num_heads": sizes.num_heads,
        "decoder_head_dim": sizes.head_dim,
        "decoder_d_ff": sizes.d_ff,
        "decoder_norm_placement": sizes.norm_placement,
        "memory_width": 0,
        "max_positions": config.longest or 0,
        "has_positions": config.positions != "none",
        "source_scale": scale,
        "target_scale": scale if config.scale_target_embeddings else 1.0,
        "unplaced_id": -1 if config.padding_has_position else config.pad_id,
        "start_id": ids.decoder_start,
        "first_token": -1,
        "last_token": -1,
        "suppress_tokens": [],
        **rules,
    }


def engine_tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights of a module."""
    return {name: Tensor(tensor.numpy()) for name, tensor in model.state_dict().items()}


def engine_model(
    model: Transformer,
    rules: Mapping[str, Any] | None = None,
    threads: int = 1,
    instruction_set: str | None = None,
) -> Model:
    """The engine's own of a module."""
    config = engine_config(model.config, **(rules or {}))
    return Model(config, engine_tensors(model), threads, instruction_set)


def quantize(values: NDArray[np.float32]) -> Tensor:
    """Each row by its own scale."""
    scales = (np.abs(values).max(1) / 127).astype(np.float32)
    whole = np.clip(np.rint(values / scales[:, None]), -127, 127).astype(np.int8)
    return Tensor(whole, scales)


def draw_weights(seed: int, int8: bool = False) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """A config and the weights of a model of it."""
    config = draw_config(seed)
    tensors = engine_tensors(draw_model(config, seed))
    for name, tensor in tensors.items() if int8 else ():
        if name.endswith("proj.weight"):
            tensors[name] = quantize(tensor.values)
    return config, tensors


def rounded(values: NDArray[Any], dtype: torch.dtype) -> NDArray[np.float32]:
    """The nearest values of a type, in float32, and in the layout that they had."""
    found = torch.from_numpy(np.ascontiguousarray(values)).to(dtype).float().numpy()
    return np.ascontiguousarray(found.T).T if values.ndim == 2 and len(values) % 2 else found


def draw_halves(seed: int, kind: str) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """A model whose matrices are all of a type, or ("mixed") each of one or of none."""
    config = draw_config(3000 + seed)
    tensors = engine_tensors(draw_model(config, seed))
    draw = np.random.default_rng(seed)
    for name, tensor in tensors.items():
        dtype = HALVES.get(kind) or [*HALVES.values(), torch.float32][draw.integers(3)]
        if tensor.values.ndim == 2:
            tensors[name] = Tensor(rounded(tensor.values, dtype))
    return config, tensors


def draw_tokens(config: TransformerConfig, seed: int, rows: int) -> NDArray[np.int32]:
    """20 tokens of each row, one of which is padding, which may have no position."""
    assert config.target_vocab_size is not None
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, config.target_vocab_size, (rows, 20)).astype(np.int32)
    tokens[0, 5] = config.pad_id
    return tokens


def draw_sources(config: TransformerConfig, seed: int, most: int = 11) -> list[list[int]]:
    """Five sources, among them one of a single token."""
    assert config.source_vocab_size is not None
    draw = random.Random(seed)
    lengths = [1, most, *(draw.randint(1, most) for _ in range(3))]
    return [[draw.randrange(config.source_vocab_size) for _ in range(n)] for n in lengths]
