"""T5, MT5 and UMT5 of Hugging Face, read and computed, against transformers itself."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.combinations import few_of
from tests.support.hf_models import (
    T5_LIKE,
    Padded,
    change_json,
    log_probs,
    make_model,
    padded_batch,
    save_folder,
)
from tfexport.errors import CheckpointError, ConfigError
from tfexport.export.reference.t5_like import ORIGINAL
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.checkpoint import Checkpoint

pytest.importorskip("transformers")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DRAWN = 30 if os.environ.get("FAMILIES") == "all" else 10
FEED_FORWARDS = ("relu", "gelu", "silu", "gated-gelu", "gated-silu", "gated-relu", "gated-gelu_new")


def draw(family: str, seed: int) -> dict[str, Any]:
    """A configuration, with odd sizes, unequal depths and every switch."""
    rng = random.Random(f"{family} {seed}")
    buckets = rng.choice([4, 6, 8, 16, 31, 32, 64])
    return {
        "d_model": rng.choice([7, 16, 24, 33]),
        "d_kv": rng.choice([3, 5, 8]),
        "d_ff": rng.choice([9, 24, 40]),
        "num_heads": rng.choice([1, 2, 3]),
        "num_layers": rng.choice([1, 2, 3]),
        "num_decoder_layers": rng.choice([None, 1, 2, 3]),
        "vocab_size": rng.choice([40, 64, 77]),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": rng.choice([buckets // 2 + 1, 40, 128, 200]),
        "layer_norm_epsilon": rng.choice([1e-6, 1e-3]),
        "feed_forward_proj": FEED_FORWARDS[seed % len(FEED_FORWARDS)],
        "untied": bool(rng.randrange(2)),
    }


def make(family: str, seed: int = 0, **config: Any) -> Any:
    """A model of ``make_model`` whose queries are as small as T5 makes them: no scores are scaled.

    With larger ones float32 alone is off by more than the tolerance, in transformers too.
    """
    model = make_model(family, seed, **config)
    for name, weight in model.named_parameters():
        if name.endswith(".q.weight"):
            weight.data *= model.config.d_kv**-0.5
    return model


def unlike(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to max(1, |value|)."""
    return float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())


@torch.no_grad()
def computed(checkpoint: Checkpoint, batch: Padded) -> Iterator[Tensor]:
    """Log-probabilities of our modules, whole and in steps of several widths, and the reference."""
    built = checkpoint.build()
    yield built(batch.ids, batch.mask, batch.target, torch.ones_like(batch.target))
    hidden, cross = built.encode(batch.ids, batch.mask)
    past, logits, start = built.decoder.empty_cache(hidden), [], 0
    while start < batch.target.size(1):
        width = 1 + start % 3
        found, past = built.step(batch.target[:, start : start + width], past, cross, batch.mask)
        logits.append(found)
        start += width
    yield torch.cat(logits, 1)
    assert ORIGINAL.covers(checkpoint.config)
    reference = ORIGINAL.build(checkpoint)
    yield reference.decode(reference.encode(batch.ids, batch.mask), batch.mask, batch.target)


def check(checkpoint: Checkpoint, model: Any, batch: Padded) -> None:
    wanted = log_probs(model, batch)
    for found in computed(checkpoint, batch):
        assert unlike(torch.log_softmax(found, -1), wanted) < 1e-4


@pytest.mark.parametrize("family", T5_LIKE)
@pytest.mark.parametrize("seed", few_of(range(DRAWN), *range(4)))
def test_drawn(family: str, seed: int, tmp_path: Path) -> None:
    model = make(family, seed, **draw(family, seed))
    weights = "bin" if seed % 5 == 0 else "safetensors"
    checkpoint = load_checkpoint(save_folder(model, tmp_path, weights))
    assert checkpoint.layout == family
    check(checkpoint, model, padded_batch(model, seed, (45, 21, 1), 40))


@pytest.mark.parametrize("family", T5_LIKE)
def test_past_the_last_bucket(family: str, tmp_path: Path) -> None:
    model = make(family, 1)
    checkpoint = load_checkpoint(save_folder(model, tmp_path))
    assert checkpoint.config.relative_max_distance == 128
    check(checkpoint, model, padded_batch(model, 1, (150, 131, 40), 145))


@pytest.mark.parametrize("family", T5_LIKE)
@pytest.mark.parametrize("untied", [True, False])
def test_saved_by_transformers_5(family: str, untied: bool, tmp_path: Path) -> None:
    """Its config.json says that tables are tied, whether they are or not."""
    model = make(family, 2, untied=untied)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    check(load_checkpoint(tmp_path), model, padded_batch(model, 2))


def rewrite(folder: Path, *without: str, **tensors: Tensor) -> None:
    """Leave tensors out of a folder's file, and put others in."""
    path = folder / "model.safetensors"
    kept = {name: it for name, it in load_file(path).items() if name not in without}
    save_file({**kept, **tensors}, path, {"format": "pt"})


