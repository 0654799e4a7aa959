"""Folders as JoeyNMT leaves them: ``best.ckpt`` and ``config.yaml``."""

import random
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.support.toolkits.drawn import Case, Sizes, draw

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}


def options(rng: random.Random) -> dict[str, Any]:
    """The configuration of a small model, every switch drawn."""
    heads = rng.choice([1, 2, 4])
    size = heads * rng.choice([4, 6])
    same = {
        "type": "transformer", "hidden_size": size, "dropout": 0.1,
        "activation": rng.choice([*ACTIVATIONS]), "alpha": rng.choice([1.0, 1.0, 1.7]),
    }  # fmt: skip
    scale = rng.random() < 0.6
    norms = rng.choice(["pre", "post", "none", "mixed"])
    model: dict[str, Any] = {
        "tied_embeddings": rng.random() < 0.4,
        "tied_softmax": rng.random() < 0.5,
    }
    for stack in ("encoder", "decoder"):
        model[stack] = {
            **same,
            "num_layers": rng.randint(1, 3),
            "num_heads": heads if stack == "encoder" else rng.choice([1, 2]),
            "ff_size": rng.choice([10, 24]),
            "embeddings": {
                "embedding_dim": size,
                "scale": scale and (stack == "encoder" or rng.random() < 0.7),
            },
        }
        if norms != "none":
            placements = {"pre": "pre", "post": "post"}
            model[stack]["layer_norm"] = placements.get(norms, rng.choice(["pre", "post"]))
    return {"name": "tiny", "data": {"train": "a/b"}, "model": model, "training": {"epochs": 3}}


def shapes(model: dict[str, Any], vocab: tuple[int, int]) -> Sizes:
    """The names and shapes of a model's tensors."""
    size = model["encoder"]["hidden_size"]
    found: Sizes = {
        "src_embed.lut.weight": (vocab[0], size),
        "trg_embed.lut.weight": (vocab[1], size),
        "decoder.output_layer.weight": (vocab[1], size),
    }
    for stack in ("encoder", "decoder"):
        for i in range(model[stack]["num_layers"]):
            found |= layer(stack, i, model[stack])
        if model[stack].get("layer_norm") == "pre":
            found |= {f"{stack}.layer_norm.{kind}": (size,) for kind in ("weight", "bias")}
    return found


def layer(stack: str, i: int, own: dict[str, Any]) -> Sizes:
    size, inner, name = own["hidden_size"], own["ff_size"], f"{stack}.layers.{i}"
    attentions = ["src_src_att"] if stack == "encoder" else ["trg_trg_att", "src_trg_att"]
    norms = ["layer_norm"] if stack == "encoder" else ["x_layer_norm", "dec_layer_norm"]
    found: Sizes = {}
    for attention in attentions:
        for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
            found[f"{name}.{attention}.{part}.weight"] = (size, size)
            found[f"{name}.{attention}.{part}.bias"] = (size,)
    for norm in (*norms, "feed_forward.layer_norm"):
        found |= {f"{name}.{norm}.{kind}": (size,) for kind in ("weight", "bias")}
    inside = f"{name}.feed_forward.pwff_layer"
    found |= {f"{inside}.0.weight": (inner, size), f"{inside}.0.bias": (inner,)}
    return found | {f"{inside}.3.weight": (size, inner), f"{inside}.3.bias": (size,)}


def expected(model: dict[str, Any]) -> dict[str, Any]:
    """The config values that the options mean."""
    encoder, decoder = model["encoder"], model["decoder"]
    placements = encoder.get("layer_norm", "pre"), decoder.get("layer_norm", "post")
    target = encoder if model["tied_embeddings"] else decoder
    return {
        "num_heads": encoder["num_heads"],
        "norm_placement": placements[0],
        "decoder_norm_placement": "same" if len({*placements}) == 1 else placements[1],
        "encoder_final_norm": encoder.get("layer_norm") == "pre",
        "decoder_final_norm": decoder.get("layer_norm") == "pre",
        "activation": ACTIVATIONS[encoder["activation"]],
        "residual_scale": encoder["alpha"],
        "scale_embeddings": encoder["embeddings"]["scale"],
        "scale_target_embeddings": target["embeddings"]["scale"] or not scaled(encoder),
        "norm_eps": 1e-6,
        "tie_embeddings": model["tied_embeddings"],
        "tie_output": model["tied_softmax"],
        "positions": "sinusoidal",
        "unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "add_source_eos": True,
    }  # fmt: skip


def scaled(stack: dict[str, Any]) -> bool:
    scale: bool = stack["embeddings"]["scale"]
    return scale


def write(seed: int, folder: Path, **changes: Any) -> Case:
    """A drawn model in a folder, some options of both of its stacks changed."""
    rng = random.Random(seed)
    config = options(rng)
    model = config["model"]
    for stack in ("encoder", "decoder"):
        model[stack] |= changes
    rows = rng.randint(20, 40)
    vocab = (rows, rows if model["tied_embeddings"] else rng.randint(20, 40))
    state = draw(shapes(model, vocab), seed)
    if model["tied_embeddings"]:
        state["trg_embed.lut.weight"] = state["src_embed.lut.weight"]
    if model["tied_softmax"]:
        state["decoder.output_layer.weight"] = state["trg_embed.lut.weight"]
    if rng.random() < 0.3:
        table = torch.randn(1, 30, model["encoder"]["hidden_size"])
        state |= {f"{stack}.pe.pe": table for stack in ("encoder", "decoder")}
    saved = {
        "steps": 100, "best_ckpt_score": 3.5, "model_state": state,
        "optimizer_state": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []},
        "train_iter_state": torch.arange(5, dtype=torch.uint8),
    }  # fmt: skip
    torch.save(saved, folder / "best.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return Case(folder, expected(model), vocab)
