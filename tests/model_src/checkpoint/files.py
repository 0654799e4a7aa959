"""Checkpoints written for a test."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]


def save(state: dict[str, Any], folder: Path, **config: Any) -> Path:
    torch.save(state, folder / "model.pt")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.pt"
