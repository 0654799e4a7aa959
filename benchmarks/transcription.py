"""Speed and memory of Whisper's transcription, beside faster-whisper.

    make .venv-faster-whisper/ready
    python -m benchmarks.transcription --model tiny.en

Each system is a process of its own with two threads, and transcribes the same sounds: greedy, in
English, with timestamps, without fallback and voice detection, each window without the text before
it. The systems take turns, sound by sound, since the machine's speed may change. The weights are
those of ``benchmarks.real``. Bundles that ``tfexport optimize`` has packed are mapped, as
faster-whisper maps its files; opening is not part of the time.

faster-whisper fills the features of a short sound up with 0, and ends with the sound; transformers
and tfexport give the model the silence of a whole window, as it was trained, and go on through it.
In the row "faster-whisper" it is given sounds with that silence, so that the models see the same;
in the row "as it comes" it is given the sounds alone.
"""

import json
import os
import subprocess
import sys
import time
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.real.sounds import Sound, make_sounds_of
from benchmarks.real.speech import RATE
from benchmarks.word_errors import word_errors

REPOSITORY = Path(__file__).parents[1]
PEER = REPOSITORY / ".venv-faster-whisper" / "bin" / "python"
SECONDS = (2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0, 15.0, 20.0, 45.0)
WEIGHTS = ("float32", "int8")
PAUSE = 0.3  # seconds, in which the threads of the system before stop spinning


def write_sounds(folder: Path) -> tuple[list[Path], list[Sound]]:
    """Write the sounds as files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seconds:g}.wav" for seconds in SECONDS]
    sounds = [*make_sounds_of(SECONDS)]
    for path, sound in zip(paths, sounds, strict=True):
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, len(sound.samples), "NONE", ""))
            samples = (sound.samples.clip(-1, 1) * 32767).astype("<i2")
            file.writeframes(samples.tobytes())
    return paths, sounds


def prepare(model: str, weights: str) -> tuple[Path, Path]:
    """The bundle, and the folder that faster-whisper reads."""
    from benchmarks.real.packages import FOLDER
    from benchmarks.real.whisper_folders import bundled, folder
    from benchmarks.real.whisper_sounds import export
    from tfexport.runtime.model.native_engine import pack_weights

    exact = export(folder(model))
    made = exact if weights == "float32" else FOLDER / f"whisper-{model}-{weights}.bundle"
    if not made.exists():
        command: list[str | Path] = [sys.executable, "-m", "tfexport", "quantize", exact]
        subprocess.run([*command, "-o", made], check=True, stdout=subprocess.DEVNULL)
    pack_weights(made)
    return made, bundled(model)


class System:
    """A system in a process of its own, which transcribes a sound when it is told to."""

    def __init__(self, python: Path | str, script: str, setup: dict[str, Any]) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [python, "-m", script, json.dumps(setup)], cwd=REPOSITORY, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(setup["threads"])},
        )  # fmt: skip

    def transcribe(self, number: int) -> dict[str, Any]:
        """Transcribe the sound of this number: seconds and text."""
        time.sleep(PAUSE)
        return self._ask(str(number))

    def end(self) -> dict[str, Any]:
        """End the process: its peak memory, windows, and seconds of parts."""
        found = self._ask("end")
        self._process.communicate()
        return found

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        while answer := self._process.stdout.readline():
            if answer.startswith("{"):
                found: dict[str, Any] = json.loads(answer)
                return found
        raise click.ClickException(f"{self._script} ended")


def measure(systems: Sequence[System], sounds: int) -> list[dict[str, Any]]:
    """Let systems transcribe the sounds in turn; seconds, texts, memory and parts of each."""
    for system in systems:  # to warm up
        system.transcribe(0)
    answers: list[list[dict[str, Any]]] = [[] for _ in systems]
    for number in range(sounds):
        for place in range(len(systems)):
            turn = (number + place) % len(systems)
            answers[turn].append(systems[turn].transcribe(number))
    return [
        system.end()
        | {"seconds": sum(it["seconds"] for it in own), "texts": [it["text"] for it in own]}
        for system, own in zip(systems, answers, strict=True)
    ]


@click.command()
@click.option("--model", "models", multiple=True, default=("tiny.en", "base"), show_default=True)
@click.option("--weights", "kinds", multiple=True, default=WEIGHTS, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--beam-size", default=1, show_default=True)
@click.option("--prepare-only", is_flag=True, help="Write sounds and bundles, and measure nothing.")
@click.option("--system", "chosen", multiple=True, help="Only these, such as faster-whisper.")
@click.option("--texts", is_flag=True, help="Print texts, and seconds of the encoder and others.")
def main(
    models: tuple[str, ...], kinds: tuple[str, ...], threads: int, beam_size: int,
    prepare_only: bool, chosen: tuple[str, ...], texts: bool,
) -> None:  # fmt: skip
    """Print the table."""
    paths, sounds = write_sounds(REPOSITORY / "build" / "real" / "sounds")
    click.echo(
        "| model | weights | system | word error | windows | real-time factor | speed | peak MB |"
    )
    click.echo(f"|{'---|' * 8}")
    ours, theirs = "benchmarks.transcription_ours", "benchmarks.transcription_peer"
    for model in models:
        for weights in kinds:
            bundle, peer = prepare(model, weights)
            if prepare_only:
                continue
            setup = {
                "sounds": [str(path) for path in paths], "threads": threads, "weights": weights,
                "beam_size": beam_size, "language": "en", "folder": str(peer),
                "bundle": str(bundle),
            }  # fmt: skip
            systems: list[tuple[str, Path | str, str, dict[str, Any]]] = [
                ("tfexport, native", sys.executable, ours, {"engine": "native"}),
                ("tfexport, onnxruntime", sys.executable, ours, {"engine": "onnxruntime"}),
            ]
            if PEER.exists():
                systems[:0] = [
                    ("faster-whisper", PEER, theirs, {"silence": True}),
                    ("faster-whisper, as it comes", PEER, theirs, {"silence": False}),
                ]
            systems = [each for each in systems if not chosen or each[0] in chosen]
            opened = [System(python, script, setup | own) for _, python, script, own in systems]
            every = measure(opened, len(paths))
            for (name, *_), found in zip(systems, every, strict=True):
                row = (model, weights, name, *_figures(found, every[0], sounds))
                click.echo(f"| {' | '.join(row)} |")
                if texts:
                    click.echo(f"{name}: {found['parts']} {found['texts']}", err=True)


def _figures(
    found: dict[str, Any], base: dict[str, Any], sounds: list[Sound]
) -> tuple[str, str, str, str, str]:
    """The cells of a system beside the first one."""
    errors = [
        word_errors(text, sound.whole, sound.cut)
        for text, sound in zip(found["texts"], sounds, strict=True)
    ]
    share = sum(wrong for wrong, _ in errors) / sum(said for _, said in errors)
    return (
        f"{share:.1%}", str(found["windows"]), f"{found['seconds'] / sum(SECONDS):.3f}",
        f"{base['seconds'] / found['seconds']:.2f}", f"{found['peak']:.0f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
