"""Formulas drawn by hand to text: a convolutional encoder and ``nn.TransformerDecoder``.

    python examples/modules/digits/digits.py
    python -m http.server --directory examples     # then open localhost:8000/modules/digits/

Images are drawn as they are needed, by drawing.py, in many hands. They are all 32 pixels high, and
as wide as the formula is long. The decoder is torch's own, without a cache: ``decode`` reads all
that was written so far, which for a few characters is fast enough.

Axes: B batch, W width of the images, S places of the memory, T characters, E width of the model.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from drawing import CHARACTERS, HEIGHT, Image, draw_formula, draw_text, rasterize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from tfexport.export import Input, export
from tfexport.runtime import Translator

HERE = Path(__file__).parent
PAD, BOS, EOS = range(3)
VOCABULARY = ["<pad>", "<s>", "</s>", *CHARACTERS]
WIDTH, HEADS, LAYERS, BATCH_SIZE = 96, 4, 2, 32
MAX_LENGTH = 16


def positions(count: int, like: Tensor) -> Tensor:
    """Sines and cosines of places 0 to count - 1, (count, E)."""
    places = torch.arange(count, device=like.device)[:, None]
    angles = places * 0.7 ** torch.arange(WIDTH // 2, device=like.device)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Reader(nn.Module):
    """Reads an image column by column, and writes its characters."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(1, 16, (2, 2)), (16, 32, (2, 2)), (32, 48, (2, 1)), (48, 64, (2, 1))]
        self.columns = nn.Sequential(
            *(self.convolution(*size) for size in sizes),
            nn.Flatten(1, 2),  # channels and what is left of the height
        )
        # Goes along the columns, so that a column knows which character of the row it is of.
        self.row = nn.GRU(64 * HEIGHT // 16, WIDTH // 2, batch_first=True, bidirectional=True)
        self.embed = nn.Embedding(len(VOCABULARY), WIDTH)
        layer = nn.TransformerDecoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH))
        self.lm_head = nn.Linear(WIDTH, len(VOCABULARY))

    @staticmethod
    def convolution(channels: int, found: int, stride: tuple[int, int]) -> nn.Module:
        """One that halves the height, and the width if the stride says so."""
        convolution = nn.Conv2d(channels, found, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(found), nn.ReLU())

    def encode(self, image: Tensor) -> Tensor:
        """(B, 1, 32, W) -> the memory (B, S, E), S a quarter of W."""
        memory: Tensor = self.row(self.columns(image).transpose(1, 2))[0]
        return memory

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        """(B, T) -> logits (B, T, V)."""
        length = tokens.shape[1]
        x = self.embed(tokens) + positions(length, memory)
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        logits: Tensor = self.lm_head(self.decoder(x, memory, tgt_mask=causal))
        return logits


def batches(count: int, draw: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images (B, 1, 32, W) of about one width, and BOS characters EOS (B, T)."""
    for begin in range(0, count, 8):
        texts = [draw_formula(draw) for _ in range(8 * BATCH_SIZE)]
        drawn = [(rasterize(draw_text(text, draw)), text) for text in texts]
        drawn.sort(key=lambda pair: pair[0].shape[2])
        for i in draw.permutation(8)[: count - begin]:
            yield stack(drawn[i * BATCH_SIZE : (i + 1) * BATCH_SIZE])


def stack(drawn: list[tuple[Image, str]]) -> tuple[Tensor, Tensor]:
    """A batch: paper is added on the right of images, PAD on the right of characters."""
    widest = max(image.shape[2] for image, _ in drawn)
    images = [np.pad(image, ((0, 0), (0, 0), (0, widest - image.shape[2]))) for image, _ in drawn]
    rows = [[BOS, *map(VOCABULARY.index, text), EOS] for _, text in drawn]
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PAD)
    return torch.from_numpy(np.stack(images)), tokens


def train(model: Reader, steps: int, draw: np.random.Generator) -> None:
    """Cross-entropy on images that are drawn as they are needed."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step, (images, tokens) in enumerate(batches(steps, draw), start=1):
        logits = model.decode(tokens[:, :-1], model.encode(images))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.eval()


@torch.no_grad()
def greedy(model: Reader, image: Image) -> list[int]:
    """The loop to agree with: tokens that PyTorch finds for one image, without start and end."""
    memory, tokens = model.encode(torch.from_numpy(image)[None]), [BOS]
    while len(tokens) <= MAX_LENGTH:
        best = int(model.decode(torch.tensor([tokens]), memory)[0, -1].argmax())
        if best == EOS:
            break
        tokens.append(best)
    return tokens[1:]


def write_tokenizer(path: Path) -> None:
    """A tokenizer.json in which each character is a token."""
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids))
    tokenizer.add_special_tokens(VOCABULARY[: EOS + 1])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path))


def write_bundle(model: Reader, bundle: Path) -> None:
    """Write the bundle, whose graphs are compared with the model's own methods.

    Its generate.onnx is written next to it as one file with its weights, which the page reads.
    """
    tokenizer = bundle.with_suffix(".tokenizer.json")
    write_tokenizer(tokenizer)
    draw = np.random.default_rng(1)
    texts = [draw_formula(draw) for _ in range(4)]
    export(
        model,
        bundle,
        inputs=[Input("image", "float32", ("batch", 1, HEIGHT, "width"))],
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        max_length=MAX_LENGTH,
        tokenizer=tokenizer,
        examples=[{"image": rasterize(draw_text(text, draw))} for text in texts],
        force=True,
    )
    onnx.save(onnx.load(bundle / "generate.onnx"), bundle.with_suffix(".onnx"))


def main() -> None:
    """Train, export, decode without torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        default=HERE / "model.bundle",
        help="the bundle to write (default: where the page finds it)",
    )
    parser.add_argument("--samples", type=Path, help="an .npz to write, of 20 images")
    parser.add_argument("--steps", type=int, default=1000, help="of training (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    draw = np.random.default_rng(arguments.seed)
    model = Reader()
    train(model, arguments.steps, draw)
    torch.save(model.state_dict(), arguments.output.with_suffix(".pt"))
    write_bundle(model, arguments.output)

    # From here on nothing needs torch, but what PyTorch finds is compared.
    texts = [draw_formula(draw) for _ in range(100)]
    images = [rasterize(draw_text(text, draw)) for text in texts]
    if arguments.samples:
        rows: dict[str, Any] = {f"image/{i}": image for i, image in enumerate(images[:20])}
        np.savez(arguments.samples, **rows)
    found = Translator(arguments.output).generate_from([{"image": image} for image in images])
    right = sum(result.text == text for result, text in zip(found, texts, strict=True))
    tokens = [result.hypotheses[0].tokens for result in found]
    same = sum(row == greedy(model, image) for row, image in zip(tokens, images, strict=True))
    print(f"of 100 fresh drawings {right} right, {same} as PyTorch")


if __name__ == "__main__":
    main()
