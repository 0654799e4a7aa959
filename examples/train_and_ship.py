"""Train a small model of each family, save it, export it, decode it without torch.

    python examples/train_and_ship.py [family ...]

The task is a toy: say a row of digits backwards. Each family is one config; everything else is the
same for all. What you would change for a model of your own is ``FAMILIES`` and ``batch``.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tfexport.export import export
from tfexport.model_src import Transformer, TransformerConfig, build_transformer, save_checkpoint

PAD, BOS, EOS, DIGITS = 0, 1, 2, 10
VOCABULARY = 3 + DIGITS
LONGEST = 6
STEPS = 400

FAMILIES: dict[str, dict[str, Any]] = {
    "nn-transformer": {},
    "annotated": {
        "norm": "annotated",
        "norm_eps": 1e-6,
        "norm_placement": "pre",
        "mask_fill": -1e9,
    },
    "rmsnorm": {
        "norm": "rms",
        "activation": "silu",
        "attention_bias": False,
        "feed_forward_bias": False,
        "encoder_final_norm": False,
        "decoder_final_norm": False,
        "scale_embeddings": False,
        "head_dim": 12,
    },
    "shared-layers": {
        "share_encoder_layers": True,
        "share_decoder_layers": True,
        "encoder_final_norm": False,
    },
}


def build(family: str) -> Transformer:
    """A fresh model of one family."""
    config = TransformerConfig(
        d_model=48,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=96,
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        max_positions=16,
        dropout=0.0,  # the task is never seen twice, so there is nothing to overfit
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        **FAMILIES[family],
    )
    return build_transformer(config)


def batch(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of 1 to LONGEST digits: source, its mask, decoder input, what to predict; pad is 0."""
    lengths = torch.randint(1, LONGEST + 1, (size,))
    source = torch.full((size, LONGEST), PAD)
    target = torch.full((size, LONGEST + 2), PAD)
    for i, length in enumerate(lengths.tolist()):
        digits = torch.randint(3, VOCABULARY, (length,))
        source[i, :length] = digits
        target[i, : length + 2] = torch.cat(
            [torch.tensor([BOS]), digits.flip(0), torch.tensor([EOS])]
        )
    mask = (torch.arange(LONGEST) < lengths.unsqueeze(1)).long()
    return source, mask, target[:, :-1], target[:, 1:]


def train(model: Transformer) -> None:
    """Cross-entropy with Adam and a short warm-up."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        source, mask, inputs, expected = batch(64)
        logits = model(source, mask, inputs, torch.ones_like(inputs))
        loss = F.cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()


def decode_without_torch(bundle: Path, rows: list[list[int]]) -> list[list[int]]:
    """Decode in a process where torch cannot be imported."""
    code = "import sys; sys.modules['torch'] = None; from tfexport.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "translate", str(bundle), "--ids"],
        input="".join(" ".join(map(str, row)) + "\n" for row in rows),
        capture_output=True,
        text=True,
        check=True,
    )
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def main() -> None:
    """Train, save, export, decode each family that is named, or all."""
    torch.manual_seed(0)
    for family in sys.argv[1:] or FAMILIES:
        start = time.perf_counter()
        model = build(family)
        train(model)
        trained = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(model, Path(folder) / "model.safetensors")
            result = export(Path(folder), Path(folder) / "model.bundle")
            source, mask, _, _ = batch(200)
            rows = [row[:n].tolist() for row, n in zip(source, mask.sum(1).tolist(), strict=True)]
            decoded = decode_without_torch(result.path, rows)
        right = sum(ours == row[::-1] for ours, row in zip(decoded, rows, strict=True))
        assert result.report is not None
        difference = max(each.difference for each in result.report.worst().values())
        print(
            f"{family}: trained in {trained:.0f} s, exported within {difference:.0e} of eager "
            f"PyTorch, {right} of {len(rows)} rows right without torch"
        )


if __name__ == "__main__":
    main()
