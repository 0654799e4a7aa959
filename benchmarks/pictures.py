"""TrOCR's shapes with random weights: tfexport, transformers and Optimum.

python -m benchmarks.pictures [--size small] [--threads 2]

The sizes are those of microsoft/trocr-small-printed and of microsoft/trocr-base-printed. A picture
of 400 x 60 pixels is resized to 384 x 384 and becomes 32 tokens, as the end token is suppressed.
Every system has its own process, and they take turns; each number is the median of the rounds. The
encoder with one token is what a faster decoder leaves; preprocessing is a part of both. Systems are
compared with those of their own precision, 16 and 8 bits being one; in int8 and bf16 tokens of
random weights say nothing about quality. Optimum runs in .venv-optimum, if it is there.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.configurations import OPTIMUM_PYTHON, REPOSITORY
from benchmarks.process import PAUSE

LENGTH, SIDE, EOS = 32, 384, 2
Decode = Callable[..., list[list[int]]]  # of pictures, beams and the number of tokens
Read = Callable[[list[Any]], object]  # of pictures: makes their inputs
OURS = ("tfexport", "tfexport, onnxruntime", "tfexport, int8", "tfexport, int8, onnxruntime")
PEERS = ("transformers", "transformers, 1 thread", "transformers, int8", "transformers, bf16")
SIZES = ("small", "base")
OPTIMUM, EXPORT = "Optimum", "Optimum, export"


def folder_of(size: str) -> Path:
    """Where the systems' files of a size are."""
    return REPOSITORY / "build" / "bench" / f"trocr-{size}"


def make_model(folder: Path, size: str) -> None:
    """Write a folder with the sizes of microsoft/trocr-small-printed or of trocr-base-printed."""
    import torch
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    picture = {"image_size": SIDE, "patch_size": 16, "num_hidden_layers": 12}
    text = {"is_decoder": True, "add_cross_attention": True, "tie_word_embeddings": False}
    if size == "small":
        encoder = library.DeiTConfig(
            **picture, hidden_size=384, num_attention_heads=6, intermediate_size=1536
        )
        decoder = library.TrOCRConfig(
            **text, vocab_size=64044, d_model=256, decoder_layers=6, decoder_attention_heads=8,
            decoder_ffn_dim=1024, max_position_embeddings=512, cross_attention_hidden_size=384,
            scale_embedding=True,
        )  # fmt: skip
    else:
        encoder = library.ViTConfig(
            **picture, hidden_size=768, num_attention_heads=12, intermediate_size=3072,
            qkv_bias=False,
        )  # fmt: skip
        decoder = library.TrOCRConfig(
            **text, vocab_size=50265, d_model=1024, decoder_layers=12, decoder_attention_heads=16,
            decoder_ffn_dim=4096, max_position_embeddings=512, cross_attention_hidden_size=768,
            activation_function="gelu", scale_embedding=False,
        )  # fmt: skip
    config = library.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    ids = {"decoder_start_token_id": EOS, "eos_token_id": EOS, "pad_token_id": 1}
    for key, value in ids.items():
        setattr(config, key, value)
    model = library.VisionEncoderDecoderModel(config)
    with torch.no_grad():  # else, and with one table for both ends, every token is the same
        model.decoder.model.decoder.embed_tokens.weight.mul_(30)
    model.generation_config.update(**ids, max_length=LENGTH + 1, suppress_tokens=[EOS])
    model.save_pretrained(folder)
    values = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE},
        "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def prepare(size: str) -> None:
    """Write what the systems load, unless it is there."""
    folder = folder_of(size)
    model, bundle = folder / "model", folder / "model.bundle"
    if not model.exists():
        make_model(model, size)
    if not bundle.exists():
        command = [sys.executable, "-m", "tfexport", "onnx", "--checkpoint", str(model)]
        command += ["--verify", "quick", "-o", str(bundle)]
        subprocess.run(command, check=True)
    if not (folder / "int8.bundle").exists():
        command = [sys.executable, "-m", "tfexport", "quantize", str(bundle)]
        subprocess.run([*command, "-o", str(folder / "int8.bundle")], check=True)
    if OPTIMUM_PYTHON.exists() and not (folder / "optimum").exists():
        command = [str(OPTIMUM_PYTHON), "-m", "benchmarks.pictures", "--size", size]
        command += ["--serve", EXPORT]
        try:
            subprocess.run(command, check=True, cwd=REPOSITORY)
        except subprocess.CalledProcessError:
            shutil.rmtree(folder / "optimum", ignore_errors=True)
            raise


