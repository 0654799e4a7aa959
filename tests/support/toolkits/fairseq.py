"""Checkpoints of fairseq, of versions before and after 0.7 and with ``args`` or ``cfg``."""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.toolkits.drawn import Case, Sizes, draw

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh"}
STACKS = ("encoder", "decoder")


def options(rng: random.Random) -> dict[str, Any]:
    """Options of a small model, every switch drawn."""
    heads = rng.choice([1, 2, 4])
    size = heads * rng.choice([4, 6])
    shared, learned = rng.random() < 0.4, rng.random() < 0.4
    return {
        "arch": rng.choice(["transformer", "transformer_iwslt_de_en", "bart_large"]),
        "encoder_embed_dim": size, "decoder_embed_dim": size,
        "encoder_ffn_embed_dim": 24, "decoder_ffn_embed_dim": rng.choice([10, 24]),
        "encoder_layers": rng.randint(1, 3), "decoder_layers": rng.randint(1, 3),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": rng.choice([it for it in (1, 2, 4) if size % it == 0]),
        "encoder_normalize_before": rng.random() < 0.5,
        "decoder_normalize_before": rng.random() < 0.5,
        "no_decoder_final_norm": rng.random() < 0.2,
        "encoder_learned_pos": learned, "decoder_learned_pos": learned,
        "share_all_embeddings": shared,
        "share_decoder_input_output_embed": shared or rng.random() < 0.5,
        "activation_fn": rng.choice([*ACTIVATIONS]),
        "no_scale_embedding": rng.random() < 0.3,
        "layernorm_embedding": rng.random() < 0.4,
        "max_source_positions": 20, "max_target_positions": 30,
        "adaptive_softmax_cutoff": None, "dropout": 0.1,
    }  # fmt: skip


def shapes(args: dict[str, Any], vocab: tuple[int, int], old: bool) -> Sizes:
    """The names and shapes of a model's tensors."""
    size = args["encoder_embed_dim"]
    found: Sizes = {}
    for stack, rows in zip(STACKS, vocab, strict=True):
        found[f"{stack}.version"] = (1,)
        found[f"{stack}.embed_tokens.weight"] = (rows, size)
        if args["encoder_learned_pos"]:
            longest = args["max_source_positions" if stack == "encoder" else "max_target_positions"]
            found[f"{stack}.embed_positions.weight"] = (longest + 2, size)
        else:
            found[f"{stack}.embed_positions._float_tensor"] = (1,)
        if args["layernorm_embedding"]:
            found |= norm(f"{stack}.layernorm_embedding", size)
        for i in range(args[f"{stack}_layers"]):
            found |= layer(stack, i, args, old)
        ends = stack == "encoder" or not args["no_decoder_final_norm"]
        if args[f"{stack}_normalize_before"] and ends:
            found |= norm(f"{stack}.layer_norm", size)
    if not args["share_decoder_input_output_embed"]:
        found["decoder.embed_out" if old else "decoder.output_projection.weight"] = (vocab[1], size)
    return found


def norm(name: str, size: int) -> Sizes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def layer(stack: str, i: int, args: dict[str, Any], old: bool) -> Sizes:
    size, inner = args["encoder_embed_dim"], args[f"{stack}_ffn_embed_dim"]
    name = f"{stack}.layers.{i}"
    found: Sizes = {}
    attentions = ["self_attn"] if stack == "encoder" else ["self_attn", "encoder_attn"]
    for attention in attentions:
        if old:
            found[f"{name}.{attention}.in_proj_weight"] = (3 * size, size)
            found[f"{name}.{attention}.in_proj_bias"] = (3 * size,)
        for part in ("out",) if old else ("q", "k", "v", "out"):
            found[f"{name}.{attention}.{part}_proj.weight"] = (size, size)
            found[f"{name}.{attention}.{part}_proj.bias"] = (size,)
    for j, each in enumerate([*(f"{it}_layer_norm" for it in attentions), "final_layer_norm"]):
        found |= norm(f"{name}.layer_norms.{j}" if old else f"{name}.{each}", size)
    found |= {f"{name}.fc1.weight": (inner, size), f"{name}.fc1.bias": (inner,)}
    return found | {f"{name}.fc2.weight": (size, inner), f"{name}.fc2.bias": (size,)}


def expected(args: dict[str, Any]) -> dict[str, Any]:
    """The config values that the options mean."""
    placements = ["pre" if args[f"{it}_normalize_before"] else "post" for it in STACKS]
    return {
        "num_heads": args["encoder_attention_heads"],
        "activation": ACTIVATIONS[args["activation_fn"]],
        "scale_embeddings": not args["no_scale_embedding"],
        "positions": "learned" if args["encoder_learned_pos"] else "sinusoidal_t2t",
        "max_positions": 20 if args["encoder_learned_pos"] else 30,
        "norm_placement": placements[0],
        "norm_eps": 1e-5,
        "tie_embeddings": args["share_all_embeddings"],
        "tie_output": args["share_decoder_input_output_embed"],
        "add_source_eos": True,
    }


def checkpoint(args: dict[str, Any], state: dict[str, Tensor], form: str) -> dict[str, Any]:
    """What fairseq saves; ``form`` is "args" or "cfg"."""
    space = argparse.Namespace(**args)
    return {
        "args": space if form == "args" else None,
        "cfg": {"_name": None, "model": space} if form == "cfg" else None,
        "model": state,
        "optimizer_history": [{"criterion_name": "LabelSmoothed"}],
        "extra_state": {"train_iterator": {"epoch": 3}, "best": float("inf")},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(3)}}},
    }


def write(seed: int, folder: Path, **changes: Any) -> Case:
    """A drawn model in a file, some of its options changed."""
    rng = random.Random(seed)
    args = options(rng) | changes
    rows = rng.randint(20, 40)
    vocab = (rows, rows if args["share_all_embeddings"] else rng.randint(20, 40))
    old = rng.random() < 0.3
    state = draw(shapes(args, vocab, old), seed)
    for stack in STACKS:
        state[f"{stack}.version"] = torch.tensor([3.0])
    if args["share_all_embeddings"]:
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    if not old and args["share_decoder_input_output_embed"]:
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    path = folder / "checkpoint_best.pt"
    saved = checkpoint(args, state, rng.choice(["args", "cfg"]))
    torch.save(saved, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    return Case(path, expected(args), vocab)
