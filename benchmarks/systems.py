"""One system in a process of its own, decoding when it is told to.

python -m benchmarks.systems SYSTEM FOLDER CHECKPOINT THREADS BEAM, then on stdin a JSON job a line:
``{"rows": [[…]], "limit": N}``. Answers with a JSON line: seconds, tokens, peak memory.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[list[int]]
Decode = Callable[[Rows, int], Rows]
BOS, EOS, PAD = 1, 2, 0


def _translator(bundle: str, scores: bool = False) -> Callable[[Path, Path, int, int], Decode]:
    def start(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
        from tfexport.runtime import Translator

        opened = Translator(folder / bundle, threads)
        # No peer computes scores unless it is asked to.
        options: dict[str, Any] = {"return_scores": scores}
        if beam > 1:
            options["beam_size"] = beam

        def decode(rows: Rows, limit: int) -> Rows:
            found = opened.generate(rows, max_length=limit, batch_size=len(rows), **options)
            return [result.hypotheses[0].tokens for result in found]

        return decode

    return start


def generate_graph(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """Onnxruntime on the self-contained generate.onnx, which always computes scores."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(folder / "generate.onnx", options)

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = _padded(rows)
        feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(limit)}
        return _cut(session.run(["sequences"], feeds)[0].tolist())

    return decode


def two_graphs(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """Onnxruntime on encoder.onnx and decoder.onnx, stepped from Python."""
    from tfexport.bundle import read_manifest
    from tfexport.runtime.model import Model
    from tfexport.runtime.search import greedy

    model = Model(folder / "a.bundle", read_manifest(folder / "a.bundle"), threads)
    return lambda rows, limit: [h.tokens for h in greedy(model, rows, limit, BOS, EOS)]


def _ctranslate2(name: str) -> Callable[[Path, Path, int, int], Decode]:
    def start(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
        import ctranslate2

        opened = ctranslate2.Translator(
            str(folder / name), device="cpu", inter_threads=1, intra_threads=threads
        )

        def decode(rows: Rows, limit: int) -> Rows:
            found = opened.translate_batch(
                [[f"t{i}" for i in row] for row in rows], beam_size=beam,
                max_decoding_length=limit, min_decoding_length=0, max_batch_size=0,
            )  # fmt: skip
            return [[int(token[1:]) for token in result.hypotheses[0]] for result in found]

        return decode

    return start


def transformers(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """MarianMTModel.generate of Hugging Face Transformers."""
    import torch

    from benchmarks.peers import build_marian
    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(threads)
    # Built, not loaded: a saved Marian forgets its position table, and takes one of its own.
    return _generating(build_marian(load_checkpoint(checkpoint)), beam)


def _generating(model: Any, beam: int) -> Decode:
    import torch

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        with torch.inference_mode():
            made = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=limit, num_beams=beam,
                do_sample=False, early_stopping=beam > 1,
            )  # fmt: skip
        return _cut(made[:, 1:].tolist())

    return decode


def optimum(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """ORTModelForSeq2SeqLM.generate of Optimum-ONNX."""
    import onnxruntime as ort
    import torch
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    torch.set_num_threads(threads)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = ORTModelForSeq2SeqLM.from_pretrained(folder / "optimum", session_options=options)
    return _generating(model, beam)


def eager_uncached(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """The tutorial's loop in eager PyTorch: the whole prefix again for every token."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(threads)
    model = load_checkpoint(checkpoint).build()

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        prefix = torch.full((len(rows), 1), BOS)
        with torch.inference_mode():
            _, cross = model.encode(ids, mask)
            for _ in range(limit):
                past = model.decoder.empty_cache(cross[0])
                logits, _ = model.step(prefix, past, cross, mask)
                prefix = torch.cat([prefix, logits[:, -1:].argmax(-1)], dim=1)
        return _cut(prefix[:, 1:].tolist())

    return decode


def eager_cached(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """Eager PyTorch with a cache."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(threads)
    model = load_checkpoint(checkpoint).build()
    return _stepped(model.encode, model.step, model.decoder.empty_cache)


def compiled(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """The same with torch.compile on the decoder's step."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(threads)
    model = load_checkpoint(checkpoint).build()
    step = torch.compile(model.step, dynamic=True)
    return _stepped(model.encode, step, model.decoder.empty_cache)


def torchscript(folder: Path, checkpoint: Path, threads: int, beam: int) -> Decode:
    """The exported TorchScript module's generate."""
    import torch

    torch.set_num_threads(threads)
    module = torch.jit.load(folder / "model.ts")

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        with torch.inference_mode():
            return _cut(module.generate(ids, mask, limit).tolist())

    return decode


def _stepped(encode: Any, step: Any, empty_cache: Any) -> Decode:
    import torch

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        token = torch.full((len(rows), 1), BOS)
        found = []
        with torch.inference_mode():
            _, cross = encode(ids, mask)
            past = empty_cache(cross[0])
            for _ in range(limit):
                logits, past = step(token, past, cross, mask)
                token = logits[:, -1:].argmax(-1)
                found.append(token)
        return _cut(torch.cat(found, dim=1).tolist())

    return decode


def _padded(rows: Rows) -> Any:
    from tfexport.runtime.model import pad

    return pad(rows, PAD)


def _cut(rows: Rows) -> Rows:
    from tfexport.runtime.search import until

    return [until(row, EOS) for row in rows]


SYSTEMS: dict[str, Callable[[Path, Path, int, int], Decode]] = {
    "tfexport": _translator("a.bundle"),
    "tfexport, scores": _translator("a.bundle", scores=True),
    "tfexport int8": _translator("int8.bundle"),
    "generate.onnx": generate_graph,
    "two graphs": two_graphs,
    "CTranslate2": _ctranslate2("ctranslate2"),
    "CTranslate2 MKL": _ctranslate2("ctranslate2"),
    "CTranslate2 int8": _ctranslate2("ctranslate2-int8"),
    "CTranslate2 int8 MKL": _ctranslate2("ctranslate2-int8"),
    "Transformers": transformers,
    "Optimum-ONNX": optimum,
    "eager, uncached": eager_uncached,
    "eager, cached": eager_cached,
    "torch.compile": compiled,
    "TorchScript": torchscript,
}


def _peak_kb() -> int:
    """Largest resident memory so far; Linux only."""
    # Not getrusage: it also counts what the process was forked from.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    name, folder, checkpoint, threads, beam = sys.argv[1:]
    start = time.perf_counter()
    decode = SYSTEMS[name](Path(folder), Path(checkpoint), int(threads), int(beam))
    print(json.dumps({"loaded": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        # The first of two wakes threads and fills caches, as a busy service has them.
        decode(job["rows"], job["limit"])
        start = time.perf_counter()
        tokens = decode(job["rows"], job["limit"])
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "tokens": tokens, "peak_kb": _peak_kb()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
