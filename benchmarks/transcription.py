"""Speed and memory of Whisper's transcription, beside faster-whisper.

    make .venv-faster-whisper/ready
    python -m benchmarks.transcription --model tiny.en

Each system transcribes the same sounds, one after the other, in a process of its own with two
threads: greedy, in English, with timestamps, without fallback. The weights are those of
``benchmarks.real``. Bundles that ``tfexport optimize`` has packed are mapped, as faster-whisper
maps its files; opening is not part of the time.
"""

import json
import os
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import click

REPOSITORY = Path(__file__).parents[1]
PEER = REPOSITORY / ".venv-faster-whisper" / "bin" / "python"
SECONDS = (2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0, 15.0, 20.0, 45.0)
WEIGHTS = ("float32", "int8")


def write_sounds(folder: Path) -> list[Path]:
    """Write the sounds as files, if they are not here yet."""
    from benchmarks.real.sounds import make_sounds_of
    from benchmarks.real.speech import RATE

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seconds:g}.wav" for seconds in SECONDS]
    if not all(path.exists() for path in paths):
        for path, sound in zip(paths, make_sounds_of(SECONDS), strict=True):
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, RATE, len(sound.samples), "NONE", ""))
                samples = (sound.samples.clip(-1, 1) * 32767).astype("<i2")
                file.writeframes(samples.tobytes())
    return paths


def prepare(model: str, weights: str) -> tuple[Path, Path]:
    """The bundle, and the folder that faster-whisper reads."""
    from benchmarks.real.packages import FOLDER
    from benchmarks.real.whisper_folders import bundled, folder
    from benchmarks.real.whisper_sounds import export
    from tfexport.runtime.model.native_engine import pack_weights, packed_file

    exact = export(folder(model))
    made = exact if weights == "float32" else FOLDER / f"whisper-{model}-{weights}.bundle"
    if not made.exists():
        command: list[str | Path] = [sys.executable, "-m", "tfexport", "quantize", exact]
        subprocess.run([*command, "-o", made], check=True, stdout=subprocess.DEVNULL)
    from tfexport.bundle import read_manifest

    if not packed_file(made, read_manifest(made)).path.exists():
        pack_weights(made)
    return made, bundled(model)


def measure(python: Path | str, script: str, setup: dict[str, Any]) -> dict[str, Any]:
    """Run a system in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(setup["threads"])}
    done = subprocess.run(
        [python, "-m", script, json.dumps(setup)],
        capture_output=True, text=True, env=environment, cwd=REPOSITORY,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(f"{script}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.option("--model", "models", multiple=True, default=("tiny.en", "base"), show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--beam-size", default=1, show_default=True)
@click.option("--prepare-only", is_flag=True, help="Write sounds and bundles, and measure nothing.")
def main(models: tuple[str, ...], threads: int, beam_size: int, prepare_only: bool) -> None:
    """Print the table."""
    sounds = write_sounds(REPOSITORY / "build" / "real" / "sounds")
    click.echo("| model | weights | system | real-time factor | of faster-whisper's | peak MB |")
    click.echo(f"|{'---|' * 6}")
    for model in models:
        for weights in WEIGHTS:
            bundle, peer = prepare(model, weights)
            if prepare_only:
                continue
            setup = {
                "sounds": [str(path) for path in sounds], "threads": threads, "weights": weights,
                "beam_size": beam_size, "language": "en",
            }  # fmt: skip
            systems = [
                ("tfexport, native", sys.executable, "benchmarks.transcription_ours",
                 {"bundle": str(bundle), "engine": "native"}),
                ("tfexport, onnxruntime", sys.executable, "benchmarks.transcription_ours",
                 {"bundle": str(bundle), "engine": "onnxruntime"}),
            ]  # fmt: skip
            base = None
            if PEER.exists():
                script = "benchmarks.transcription_peer"
                base = measure(PEER, script, setup | {"folder": str(peer)})
                _print(model, weights, "faster-whisper", base, None)
            for name, python, script, own in systems:
                _print(model, weights, name, measure(python, script, setup | own), base)


def _print(
    model: str, weights: str, name: str, found: dict[str, Any], base: dict[str, Any] | None
) -> None:
    factor = found["seconds"] / sum(SECONDS)
    faster = "" if base is None else f"{base['seconds'] / found['seconds']:.2f} times as fast"
    click.echo(f"| {model} | {weights} | {name} | {factor:.3f} | {faster} | {found['peak']:.0f} |")
    click.echo(f"{name}: {found['parts']} {' '.join(found['texts'])[:300]}", err=True)


if __name__ == "__main__":
    main()
