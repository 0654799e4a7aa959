"""Folders of BART and its kin that were tampered with: read, or refused, and nothing else."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.combinations import few_of
from tests.support.hf_models import BART_LIKE, change_weights, make_model, save_folder
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

DRAWN = int(os.environ.get("TAMPERED_FOLDERS", "6"))  # a family
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 10**40, 0.5, float("nan"), "", "gelu", "x" * 9, [], [2],
    [1, "a"], {}, {"a": 1},
]  # fmt: skip
MORE_KEYS = [
    "share_encoder_decoder_embeddings", "tie_word_embeddings", "quantization_config", "num_heads",
    "hidden_size", "num_attention_heads", "normalize_before", "static_position_embeddings",
]  # fmt: skip


def tamper(draw: random.Random, state: dict[str, Tensor]) -> None:
    name = draw.choice(list(state))
    other = draw.choice(
        ["shared.weight", "lm_head.weight", "model.decoder.embed_tokens.weight", "encoder.version"]
        + [f"model.{stack}.embed_positions.weight{s}" for stack in ("encoder", "decoder")
           for s in ("", "s")]
    )  # fmt: skip
    tensor = state[name]
    made: list[Tensor | None] = [
        None, tensor[:1].clone(), tensor.flatten().clone(), tensor[None].clone(),
        torch.zeros(()), torch.zeros(0, 16), torch.zeros(3, 16, dtype=torch.int64),
        torch.full((42, 16), float("nan")), torch.zeros(1), torch.zeros(2, 0), torch.zeros(5, 1),
    ]  # fmt: skip
    chosen = draw.choice(made)
    place = draw.choice([name, other])
    if chosen is None:
        state.pop(place, None)
    else:
        state[place] = chosen


@pytest.mark.parametrize("family", few_of(BART_LIKE, "marian", "mbart", "fsmt"))
def test_tampered_folders(tmp_path: Path, family: str) -> None:
    model = make_model(family)
    for seed in range(DRAWN):
        draw = random.Random(f"{family} {seed}")
        weights = draw.choice(["bin", "safetensors"])
        folder = save_folder(model, tmp_path / f"{seed}", weights)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for _ in range(draw.choice([0, 0, 1, 2])):
            config[draw.choice([*config, *MORE_KEYS])] = draw.choice(VALUES)
        for _ in range(draw.choice([0, 0, 0, 1])):
            config.pop(draw.choice(list(config)))
        path.write_text(json.dumps(config))
        for _ in range(draw.choice([0, 1, 1, 2])):
            change_weights(folder, lambda state, draw=draw: tamper(draw, state))  # type: ignore[misc]
        with contextlib.suppress(CheckpointError, ConfigError):
            load_checkpoint(folder).build()
