"""One system in a separate process, decoding when it is told to.

python -m benchmarks.systems SYSTEM SETUP, where SETUP is a JSON object of Setup's fields, then on
stdin a JSON job a line: ``{"rows": [[…]], "limit": N, "alone": false, "times": 1}``, or true for a
call a row. Answers with a JSON line: seconds, tokens, peak memory.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = list[list[int]]
Decode = Callable[[Rows, int], Rows]
IDS = {"start": 1, "eos": 2, "pad": 0}  # unless the folder has others
SPECIAL_IDS = "special_ids.json"
WAKE, WAKE_SECONDS = 4, 0.1  # tokens, which read every weight, and for how long they are decoded
BATCH = "batch"  # an option of tfexport and CTranslate2, which both sort rows by length


@dataclass(frozen=True)
class Setup:
    """Settings that a system is started with.

    Attributes:
        folder: where benchmarks.models.prepare wrote what the systems load.
        checkpoint: the weights, for systems that load those.
        beam: hypotheses of each row; 1 is greedy search.
        threads: that one worker computes with.
        workers: that share the rows of a batch evenly, where the system has workers.
        options: of the system itself.
    """

    folder: Path
    checkpoint: Path
    beam: int
    threads: int
    workers: int = 1
    options: dict[str, str] = field(default_factory=dict)

    def share(self, rows: Rows) -> int:
        """How many of these rows are decoded together: one worker's share, or a given batch."""
        return int(self.options.get(BATCH, -(-len(rows) // self.workers)))


def _translator(bundle: str, scores: bool = False) -> Callable[[Setup], Decode]:
    def start(setup: Setup) -> Decode:
        from tfexport.runtime import Translator

        engine: Any = setup.options["engine"]
        folder = setup.folder / bundle
        opened = Translator(folder, setup.threads, workers=setup.workers, engine=engine)
        # No peer computes scores unless it is asked to.
        options: dict[str, Any] = {"return_scores": scores, "beam_size": setup.beam}

        def decode(rows: Rows, limit: int) -> Rows:
            found = opened.generate(rows, max_length=limit, batch_size=setup.share(rows), **options)
            return [result.hypotheses[0].tokens for result in found]

        return decode

    return start


def generate_graph(setup: Setup) -> Decode:
    """Onnxruntime on the self-contained generate.onnx, which always computes scores."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = setup.threads
    session = ort.InferenceSession(setup.folder / "generate.onnx", options)

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = _padded(rows)
        feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(limit)}
        return _cut(session.run(["sequences"], feeds)[0].tolist())

    return decode


def two_graphs(setup: Setup) -> Decode:
    """Onnxruntime on encoder.onnx and decoder.onnx, stepped from Python."""
    from tfexport.bundle import read_manifest
    from tfexport.runtime.model.onnxruntime_model import OnnxModel
    from tfexport.runtime.search import greedy

    model = OnnxModel(path := setup.folder / "a.bundle", read_manifest(path), setup.threads)
    return lambda rows, limit: [
        h.tokens for h in greedy(model, rows, limit, IDS["start"], IDS["eos"])
    ]


def _ctranslate2(name: str) -> Callable[[Setup], Decode]:
    def start(setup: Setup) -> Decode:
        import ctranslate2

        opened = ctranslate2.Translator(
            str(setup.folder / name), device="cpu", inter_threads=setup.workers,
            intra_threads=setup.threads,
        )  # fmt: skip

        def decode(rows: Rows, limit: int) -> Rows:
            found = opened.translate_batch(
                [[f"t{i}" for i in row] for row in rows], beam_size=setup.beam,
                max_decoding_length=limit, min_decoding_length=0,
                max_batch_size=setup.share(rows),
            )  # fmt: skip
            return [[int(token[1:]) for token in result.hypotheses[0]] for result in found]

        return decode

    return start


def transformers(setup: Setup) -> Decode:
    """MarianMTModel.generate of Hugging Face Transformers."""
    import torch

    from benchmarks.peers import open_marian

    torch.set_num_threads(setup.threads)
    model = open_marian(setup.checkpoint)
    model.set_attn_implementation(setup.options["attention"])
    return _generating(model, setup)


def _generating(model: Any, setup: Setup) -> Decode:
    import torch

    # A folder has its own rules. Others are done once as many hypotheses as beams have ended.
    early_stopping = not setup.checkpoint.is_dir() and setup.beam > 1

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        with torch.inference_mode():
            made = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=limit,
                num_beams=setup.beam, do_sample=False, early_stopping=early_stopping,
            )  # fmt: skip
        return _cut(made[:, 1:].tolist())

    return decode


def optimum(setup: Setup) -> Decode:
    """ORTModelForSeq2SeqLM.generate of Optimum-ONNX."""
    import onnxruntime as ort
    import torch
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    torch.set_num_threads(setup.threads)
    options = ort.SessionOptions()
    options.intra_op_num_threads = setup.threads
    model = ORTModelForSeq2SeqLM.from_pretrained(setup.folder / "optimum", session_options=options)
    return _generating(model, setup)


def eager_uncached(setup: Setup) -> Decode:
    """The tutorial's loop in eager PyTorch: the whole prefix again for every token."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(setup.threads)
    model = load_checkpoint(setup.checkpoint).build()

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        prefix = torch.full((len(rows), 1), IDS["start"])
        with torch.inference_mode():
            _, cross = model.encode(ids, mask)
            for _ in range(limit):
                past = model.decoder.empty_cache(cross[0])
                logits, _ = model.step(prefix, past, cross, mask)
                prefix = torch.cat([prefix, logits[:, -1:].argmax(-1)], dim=1)
        return _cut(prefix[:, 1:].tolist())

    return decode


def eager_cached(setup: Setup) -> Decode:
    """Eager PyTorch with a cache."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(setup.threads)
    model = load_checkpoint(setup.checkpoint).build()
    return _stepped(model.encode, model.step, model.decoder.empty_cache)


def compiled(setup: Setup) -> Decode:
    """The same with torch.compile on the decoder's step."""
    import torch

    from tfexport.model_src import load_checkpoint

    torch.set_num_threads(setup.threads)
    model = load_checkpoint(setup.checkpoint).build()
    step = torch.compile(model.step, dynamic=True)
    return _stepped(model.encode, step, model.decoder.empty_cache)


def torchscript(setup: Setup) -> Decode:
    """The exported TorchScript module's generate."""
    import torch

    torch.set_num_threads(setup.threads)
    module = torch.jit.load(setup.folder / "model.ts")

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        with torch.inference_mode():
            return _cut(module.generate(ids, mask, limit).tolist())

    return decode


def _stepped(encode: Any, step: Any, empty_cache: Any) -> Decode:
    import torch

    def decode(rows: Rows, limit: int) -> Rows:
        ids, mask = map(torch.from_numpy, _padded(rows))
        token = torch.full((len(rows), 1), IDS["start"])
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
    from tfexport.runtime.model.onnxruntime_model import pad

    return pad(rows, IDS["pad"])


def _cut(rows: Rows) -> Rows:
    from tfexport.runtime.search import truncate_at_eos

    return [truncate_at_eos(row, IDS["eos"]) for row in rows]


SYSTEMS: dict[str, Callable[[Setup], Decode]] = {
    "tfexport": _translator("a.bundle"),
    "tfexport, scores": _translator("a.bundle", scores=True),
    "tfexport int8": _translator("int8.bundle"),
    "generate.onnx": generate_graph,
    "two graphs": two_graphs,
    "CTranslate2": _ctranslate2("ctranslate2"),
    "CTranslate2 int8": _ctranslate2("ctranslate2-int8"),
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
    name, fields = sys.argv[1], json.loads(sys.argv[2])
    for path in ("folder", "checkpoint"):
        fields[path] = Path(fields[path])
    if (special := fields["folder"] / SPECIAL_IDS).exists():
        IDS.update(json.loads(special.read_text()))
    decode = SYSTEMS[name](Setup(**fields))
    print(json.dumps({"loaded": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        # Threads wake and caches fill, as a busy service has them, before the clock runs.
        end = time.perf_counter() + WAKE_SECONDS
        while time.perf_counter() < end:
            decode(job["rows"], WAKE)
        start = time.perf_counter()
        calls = [[row] for row in job["rows"]] if job["alone"] else [job["rows"]]
        tokens = [row for call in calls * job["times"] for row in decode(call, job["limit"])]
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "tokens": tokens, "peak_kb": _peak_kb()}), flush=True)


if __name__ == "__main__":
    main()
