"""The demo test set through eager PyTorch's uncached loop, two graphs and one graph, in turn.

python -m benchmarks.decoding
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.startup import MODEL, machine
from tfexport.export import export
from tfexport.export.reference import StockReference
from tfexport.model_src import load_checkpoint
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import OnnxModel, pad
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search import greedy, greedy_in_one_call, truncate_at_eos

RUNS = 5
LIMIT = 60
EAGER = "eager PyTorch, uncached"


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


def in_batches(
    decode: Callable[[list[list[int]]], list[list[int]]], rows: list[list[int]], batch_size: int
) -> list[list[int]]:
    """Rows of like length together, as the translator does it."""
    found: list[list[int]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for i, tokens in zip(batch, decode([rows[i] for i in batch]), strict=True):
            found[i] = tokens
    return found


def main() -> None:
    lines = (MODEL / "test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.partition("\t")[0] for line in lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(MODEL, folder / "de-en.bundle", verify=False)
        export(MODEL, folder / "portable.onnx", graph="generate", portable=True, verify=False)
        portable = ort.InferenceSession(folder / "portable.onnx")
        translator = Translator(folder / "de-en.bundle")
        model = OnnxModel(folder / "de-en.bundle", translator.manifest)
        rows = [translator.encode(text) for text in texts]
        special = translator.manifest.special_ids
        reference = StockReference(load_checkpoint(MODEL))

        def two_graphs(batch: list[list[int]]) -> list[list[int]]:
            return [h.tokens for h in greedy(model, batch, LIMIT, special.bos, special.eos)]

        def one_call(batch: list[list[int]]) -> list[list[int]]:
            options = DecodingOptions(return_scores=False)
            found = greedy_in_one_call(model, batch, LIMIT, special.eos, options)
            return [hypothesis.tokens for hypothesis in found]

        def one_portable_call(batch: list[list[int]]) -> list[list[int]]:
            ids, mask = pad(batch, special.pad)
            feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(LIMIT)}
            sequences = portable.run(["sequences"], feeds)[0].tolist()
            return [truncate_at_eos(row, special.eos) for row in sequences]

        systems: dict[str, Callable[[], list[list[int]]]] = {
            EAGER: lambda: eager_loop(reference, rows, special.bos, special.eos)
        }
        for size in (1, 8, 32):
            for title, decode in (
                ("two-graph loop", two_graphs),
                ("generate.onnx", one_call),
                ("generate.onnx, portable", one_portable_call),
            ):
                systems[f"{title}, batch {size}"] = partial(in_batches, decode, rows, size)
            systems[f"Translator, batch {size}"] = partial(
                lambda size: [
                    result.hypotheses[0].tokens
                    for result in translator.generate(
                        rows, max_length=LIMIT, batch_size=size, return_scores=False
                    )
                ],
                size,
            )
        report(systems, len(texts))


def report(systems: dict[str, Callable[[], list[list[int]]]], sentences: int) -> None:
    """Run all systems in turn and print how fast each is, and whether its tokens are eager's."""
    found: dict[str, list[float]] = {name: [] for name in systems}
    tokens: dict[str, list[list[int]]] = {}
    for _ in range(RUNS):
        for name, system in systems.items():
            start = time.perf_counter()
            tokens[name] = system()
            found[name].append(time.perf_counter() - start)
    medians = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    print(machine())
    print(f"{sentences} sentences, greedy, median of {RUNS} interleaved runs")
    for name, seconds in medians.items():
        same = "same tokens" if tokens[name] == tokens[EAGER] else "DIFFERENT"
        times = medians[EAGER] / seconds
        print(f"  {name:<36}{sentences / seconds:8.0f} sentences/s  {times:5.1f} x  {same}")


if __name__ == "__main__":
    main()
