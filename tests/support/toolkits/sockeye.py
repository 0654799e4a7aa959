"""Folders as Sockeye leaves them: ``params.best`` and ``config``, YAML with tags of its classes."""

import random
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from tests.support.toolkits.drawn import Case, Sizes, draw

ACTIVATIONS = {"relu": "relu", "swish1": "silu", "gelu": "gelu"}
POSITIONS = {"fixed": "sinusoidal_halves", "learned": "learned"}


def options(rng: random.Random) -> dict[str, Any]:
    """The configuration of a small model, every switch drawn."""
    size = rng.choice([8, 16, 24])
    same = {
        "model_size": size, "act_type": rng.choice([*ACTIVATIONS]), "dropout_act": 0.1,
        "positional_embedding_type": rng.choice([*POSITIONS]), "use_lhuc": False,
        "max_seq_len_source": 20, "max_seq_len_target": rng.choice([20, 30]),
        "use_glu": rng.random() < 0.4, "depth_key_value": size, "decoder_type": "transformer",
    }  # fmt: skip
    found: dict[str, Any] = {
        "weight_tying_type": rng.choice(["src_trg_softmax", "src_trg", "trg_softmax", "none"]),
        "lhuc": False, "dtype": "float32", "neural_vocab_selection": None,
        "config_embed_source": {"num_embed": size, "factor_configs": None},
        "config_embed_target": {"num_embed": size, "factor_configs": None},
    }  # fmt: skip
    for stack in ("encoder", "decoder"):
        pre = rng.random() < 0.6
        found[f"config_{stack}"] = {
            **same,
            "attention_heads": rng.choice([1, 2, 4]),
            "num_layers": rng.randint(1, 3),
            "feed_forward_num_hidden": rng.choice([10, 24]),
            "preprocess_sequence": "n" if pre else "",
            "postprocess_sequence": "dr" if pre else "drn",
        }
    return found


def shapes(config: dict[str, Any], vocab: tuple[int, int]) -> Sizes:
    """The names and shapes of a model's tensors."""
    size = config["config_encoder"]["model_size"]
    found: Sizes = {
        "embedding_source.embedding.weight": (vocab[0], size),
        "embedding_target.embedding.weight": (vocab[1], size),
        "output_layer.weight": (vocab[1], size),
        "output_layer.bias": (vocab[1],),
    }
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        own = config[f"config_{stack}"]
        found[f"{stack}.pos_embedding.weight"] = (own[f"max_seq_len_{side}"], size)
        for i in range(own["num_layers"]):
            found |= layer(f"{stack}.layers.{i}", own)
        if own["preprocess_sequence"]:
            found |= norm(f"{stack}.final_process", size)
    return found


def norm(name: str, size: int) -> Sizes:
    return {f"{name}.layer_norm.{kind}": (size,) for kind in ("weight", "bias")}


def layer(name: str, own: dict[str, Any]) -> Sizes:
    size, inner = own["model_size"], own["feed_forward_num_hidden"]
    place = "pre" if own["preprocess_sequence"] else "post"
    first = "self_attention" if name.startswith("encoder") else "autoregr_layer"
    found: Sizes = {f"{name}.{first}.ff_in.weight": (3 * size, size)}
    found[f"{name}.{first}.ff_out.weight"] = (size, size)
    found |= norm(f"{name}.{place}_{first}", size) | norm(f"{name}.{place}_ff", size)
    if name.startswith("decoder"):
        found |= norm(f"{name}.{place}_enc_attention", size)
        for part, rows in (("ff_q", size), ("ff_kv", 2 * size), ("ff_out", size)):
            found[f"{name}.enc_attention.{part}.weight"] = (rows, size)
    for part in ("ff1", "linear") if own["use_glu"] else ("ff1",):
        found |= {f"{name}.ff.{part}.weight": (inner, size), f"{name}.ff.{part}.bias": (inner,)}
    return found | {f"{name}.ff.ff2.weight": (size, inner), f"{name}.ff.ff2.bias": (size,)}


def expected(config: dict[str, Any]) -> dict[str, Any]:
    """The config values that the options mean."""
    encoder, decoder = config["config_encoder"], config["config_decoder"]
    places = ["pre" if it["preprocess_sequence"] else "post" for it in (encoder, decoder)]
    heads = encoder["attention_heads"], decoder["attention_heads"]
    tied = config["weight_tying_type"]
    return {
        "num_heads": heads[0],
        "decoder_num_heads": heads[1] if heads[1] != heads[0] else 0,
        "norm_placement": places[0],
        "decoder_norm_placement": "same" if places[0] == places[1] else places[1],
        "activation": ACTIVATIONS[encoder["act_type"]],
        "positions": POSITIONS[encoder["positional_embedding_type"]],
        "max_positions": 20,
        "gated_feed_forward": encoder["use_glu"],
        "scale_embeddings": True, "norm_eps": 1e-6, "attention_bias": False,
        "tie_embeddings": "src_trg" in tied, "tie_output": "softmax" in tied,
        "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "add_source_eos": True,
    }  # fmt: skip


def tagged(config: dict[str, Any]) -> str:
    """Its YAML, with the tags of Sockeye's classes."""
    text: str = yaml.safe_dump(config)
    for stack in ("encoder", "decoder"):
        text = text.replace(f"config_{stack}:\n", f"config_{stack}: !TransformerConfig\n")
    return "!ModelConfig\n" + text


def write(seed: int, folder: Path, **changes: Any) -> Case:
    """A drawn model in a folder, some options of it, or of both of its stacks, changed."""
    rng = random.Random(seed)
    config = options(rng)
    for key, value in changes.items():
        for group in (config,) if key in config else (config["config_encoder"],):
            group[key] = value
    tied = config["weight_tying_type"]
    rows = rng.randint(20, 40)
    vocab = (rows, rows if "src_trg" in tied else rng.randint(20, 40))
    state: dict[str, Tensor] = draw(shapes(config, vocab), seed)
    if "src_trg" in tied:
        state["embedding_target.embedding.weight"] = state["embedding_source.embedding.weight"]
    if "softmax" in tied:
        state["output_layer.weight"] = state["embedding_target.embedding.weight"]
    state["length_ratio.layers.0.weight"] = torch.ones(2, 2)
    torch.save(state, folder / "params.best")
    (folder / "config").write_text(tagged(config))
    (folder / "vocab.src.0.json").write_text("{}")
    return Case(folder, expected(config), vocab)
