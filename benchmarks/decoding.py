"""The demo test set through eager PyTorch's uncached loop and through the runtime, in turn.

python -m benchmarks.decoding
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.startup import MODEL, machine
from tfexport.export import export_bundle
from tfexport.export.reference import StockReference
from tfexport.model_src import load_checkpoint
from tfexport.runtime import Translator

RUNS = 5
LIMIT = 60


def eager_loop(
    reference: StockReference, rows: list[list[int]], bos: int, eos: int
) -> list[list[int]]:
    """The tutorial's greedy loop: one sentence at a time, the whole prefix for every token."""
    found = []
    for row in rows:
        ids = torch.tensor([row])
        mask = torch.ones_like(ids)
        hidden = reference.encode(ids, mask)
        prefix = torch.tensor([[bos]])
        for _ in range(LIMIT):
            token = reference.decode(hidden, mask, prefix)[:, -1].argmax(-1, keepdim=True)
            if int(token) == eos:
                break
            prefix = torch.cat([prefix, token], dim=1)
        found.append(prefix[0, 1:].tolist())
    return found


def main() -> None:
    lines = (MODEL / "test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.partition("\t")[0] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        export_bundle(MODEL, Path(folder) / "de-en.bundle", verify=False)
        translator = Translator(Path(folder) / "de-en.bundle")
        rows = [translator.encode(text) for text in texts]
        special = translator.manifest.special_ids
        reference = StockReference(load_checkpoint(MODEL))

        def ours(batch_size: int) -> list[list[int]]:
            results = translator.generate(rows, max_length=LIMIT, batch_size=batch_size)
            return [result.hypotheses[0].tokens for result in results]

        systems: dict[str, Callable[[], list[list[int]]]] = {
            "eager PyTorch, uncached": lambda: eager_loop(
                reference, rows, special.bos, special.eos
            ),
            "tfexport, batch 1": lambda: ours(1),
            "tfexport, batch 8": lambda: ours(8),
            "tfexport, batch 32": lambda: ours(32),
        }
        found: dict[str, list[float]] = {name: [] for name in systems}
        tokens: dict[str, list[list[int]]] = {}
        for _ in range(RUNS):
            for name, system in systems.items():
                start = time.perf_counter()
                tokens[name] = system()
                found[name].append(time.perf_counter() - start)
    medians = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    slowest = medians["eager PyTorch, uncached"]
    print(machine())
    print(f"{len(texts)} sentences, greedy, median of {RUNS} interleaved runs")
    for name, seconds in medians.items():
        same = "same tokens" if tokens[name] == tokens["eager PyTorch, uncached"] else "DIFFERENT"
        rate = len(texts) / seconds
        print(f"  {name:<26}{rate:8.0f} sentences/s  {slowest / seconds:5.1f} x  {same}")


if __name__ == "__main__":
    main()