def save_optimum(folder: Path) -> None:
    """Export the model with Optimum, in its environment."""
    import transformers
    from optimum.exporters.onnx import onnx_export_from_model

    library: Any = transformers
    model = library.VisionEncoderDecoderModel.from_pretrained(folder / "model")
    task = "image-to-text-with-past"
    onnx_export_from_model(model, folder / "optimum", task=task, do_validation=False)


def ours(bundle: Path, threads: int, engine: Any = "auto") -> tuple[Decode, Read]:
    """The bundle: tokens of pictures, and the preprocessing alone."""
    from tfexport.runtime import Translator

    translator = Translator(bundle, threads=threads, engine=engine)

    def decode(pictures: list[Any], beams: int, length: int = LENGTH) -> list[list[int]]:
        rows = [{"image": picture} for picture in pictures]
        found = translator.generate_from(
            rows, beam_size=beams, max_length=length, return_scores=False, batch_size=len(rows)
        )
        tokens = [list(each.hypotheses[0].tokens) for each in found]
        if any(len(row) != length for row in tokens):
            raise RuntimeError("a row ended early: systems would do different work")
        return tokens

    files = translator.engine.files
    return decode, lambda pictures: [files.prepare({"image": it}) for it in pictures]


def theirs(model: Any, folder: Path) -> tuple[Decode, Read]:
    """``generate`` of transformers or of Optimum, and the preprocessing alone."""
    import torch
    import transformers

    library: Any = transformers
    processor = library.AutoImageProcessor.from_pretrained(folder / "model", use_fast=False)

    def read(pictures: list[Any]) -> Any:
        from PIL import Image

        images = [Image.fromarray(picture) for picture in pictures]
        return processor(images, return_tensors="pt").to(getattr(model, "dtype", torch.float32))

    def decode(pictures: list[Any], beams: int, length: int = LENGTH) -> list[list[int]]:
        inputs = read(pictures)
        settings = {"max_new_tokens": length, "num_beams": beams}
        with torch.inference_mode():
            made: list[list[int]] = model.generate(**inputs, **settings)[:, 1:].tolist()
        return made

    return decode, read


def open_system(name: str, folder: Path, threads: int) -> tuple[Decode, Read]:
    """One system, in this process."""
    if name.startswith("tfexport"):
        bundle = folder / ("int8.bundle" if "int8" in name else "model.bundle")
        return ours(bundle, threads, "onnxruntime" if "onnxruntime" in name else "auto")
    import torch

    torch.set_num_threads(threads)
    if name.startswith("transformers"):
        import transformers

        library: Any = transformers
        model = library.VisionEncoderDecoderModel.from_pretrained(folder / "model").eval()
        if "bf16" in name:
            model = model.to(torch.bfloat16)
        if "int8" in name:
            quantize: Any = torch.ao.quantization.quantize_dynamic
            model = quantize(model, {torch.nn.Linear}, dtype=torch.qint8)
        return theirs(model, folder)
    import onnxruntime
    from optimum.onnxruntime import ORTModelForVision2Seq

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = ORTModelForVision2Seq.from_pretrained(folder / "optimum", session_options=options)
    return theirs(model, folder)


