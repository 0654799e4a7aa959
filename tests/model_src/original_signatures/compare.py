"""An original and its checkpoint compared with the project's own modules."""

from pathlib import Path

import torch
from torch import Tensor, nn

from tfexport.model_src import (
    Transformer,
    load_checkpoint,
)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def load(model: nn.Module, folder: Path, *settings: str) -> Transformer:
    torch.save(model.state_dict(), folder / "model.pt")
    return load_checkpoint(folder, settings=settings).build()
