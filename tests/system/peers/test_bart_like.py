"""BART and its kin in eager PyTorch: what a folder is read as, compared with transformers itself.

Both the modules and the plain formulas that exports are compared with.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.combinations import few_of
from tests.support.hf_models import (
    BART_LIKE,
    Padded,
    change_json,
    log_probs,
    make_model,
    padded_batch,
    save_folder,
)
from tfexport.export.reference import build_reference
from tfexport.model_src import Checkpoint, load_checkpoint
from tfexport.model_src.checkpoint.layouts import LAYOUTS

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

DRAWN = int(os.environ.get("DRAWN_CONFIGS", "30"))  # a family
FEW = 6  # every kind of file and of lengths
TOLERANCE = 1e-4  # relative to max(1, |value|)
ACTIVATIONS = ["relu", "gelu", "gelu_new", "swish", "silu", "quick_gelu", "gelu_pytorch_tanh"]
COUNTED_PADDING = ("m2m_100", "fsmt")  # positions there count ids that are not padding


def draw_config(family: str, seed: int) -> tuple[bool, dict[str, Any]]:
    """Whether the head is a table of its own, and values of the config class."""
    draw = random.Random(f"{family} {seed}")
    head_dim, heads = draw.choice([(5, [1, 3]), (3, [1, 2, 4]), (4, [1, 2, 6]), (2, [5, 10])])
    width = head_dim * max(heads) * draw.choice([1, 2, 3])
    pad = draw.choice([0, 1, 2, 5])
    values = {
        "d_model": width,
        "encoder_attention_heads": draw.choice(heads),
        "decoder_attention_heads": draw.choice(heads),
        "encoder_layers": draw.randint(1, 3),
        "decoder_layers": draw.randint(1, 3),
        "encoder_ffn_dim": draw.randint(5, 40),
        "decoder_ffn_dim": draw.randint(5, 40),
        "max_position_embeddings": draw.randint(9, 30),
        "activation_function": draw.choice(ACTIVATIONS),
        "scale_embedding": draw.random() < 0.5,
        "encoder_layerdrop": draw.choice([0.0, 0.1]),
        "pad_token_id": pad,
        "eos_token_id": draw.choice([3, [3]]),
        "decoder_start_token_id": draw.choice([3, 7] if family in COUNTED_PADDING else [pad, 3, 7]),
    }
    sizes = [draw.randint(10, 70), draw.randint(10, 70)]
    if family == "fsmt":
        values |= {"src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1]}
    else:
        values["vocab_size"] = sizes[0]
    if family == "marian" and draw.random() < 0.5:
        values |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": sizes[1]}
    return draw.random() < 0.4, values


def compare(checkpoint: Checkpoint, batch: Padded, wanted: Tensor, what: object = "") -> None:
    """Modules, and formulas if the family has any, beside log-probabilities of transformers."""
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    assert (reference.no_original is None) == (LAYOUTS[checkpoint.layout].reference is not None)
    with torch.no_grad():
        modules = model(batch.ids, batch.mask, batch.target, torch.ones_like(batch.target))
    original = reference.decode(reference.encode(batch.ids, batch.mask), batch.mask, batch.target)
    for name, logits in (("modules", modules), (reference.title, original)):
        far = (logits.log_softmax(-1) - wanted).abs() / wanted.abs().clamp(min=1)
        assert far.max() < TOLERANCE, (name, what)


def read_back(folder: Path) -> Any:
    """What transformers reads from a folder."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    found = getattr(transformers, kind).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    return found.eval()


