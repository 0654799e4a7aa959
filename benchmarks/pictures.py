"""TrOCR's smaller shape with random weights: tfexport, transformers and Optimum.

python -m benchmarks.pictures [--folder build/bench/trocr] [--threads 2]

A picture of 384 x 384 pixels becomes 32 tokens, as the end token is suppressed. Every system has
its own process, and they take turns; each number is the median of the rounds. The encoder with one
token is what a faster decoder leaves. Systems are compared with those of their own precision; in
int8 and bf16 tokens of random weights say nothing about quality. Optimum runs in .venv-optimum, if
it is there.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.configurations import OPTIMUM_PYTHON, REPOSITORY

LENGTH, SIDE, EOS = 32, 384, 2
Decode = Callable[..., list[list[int]]]  # of pictures, beams and the number of tokens


def make_model(folder: Path) -> None:
    """Write a folder with the sizes of microsoft/trocr-small-printed."""
    import torch
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    encoder = library.DeiTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        image_size=SIDE, patch_size=16,
    )  # fmt: skip
    decoder = library.TrOCRConfig(
        vocab_size=64044, d_model=256, decoder_layers=6, decoder_attention_heads=8,
        decoder_ffn_dim=1024, max_position_embeddings=512, cross_attention_hidden_size=384,
        scale_embedding=True, is_decoder=True, add_cross_attention=True,
    )  # fmt: skip
    config = library.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    ids = {"decoder_start_token_id": EOS, "eos_token_id": EOS, "pad_token_id": 1}
    for key, value in ids.items():
        setattr(config, key, value)
    model = library.VisionEncoderDecoderModel(config)
    with torch.no_grad():  # else every token is the same
        model.decoder.model.decoder.embed_tokens.weight.mul_(30)
    model.generation_config.update(**ids, max_length=LENGTH + 1, suppress_tokens=[EOS])
    model.save_pretrained(folder)
    values = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE},
        "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def prepare(folder: Path) -> None:
    """Write what the systems load, unless it is there."""
    model, bundle = folder / "model", folder / "model.bundle"
    if not model.exists():
        make_model(model)
    if not bundle.exists():
        command = [sys.executable, "-m", "tfexport", "onnx", "--checkpoint", str(model)]
        command += ["-o", str(bundle)]
        subprocess.run(command, check=True)
    if not (folder / "int8.bundle").exists():
        command = [sys.executable, "-m", "tfexport", "quantize", str(bundle)]
        subprocess.run([*command, "-o", str(folder / "int8.bundle")], check=True)
    if OPTIMUM_PYTHON.exists() and not (folder / "optimum").exists():
        command = [str(OPTIMUM_PYTHON), "-m", "benchmarks.pictures", "--save-optimum", str(folder)]
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


def ours(bundle: Path, threads: int, engine: Any = "auto") -> tuple[Decode, Decode]:
    """The bundle: tokens of pictures, and the encoder alone."""
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

    return decode, lambda pictures: decode(pictures, 1, 1)


def theirs(model: Any, folder: Path) -> tuple[Decode, Decode]:
    """``generate`` of transformers or of Optimum, and the encoder alone."""
    import torch
    import transformers

    library: Any = transformers
    processor = library.AutoImageProcessor.from_pretrained(folder / "model", use_fast=False)

    def decode(pictures: list[Any], beams: int, length: int = LENGTH) -> list[list[int]]:
        from PIL import Image

        images = [Image.fromarray(picture) for picture in pictures]
        inputs = processor(images, return_tensors="pt").to(getattr(model, "dtype", torch.float32))
        settings = {"max_new_tokens": length, "num_beams": beams}
        with torch.inference_mode():
            made: list[list[int]] = model.generate(**inputs, **settings)[:, 1:].tolist()
        return made

    return decode, lambda pictures: decode(pictures, 1, 1)


def open_system(name: str, folder: Path, threads: int) -> tuple[Decode, Decode]:
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
    whole, encoder = open_system(name, folder, threads)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        draw = np.random.default_rng(0)
        batch, beams = map(int, line.split())
        pictures = [*draw.integers(0, 256, (batch, 60, 400, 3), dtype=np.uint8)]
        begun = time.perf_counter()
        tokens = whole(pictures, beams)
        middle = time.perf_counter()
        encoder(pictures)
        seconds = [middle - begun, time.perf_counter() - middle]
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


class System:
    """A system in its own process."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        python = OPTIMUM_PYTHON if name == "Optimum" else Path(sys.executable)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.pictures", "--serve", name, "--threads", str(threads),
             "--folder", folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        self._read()

    def run(self, batch: int, beams: int) -> dict[str, Any]:
        """Seconds for all and for the encoder alone, and the tokens."""
        assert self._process.stdin is not None
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
@click.option("--folder", type=Path, default=Path("build/bench/trocr"), show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=(1, 8), show_default=True)
@click.option("--beams", default=1, show_default=True)
@click.option("--serve", "served", hidden=True)
@click.option("--save-optimum", "saved", type=Path, hidden=True)
def main(
    folder: Path, threads: int, rounds: int, batches: tuple[int, ...], beams: int,
    served: str | None, saved: Path | None,
) -> None:  # fmt: skip
    """Measure pictures to text."""
    folder = folder.absolute()
    if saved is not None:
        save_optimum(saved)
        return
    if served is not None:
        serve(served, folder, threads)
        return
    prepare(folder)
    peers = ("transformers", "transformers, int8", "transformers, bf16")
    own = ("tfexport", "tfexport, onnxruntime", "tfexport, int8", "tfexport, int8, onnxruntime")
    names = dict.fromkeys((*own, *peers), threads)
    if (folder / "optimum").exists():
        names["Optimum"] = threads
    systems = {name: System(name, folder, count) for name, count in names.items()}
    if threads > 1:  # its best of both counts
        systems["transformers, 1 thread"] = System("transformers", folder, 1)
    click.echo("| batch | system | s a batch | encoder and 1 token | ÷ tfexport, same precision "
               "| the same tokens |\n|---|---|---|---|---|---|")  # fmt: skip
    for batch in batches:
        times: dict[str, list[list[float]]] = {name: [] for name in systems}
        tokens = {}
        for number in range(rounds + 1):
            for name, system in systems.items():
                found = system.run(batch, beams)
                tokens[name] = found["tokens"]
                if number:  # the first one warms up
                    times[name].append(found["seconds"])
        whole = {name: median(each[0] for each in taken) for name, taken in times.items()}
        for name, taken in times.items():
            encoder = median(each[1] for each in taken)
            same = "yes" if tokens[name] == tokens["transformers"] else "no"
            smaller = "int8" in name or "bf16" in name
            ratio = whole[name] / whole["tfexport, int8" if smaller else "tfexport"]
            click.echo(f"| {batch} | {name} | {whole[name]:.3f} | {encoder:.3f} | {ratio:.2f} | "
                       f"{same} |")  # fmt: skip
    for system in systems.values():
        system.close()


if __name__ == "__main__":
    main()