def serve(name: str, folder: Path, threads: int) -> None:
    """Decode as a line of stdin says, pictures and beams; answer with seconds and tokens."""
    decode, read = open_system(name, folder, 1 if "1 thread" in name else threads)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        draw = np.random.default_rng(0)
        batch, beams = map(int, line.split())
        pictures = [*draw.integers(0, 256, (batch, 60, 400, 3), dtype=np.uint8)]
        begun = time.perf_counter()
        tokens = decode(pictures, beams)
        times = [begun, time.perf_counter()]
        if beams == 1:
            decode(pictures, 1, 1)
        times.append(time.perf_counter())
        read(pictures)
        times.append(time.perf_counter())
        seconds = [end - begin for begin, end in pairwise(times)]
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


class System:
    """A system in its own process."""

    def __init__(self, name: str, size: str, threads: int) -> None:
        python = OPTIMUM_PYTHON if name == OPTIMUM else Path(sys.executable)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.pictures", "--serve", name, "--threads", str(threads),
             "--size", size],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until it is loaded."""
        self._read()

    def run(self, batch: int, beams: int) -> dict[str, Any]:
        """Seconds for all, for one token and for preprocessing alone, and the tokens."""
        assert self._process.stdin is not None
        time.sleep(PAUSE)
        print(batch, beams, file=self._process.stdin, flush=True)
        found: dict[str, Any] = self._read()
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(("{", '"')):
                return json.loads(line)
        raise RuntimeError("a system ended; start it alone to see why")


@click.command()
@click.option("--size", type=click.Choice(SIZES), default="small", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=(1, 8), show_default=True)
@click.option("--beams", type=int, multiple=True, default=(1, 4), show_default=True)
@click.option("--system", "chosen", multiple=True, help="Only these, such as tfexport.")
@click.option("--prepare-only", is_flag=True, help="Write what the systems load, and end.")
@click.option("--serve", "served", hidden=True)
def main(
    size: str, threads: int, rounds: int, batches: tuple[int, ...], beams: tuple[int, ...],
    chosen: tuple[str, ...], prepare_only: bool, served: str | None,
) -> None:  # fmt: skip
    """Measure pictures to text."""
    folder = folder_of(size)
    if served == EXPORT:
        save_optimum(folder)
        return
    if served is not None:
        serve(served, folder, threads)
        return
    prepare(size)
    names = [*OURS, *PEERS, *([OPTIMUM] if (folder / "optimum").exists() else [])]
    if unknown := [name for name in chosen if name not in names]:
        raise click.UsageError(f"unknown systems: {unknown}; there are {names}")
    if prepare_only:
        return
    systems = {name: System(name, size, threads) for name in chosen or names}
    for system in systems.values():
        system.wait()
    click.echo("| batch | beams | system | s a batch | 1 token | preprocessing | "
               "÷ tfexport's best, same precision | tokens of float32 |\n|"
               + "---|" * 8)  # fmt: skip
    for batch in batches:
        for count in beams:
            measure(systems, batch, count, rounds)
    for system in systems.values():
        system.close()


def measure(systems: dict[str, System], batch: int, beams: int, rounds: int) -> None:
    """Print the lines of one cell."""
    times: dict[str, list[list[float]]] = {name: [] for name in systems}
    tokens = {}
    for number in range(rounds + 1):
        for name, system in systems.items():
            found = system.run(batch, beams)
            tokens[name] = found["tokens"]
            if number:  # the first one warms up
                times[name].append(found["seconds"])
    parts = {
        name: [median(each) for each in zip(*taken, strict=True)] for name, taken in times.items()
    }
    wanted = tokens.get("transformers", tokens.get("tfexport"))
    for name, (whole, encoder, read) in parts.items():
        own = [it for it in parts if it in OURS and is_small(it) == is_small(name)]
        best = min((parts[it][0] for it in own), default=float("nan"))
        single = f"{encoder:.3f}" if beams == 1 else ""
        same = "the same" if tokens[name] == wanted else "others"
        click.echo(f"| {batch} | {beams} | {name} | {whole:.3f} | {single} | {read:.3f} | "
                   f"{whole / best:.2f} | {same} |")  # fmt: skip


def is_small(name: str) -> bool:
    """Whether a system computes in 8 or 16 bits."""
    return "int8" in name or "bf16" in name


if __name__ == "__main__":
    main()
