"""Random weights for whole models, in which every parameter matters."""

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def shake(model: Model, seed: int = 0, scale: float = 1.0) -> Model:
    """Fresh random weights, norms and biases included, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(scale * noise / parameter.size(-1) ** 0.5)
            else:
                parameter.add_(0.1 * noise)
    return model.eval().requires_grad_(False)