# What transformers 4.57 computes with a file that it wrote: family, ``tie_word_embeddings``,
# whether the file has a projection, whether the output is scaled. It was compared with version
# 4.57.6 where 5 does otherwise.
VERSION_4 = [
    ("t5", None, False, True),
    ("t5", True, False, True),
    ("t5", False, True, False),
    ("mt5", True, False, True),
    ("mt5", None, True, False),
    ("mt5", False, True, False),
    ("umt5", None, False, True),
    ("umt5", True, False, True),
    ("umt5", False, True, False),
]


@pytest.mark.parametrize(("family", "tied", "head", "scaled"), VERSION_4)
def test_saved_by_transformers_4(
    family: str, tied: bool | None, head: bool, scaled: bool, tmp_path: Path
) -> None:
    model = make(family, 3, untied=head)
    save_folder(model, tmp_path)
    change_json(tmp_path / "config.json", "tie_word_embeddings", "scale_decoder_outputs")
    change_json(tmp_path / "config.json", transformers_version="4.57.6")
    if tied is not None:
        change_json(tmp_path / "config.json", tie_word_embeddings=tied)
    checkpoint = load_checkpoint(tmp_path)
    norm = model.decoder.final_layer_norm.weight.data
    last = checkpoint.weights["decoder.norm.weight"]
    torch.testing.assert_close(last, norm * (model.config.d_model**-0.5 if scaled else 1.0))
    assert checkpoint.config.tie_output is not head


def test_old_keys(tmp_path: Path) -> None:
    """Early files have positions of the attention to the source, which nothing reads."""
    model = make("t5", 4)
    save_folder(model, tmp_path)
    key = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    rewrite(
        tmp_path, **{key: torch.randn(32, 3), "decoder.embed_tokens.weight": model.shared.weight}
    )
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.key_report[key] == ()
    check(checkpoint, model, padded_batch(model, 4))


def test_a_file_without_config(tmp_path: Path) -> None:
    save_folder(make("t5", 5), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"mt5, t5, umt5"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": False}, "lm_head.weight is missing, and tie_word_embeddings is f"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is not true or false"),
        ({"num_layers": 3}, "num_encoder_layers"),
        ({"d_kv": 7}, "head_dim"),
        ({"feed_forward_proj": "gated-gelu"}, "gated_feed_forward"),
        ({"relative_attention_num_buckets": 16}, "relative_buckets is 16 in config.json"),
        ({"vocab_size": 63}, "source_vocab_size"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_folder(make("t5", 6), tmp_path)
    change_json(tmp_path / "config.json", **changes)
    if "feed_forward_proj" in changes:
        change_json(tmp_path / "config.json", "dense_act_fn", "is_gated_act")
    with pytest.raises((CheckpointError, ConfigError), match=message):
        load_checkpoint(tmp_path)


def test_unsupported_values_are_all_named(tmp_path: Path) -> None:
    save_folder(make("mt5", 7), tmp_path)
    change_json(
        tmp_path / "config.json",
        is_encoder_decoder=False,
        pruned_heads={"0": [1]},
        quantization_config={"bits": 8},
        eos_token_id=[1, 2],
        feed_forward_proj="gated-snake",
    )
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(tmp_path)
    for part in ("is_encoder_decoder", "pruned_heads", "quantization", "eos_token_id", "'gated-s"):
        assert part in str(caught.value)


@pytest.mark.parametrize("key", ["dense_act_fn", "is_gated_act"])
def test_contradicting_activations(key: str, tmp_path: Path) -> None:
    save_folder(make("mt5", 8), tmp_path)
    change_json(tmp_path / "config.json", **{key: {"dense_act_fn": "relu"}.get(key, False)})
    with pytest.raises(ConfigError, match=f"{key}: .* contradicts feed_forward_proj 'gated-gelu'"):
        load_checkpoint(tmp_path)


def test_tables_that_differ(tmp_path: Path) -> None:
    model = make("t5", 9)
    save_folder(model, tmp_path)
    other = torch.randn(64, 16)
    plain = model.encoder.block[0].layer[1].DenseReluDense.wi.weight.data
    name = "encoder.block.0.layer.1.DenseReluDense.wi_1.weight"
    rewrite(
        tmp_path,
        **{"lm_head.weight": other, "encoder.embed_tokens.weight": other.clone(), name: plain},
    )
    change_json(tmp_path / "config.json", transformers_version="4.57.6")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    for part in (
        "lm_head.weight is another table than shared.weight, although tie_word_embeddings is true",
        "encoder.embed_tokens.weight is another table than shared.weight; this model has one",
        "wi.weight and encoder.block.0.layer.1.DenseReluDense.wi_1.weight are both present",
    ):
        assert part in str(caught.value)


def test_without_config_only_what_tensors_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    model = make("t5", 10, feed_forward_proj="gated-gelu", untied=True)
    save_folder(model, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match="required, but not in the file: activation"):
        load_checkpoint(tmp_path, layout="t5")
    checkpoint = load_checkpoint(tmp_path, layout="t5", settings=["activation=gelu_tanh"])
    check(checkpoint, model, padded_batch(model, 10))
