"""Checkpoints of OpenNMT-py, of versions 2 and 3."""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.toolkits.drawn import Case, Sizes, draw

POSITIONS = {"SinusoidalInterleaved": "sinusoidal", "SinusoidalConcat": "sinusoidal_t2t"}
GATED = ("silu", "gated-gelu")
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]


def options(rng: random.Random, version: int) -> dict[str, Any]:
    """Options of a small model, every switch drawn."""
    heads = rng.choice([1, 2, 4])
    shared = rng.random() < 0.3
    found: dict[str, Any] = {
        "model_type": "text", "encoder_type": "transformer", "decoder_type": "transformer",
        "self_attn_type": "scaled-dot", "heads": heads, "transformer_ff": rng.choice([10, 24]),
        "enc_layers": rng.randint(1, 3), "dec_layers": rng.randint(1, 3),
        "position_encoding": rng.random() < 0.7, "max_relative_positions": 0,
        "pos_ffn_activation_fn": rng.choice(["relu", "gelu"]), "copy_attn": False,
        "share_embeddings": shared, "share_decoder_embeddings": rng.random() < 0.5,
        "dropout": [0.1], "lambda_align": 0.0,
    }  # fmt: skip
    size = heads * rng.choice([4, 6])
    relative = not found["position_encoding"] and rng.random() < 0.7
    if relative:
        found["max_relative_positions"] = rng.choice([2, 5] if version == 2 else [-1, 3, 20, 40])
    if version == 2:
        return found | {"rnn_size": size, "word_vec_size": size, "generator_function": "softmax"}
    if found["max_relative_positions"] >= 20:
        found["relative_positions_buckets"] = rng.choice([4, 8])
    return found | {
        "hidden_size": size, "model_task": "seq2seq",
        "position_encoding_type": rng.choice([*POSITIONS]),
        "pos_ffn_activation_fn": rng.choice(["relu", "gelu", *GATED]),
        "add_qkvbias": rng.random() < 0.5, "add_ffnbias": rng.random() < 0.5,
        "layer_norm": rng.choice(["standard", "rms"]), "norm_eps": rng.choice([1e-6, 1e-5]),
        "lora_layers": [], "num_kv": 0, "parallel_residual": False,
    }  # fmt: skip


def size_of(opt: dict[str, Any]) -> int:
    size: int = opt["hidden_size"] if "hidden_size" in opt else opt["rnn_size"]
    return size


def linear(name: str, rows: int, columns: int, bias: bool) -> Sizes:
    found: Sizes = {f"{name}.weight": (rows, columns)}
    return found | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, opt: dict[str, Any]) -> Sizes:
    size = size_of(opt)
    found: Sizes = {f"{name}.weight": (size,)}
    return found | ({} if opt.get("layer_norm") == "rms" else {f"{name}.bias": (size,)})


def shapes(opt: dict[str, Any], vocab: tuple[int, int]) -> Sizes:
    """The names and shapes of a model's tensors, those of its generator left out."""
    size, found = size_of(opt), Sizes()
    for stack, layers, count, rows in (
        ("encoder", "transformer", opt["enc_layers"], vocab[0]),
        ("decoder", "transformer_layers", opt["dec_layers"], vocab[1]),
    ):
        found[f"{stack}.embeddings.make_embedding.emb_luts.0.weight"] = (rows, size)
        for i in range(count):
            found |= layer(f"{stack}.{layers}.{i}", opt)
        found |= norm(f"{stack}.layer_norm", opt)
    return found


