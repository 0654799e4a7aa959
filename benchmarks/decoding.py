"""The demo test set through eager PyTorch's uncached loop, the runtime and one graph, in turn.

python -m benchmarks.decoding
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.startup import MODEL, machine
from tfexport.export import export_bundle, export_graph
from tfexport.export.reference import StockReference
from tfexport.model_src import load_checkpoint
from tfexport.runtime import Translator
from tfexport.runtime.model import pad

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
        export_graph(MODEL, Path(folder) / "generate.onnx", "generate", verify=False)
        graph = ort.InferenceSession(Path(folder) / "generate.onnx")
        translator = Translator(Path(folder) / "de-en.bundle")
        rows = [translator.encode(text) for text in texts]
        special = translator.manifest.special_ids
        reference = StockReference(load_checkpoint(MODEL))

        def ours(batch_size: int) -> list[list[int]]:
            results = translator.generate(rows, max_length=LIMIT, batch_size=batch_size)
            return [result.hypotheses[0].tokens for result in results]

        def one_call(batch_size: int) -> list[list[int]]:
            found: list[list[int]] = [[] for _ in rows]
            order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                ids, mask = pad([rows[i] for i in batch], special.pad)
                feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(LIMIT)}
                for i, row in zip(batch, graph.run(["sequences"], feeds)[0].tolist(), strict=True):
                    found[i] = row[: row.index(special.eos)] if special.eos in row else row
            return found

        systems: dict[str, Callable[[], list[list[int]]]] = {
            "eager PyTorch, uncached": lambda: eager_loop(
                reference, rows, special.bos, special.eos
            ),
            "tfexport, batch 1": lambda: ours(1),
            "tfexport, batch 8": lambda: ours(8),
            "tfexport, batch 32": lambda: ours(32),
            "generate.onnx, batch 1": lambda: one_call(1),
            "generate.onnx, batch 8": lambda: one_call(8),
            "generate.onnx, batch 32": lambda: one_call(32),
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
