"""A tiny bundle of pictures, made in a second: an own module, with the steps of a picture."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.manifests import rewrite
from tfexport.export import Input, export

VOCABULARY = 12
SIDE = 6
STEPS: list[dict[str, Any]] = [
    {"step": "resize", "height": SIDE, "width": SIDE, "resample": "bilinear"},
    {"step": "rescale", "factor": 1 / 255},
    {"step": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
]


class Reader(nn.Module):
    """The next token depends on the picture, the last token and the length."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3 * SIDE * SIDE, 16)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.output = nn.Linear(16, VOCABULARY)

    def encode(self, pixel_values: Tensor) -> Tensor:
        return torch.tanh(self.project(pixel_values.flatten(1)))

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        length = torch.arange(tokens.size(1)).to(torch.float32)[:, None]
        logits: Tensor = self.output(
            torch.sin(3 * self.embedding(tokens) + 2 * memory[:, None] + length)
        )
        return logits


def make_picture_bundle(folder: Path) -> None:
    """Export it into a new folder, as "pictures.bundle"; its texts are words, w3 to w11."""
    folder.mkdir()
    torch.manual_seed(3)
    model = Reader()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, VOCABULARY))]
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    made = export(
        model, folder / "pictures.bundle", pad_id=0, bos_id=1, eos_id=2, max_length=10,
        inputs=[Input("pixel_values", "float32", ("batch", 3, SIDE, SIDE))],
        verify=False, tokenizer=vocabulary,
    )  # fmt: skip
    part = {"kind": "picture", "input": "pixel_values", "steps": STEPS}
    rewrite(made.path, lambda manifest: manifest.update(preprocessing=json.loads(json.dumps(part))))