def layer(name: str, opt: dict[str, Any]) -> Sizes:
    size, inner, decoder = size_of(opt), opt["transformer_ff"], name.startswith("decoder")
    found: Sizes = {}
    for attention in ("self_attn", "context_attn") if decoder else ("self_attn",):
        for each in ("linear_keys", "linear_values", "linear_query", "final_linear"):
            found |= linear(f"{name}.{attention}.{each}", size, size, opt.get("add_qkvbias", True))
    if buckets := opt.get("relative_positions_buckets"):
        found[f"{name}.self_attn.relative_attention_bias.weight"] = (buckets, opt["heads"])
    elif (most := opt["max_relative_positions"]) > 0:
        table = f"{name}.self_attn.relative_positions_embeddings.weight"
        found[table] = (2 * most + 1, size // opt["heads"])
    for each in ("layer_norm_1", "layer_norm_2") if decoder else ("layer_norm",):
        found |= norm(f"{name}.{each}", opt)
    bias = opt.get("add_ffnbias", True)
    for each in ("w_1", "w_3") if opt["pos_ffn_activation_fn"] in GATED else ("w_1",):
        found |= linear(f"{name}.feed_forward.{each}", inner, size, bias)
    found |= linear(f"{name}.feed_forward.w_2", size, inner, bias)
    return found | norm(f"{name}.feed_forward.layer_norm", opt)


def expected(opt: dict[str, Any]) -> dict[str, Any]:
    """The config values that the options mean."""
    kind = POSITIONS[opt.get("position_encoding_type", "SinusoidalInterleaved")]
    activations = {"silu": "silu", "gated-gelu": "gelu"}
    activation = opt["pos_ffn_activation_fn"]
    most, relative = opt["max_relative_positions"], "none"
    if most:
        relative = "rotary" if most < 0 else "shaw"
        relative = "buckets_every_layer" if opt.get("relative_positions_buckets") else relative
    return {
        "num_heads": opt["heads"],
        "relative_positions": relative,
        "positions": kind if opt["position_encoding"] else "none",
        "scale_embeddings": opt["position_encoding"],
        "activation": activations.get(activation, activation),
        "gated_feed_forward": activation in GATED,
        "norm": "rms" if opt.get("layer_norm") == "rms" else "layer",
        "norm_eps": opt.get("norm_eps", 1e-6),
        "norm_placement": "pre",
        "tie_embeddings": opt["share_embeddings"],
        "tie_output": opt["share_decoder_embeddings"],
        "pad_id": 1, "bos_id": 2, "eos_id": 3, "unk_id": 0, "add_source_eos": False,
    }  # fmt: skip


def checkpoint(opt: dict[str, Any], state: dict[str, Tensor], vocab: tuple[int, int]) -> Any:
    """What OpenNMT-py saves; the generator has a state dict of its own."""
    words = [[*SPECIAL, *(f"w{i}" for i in range(rows - 4))] for rows in vocab]
    generator = {key: it for key, it in state.items() if key.startswith("generator.")}
    return {
        "model": {key: it for key, it in state.items() if key not in generator},
        "generator": {key.removeprefix("generator."): it for key, it in generator.items()},
        "vocab": {"src": words[0], "tgt": words[1], "data_task": "seq2seq"},
        "opt": argparse.Namespace(**opt),
        "optim": {"training_step": 10, "state": {0: torch.ones(3)}},
    }


def write(seed: int, folder: Path, version: int = 0, **changes: Any) -> Case:
    """A drawn model in a file, some of its options changed; version 3 also as safetensors."""
    rng = random.Random(seed)
    version = version or rng.choice([2, 3, 3])
    opt = options(rng, version) | changes
    rows = rng.randint(20, 40)
    vocab = (rows, rows if opt["share_embeddings"] else rng.randint(20, 40))
    head = "generator.0" if version == 2 else "generator"
    state = draw(shapes(opt, vocab) | linear(head, vocab[1], size_of(opt), True), seed)
    table = "{}.embeddings.make_embedding.emb_luts.0.weight"
    if opt["share_embeddings"]:
        state[table.format("decoder")] = state[table.format("encoder")]
    if opt["share_decoder_embeddings"]:
        state[f"{head}.weight"] = state[table.format("decoder")]
    saved, path = checkpoint(opt, state, vocab), folder / "model_step_10.pt"
    if version == 3 and rng.random() < 0.3:
        own = {key: tensor.clone() for key, tensor in state.items()}
        save_file(own, folder / "model_step_10.safetensors")
        del saved["model"], saved["generator"]
    torch.save(saved, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    return Case(path, expected(opt), vocab)
