"""Model files of Marian-NMT: arrays under its names, and its options as one of them."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.support.toolkits.drawn import Case, Sizes, draw

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}


def options(rng: random.Random) -> dict[str, Any]:
    """Options of a small model, every switch drawn."""
    heads, pre = rng.choice([1, 2, 4]), rng.random() < 0.4
    shared = rng.choice(["all", "src", "none"])
    return {
        "type": "transformer", "dim-emb": heads * rng.choice([4, 6]), "transformer-heads": heads,
        "transformer-dim-ffn": rng.choice([10, 24]), "enc-depth": rng.randint(1, 3),
        "dec-depth": rng.randint(1, 3), "transformer-ffn-depth": 2,
        "transformer-ffn-activation": rng.choice([*ACTIVATIONS]),
        "transformer-preprocess": "n" if pre else "",
        "transformer-postprocess": "da" if pre else "dan",
        "transformer-postprocess-top": "n" if pre else "",
        "transformer-postprocess-emb": rng.choice(["d", "", "n", "nd"]),
        "transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last", "transformer-tied-layers": [],
        "tied-embeddings-all": shared == "all", "tied-embeddings-src": shared == "src",
        "tied-embeddings": rng.random() < 0.5, "version": "v1.11.0",
    }  # fmt: skip


def shapes(given: dict[str, Any], vocab: tuple[int, int]) -> Sizes:
    """The names and shapes of a model's arrays; vectors are matrices of one row."""
    size = given["dim-emb"]
    one_table = given["tied-embeddings-all"] or given["tied-embeddings-src"]
    found: Sizes = {"Wemb": (vocab[0], size)}
    if not one_table:
        found = {"encoder_Wemb": (vocab[0], size), "decoder_Wemb": (vocab[1], size)}
    pre = "_pre" if given["transformer-preprocess"] else ""
    for stack, depth in (("encoder", given["enc-depth"]), ("decoder", given["dec-depth"])):
        if "n" in given["transformer-postprocess-emb"]:
            found |= norm(f"{stack}_emb", size, "_pre")
        if given["transformer-postprocess-top"]:
            found |= norm(f"{stack}_top", size, "")
        for i in range(1, depth + 1):
            found |= layer(f"{stack}_l{i}", given, pre)
    if not (given["tied-embeddings-all"] or given["tied-embeddings"]):
        found["decoder_ff_logit_out_W"] = (size, vocab[1])
    return found | {"decoder_ff_logit_out_b": (1, vocab[1])}


def norm(name: str, size: int, suffix: str) -> Sizes:
    return {f"{name}_ln_scale{suffix}": (1, size), f"{name}_ln_bias{suffix}": (1, size)}


def layer(name: str, given: dict[str, Any], pre: str) -> Sizes:
    size, inner = given["dim-emb"], given["transformer-dim-ffn"]
    found: Sizes = {}
    for attention in ("self", "context") if name.startswith("decoder") else ("self",):
        for part in "qkvo":
            found[f"{name}_{attention}_W{part}"] = (size, size)
            found[f"{name}_{attention}_b{part}"] = (1, size)
        found |= norm(f"{name}_{attention}_Wo", size, pre)
    found |= {f"{name}_ffn_W1": (size, inner), f"{name}_ffn_b1": (1, inner)}
    found |= {f"{name}_ffn_W2": (inner, size), f"{name}_ffn_b2": (1, size)}
    return found | norm(f"{name}_ffn_ffn", size, pre)


def expected(given: dict[str, Any], vocab: tuple[int, int]) -> dict[str, Any]:
    """The config values that the options mean."""
    everywhere = given["tied-embeddings-all"]
    return {
        "num_heads": given["transformer-heads"],
        "activation": ACTIVATIONS.get(given["transformer-ffn-activation"]),
        "norm_placement": "pre" if given["transformer-preprocess"] else "post",
        "norm_eps": 1e-6,
        "positions": "sinusoidal_t2t", "first_position": 0, "scale_embeddings": True,
        "tie_embeddings": everywhere or given["tied-embeddings-src"],
        "tie_output": everywhere or given["tied-embeddings"],
        "eos_id": 0, "unk_id": 1, "bos_id": vocab[1], "pad_id": vocab[1],
        "target_vocab_size": vocab[1] + 1, "add_source_eos": True,
    }  # fmt: skip


def write(seed: int, folder: Path, **changes: Any) -> Case:
    """A drawn model in a file, some of its options changed."""
    rng = random.Random(seed)
    given = options(rng) | {key.replace("_", "-"): value for key, value in changes.items()}
    rows = rng.randint(20, 40)
    one_table = given["tied-embeddings-all"] or given["tied-embeddings-src"]
    vocab = (rows, rows if one_table else rng.randint(20, 40))
    arrays: dict[str, Any] = {}
    for name, tensor in draw(shapes(given, vocab), seed).items():
        arrays[name] = tensor.numpy()
        if "_ln_" in name or "_b" in name:  # around what they begin with
            arrays[name] = 0.3 * arrays[name] + np.float32("_ln_scale" in name)
    text = yaml.safe_dump(given).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(text, dtype=np.int8)
    np.savez(folder / "model.npz", **arrays)
    return Case(folder / "model.npz", expected(given, vocab), vocab)