@pytest.mark.parametrize("family", BART_LIKE)
@pytest.mark.parametrize("seeds", few_of([range(FEW), range(FEW, DRAWN)], range(FEW)), ids=str)
def test_drawn_configurations(tmp_path: Path, family: str, seeds: range) -> None:
    for seed in seeds:
        untied, values = draw_config(family, seed)
        deviation = (1.0, 0.03)[seed % 2]
        model = make_model(family, seed, untied=untied, embeddings=deviation, **values)
        weights = "bin" if seed % 3 == 0 else "safetensors"
        folder = save_folder(model, tmp_path / f"{seed}", weights)
        limit = values["max_position_embeddings"]
        lengths = [(limit, 1, limit // 2), (3, 8, 5, 2), (1,)][seed % 3]
        batch = padded_batch(model, seed, lengths, target=min(limit, 9))
        if family not in COUNTED_PADDING:
            batch.ids[0, 0] = values["pad_token_id"]  # where the mask says that it is a token
        checkpoint = load_checkpoint(folder)
        compare(checkpoint, batch, log_probs(model, batch), (seed, untied, values))
        config = checkpoint.config
        assert config.decoder_start_id == values["decoder_start_token_id"]
        assert (config.pad_id, config.eos_id) == (values["pad_token_id"], 3)
        assert config.tie_output is not untied or family == "fsmt"
        assert config.longest == limit


@pytest.mark.parametrize("family", BART_LIKE)
def test_values_that_config_json_leaves_to_the_class(tmp_path: Path, family: str) -> None:
    """Every key that a file may lack is that of the class, whose sizes here are its own too."""
    model = make_model(family)
    defaults = type(model.config)()
    names = ["scale_embedding", "activation_function", "tie_word_embeddings"]
    values = {name: getattr(defaults, name) for name in names}
    sizes = {"d_model": 2 * defaults.encoder_attention_heads, "encoder_layers": 1}
    sizes |= {f"{stack}_attention_heads": defaults.encoder_attention_heads
              for stack in ("encoder", "decoder")}  # fmt: skip
    length = defaults.max_position_embeddings
    untied = family == "fsmt"
    del values["tie_word_embeddings"]
    model = make_model(family, untied=untied, **values, **sizes, max_position_embeddings=length)
    folder = save_folder(model, tmp_path / "model")
    change_json(folder / "config.json", *names, "max_position_embeddings", *sizes)
    checkpoint = load_checkpoint(folder)
    compare(checkpoint, (batch := padded_batch(model)), log_probs(model, batch))
    assert checkpoint.config.longest == length


@pytest.mark.parametrize("family", BART_LIKE)
def test_weights_of_half_precision(tmp_path: Path, family: str) -> None:
    """A table of sinusoids that was rounded with the weights is used as it is."""
    model = make_model(family, 4)
    folder = save_folder(model, tmp_path / "half")
    state = load_file(folder / "model.safetensors")
    halved = {name: tensor.half() for name, tensor in state.items()}
    save_file(halved, folder / "model.safetensors", {"format": "pt"})
    again = read_back(folder)
    compare(load_checkpoint(folder), (batch := padded_batch(again)), log_probs(again, batch))


@pytest.mark.parametrize("family", BART_LIKE)
def test_files_of_a_model_without_its_head(tmp_path: Path, family: str) -> None:
    """The class of the stacks alone saves no ``model.`` in front, and no bias of the logits."""
    model = make_model(family, 5, **({"tie_word_embeddings": True} if family != "fsmt" else {}))
    folder = save_folder(model, tmp_path / "bare")
    state = load_file(folder / "model.safetensors")
    bare = {
        name.removeprefix("model."): tensor
        for name, tensor in state.items()
        if name != "final_logits_bias"
    }
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    again = read_back(folder)
    compare(load_checkpoint(folder), (batch := padded_batch(again)), log_probs(again, batch))


@pytest.mark.parametrize("family", ["pegasus", "marian", "fsmt"])
def test_saved_tables_of_sinusoids(tmp_path: Path, family: str) -> None:
    """Equal ones are computed anew; one that was changed is used as it is, as transformers does."""
    model = make_model(family, 6)
    folder = save_folder(model, tmp_path / "saved", "bin")
    assert load_checkpoint(folder).config.positions.startswith("sinusoidal")
    state = torch.load(folder / "pytorch_model.bin")
    name = "model.decoder.embed_positions.weight"
    state[name] = state[name] + 0.25
    torch.save(state, folder / "pytorch_model.bin")
    again = read_back(folder)
    checkpoint = load_checkpoint(folder)
    compare(checkpoint, (batch := padded_batch(again)), log_probs(again, batch))
    assert checkpoint.config.positions == "learned"


def test_wmt19_files_before_transformers_5_hold_no_output_projection(tmp_path: Path) -> None:
    model = make_model("fsmt", 7)
    projection = model.model.decoder.output_projection
    projection.weight = model.model.decoder.embed_tokens.weight
    folder = save_folder(model, tmp_path / "old", "bin")
    state = torch.load(folder / "pytorch_model.bin")
    del state["model.decoder.output_projection.weight"]
    torch.save(state, folder / "pytorch_model.bin")
    change_json(folder / "config.json", tie_word_embeddings=False)
    checkpoint = load_checkpoint(folder)
    compare(checkpoint, (batch := padded_batch(model)), log_probs(model, batch))
    assert checkpoint.config.tie_output
