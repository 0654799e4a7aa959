"""Whisper with its trained weights on speech: segments beside transformers' ``generate``.

    python -m benchmarks.real.whisper_sounds
    python -m benchmarks.real.whisper_sounds --model tiny.en --sounds 3

Every sound is transcribed by both engines of a bundle and by transformers at the same settings:
greedy with the times of words, and the shorter half by beams as well. What differs is printed and
makes the command fail.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.real.packages import NotFetchedError
from benchmarks.real.sounds import Sound, make_sounds
from benchmarks.real.speech import RATE
from benchmarks.real.whisper_folders import MODELS, folder
from tfexport.runtime import Translator
from tfexport.runtime.model.engine_name import EngineName

ENGINES: tuple[EngineName, ...] = ("native", "onnxruntime")
BEAM = 3
_BEAM_SECONDS = 20.0  # of the longest sound that is decoded by beams
Parts = list[tuple[float, float, list[int]]]
Times = list[tuple[str, float, float]]


@dataclass
class Counts:
    """Sounds that are equal, of those compared."""

    compared: int = 0
    segments: int = 0
    texts: int = 0
    words: int = 0
    different: list[str] = field(default_factory=list)


class Theirs:
    """The model of transformers, with its processor."""

    def __init__(self, path: Path) -> None:
        library: Any = import_module("transformers")
        library.utils.logging.set_verbosity_error()
        kind = library.WhisperForConditionalGeneration
        self._model = kind.from_pretrained(path, attn_implementation="eager").eval()
        self._processor = library.WhisperProcessor.from_pretrained(path)
        self._group = import_module("transformers.models.whisper.tokenization_whisper")

    def transcribe(self, sound: Sound, beams: int, by_word: bool) -> tuple[Parts, str, Times]:
        """Segments, their text, and words with their times."""
        long = len(sound.samples) > 30 * RATE
        given = self._processor(
            sound.samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True,
            truncation=False, padding="longest" if long else "max_length",
        )  # fmt: skip
        several = self._model.generation_config.is_multilingual
        with torch.no_grad():
            made = self._model.generate(
                given.input_features, attention_mask=given.attention_mask, return_timestamps=True,
                return_segments=True, num_beams=beams, return_token_timestamps=by_word,
                **({"task": "transcribe"} if several else {}),
            )  # fmt: skip
        segments = made["segments"][0]
        tokens = [token for segment in segments for token in segment["tokens"].tolist()]
        text = self._processor.tokenizer.decode(tokens, skip_special_tokens=True)
        parts = [(float(s["start"]), float(s["end"]), s["tokens"].tolist()) for s in segments]
        return parts, text, [*self._words(segments)] if by_word else []

    def _words(self, segments: list[Any]) -> Iterator[tuple[str, float, float]]:
        tokenizer = self._processor.tokenizer
        first = self._model.generation_config.no_timestamps_token_id
        for segment in segments:
            tokens, times = segment["tokens"].tolist(), segment["token_timestamps"].tolist()
            shown = [(i, token) for i, token in enumerate(tokens) if token <= first]
            spans = [(round(times[i - 1], 2), round(times[i], 2)) for i, _ in shown]
            for each in self._group._collate_word_timestamps(
                tokenizer, [token for _, token in shown], spans, "english", False
            ):
                yield each["text"], *each["timestamp"]


def export(path: Path) -> Path:
    """The bundle of a folder, exported if it is not here yet."""
    bundle = path.with_name(f"{path.name}.bundle")
    if not bundle.exists():
        command: list[str | Path] = [sys.executable, "-m", "tfexport", "onnx"]
        command += ["--checkpoint", path, "--verify", "quick", "-o", bundle]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return bundle


def compare(model: str, sounds: Iterable[Sound]) -> dict[EngineName, Counts]:
    """Transcribe sounds with a model; the counts of every engine."""
    path = folder(model)
    bundle, theirs = export(path), Theirs(path)
    found = {engine: Counts() for engine in ENGINES}
    opened = {engine: Translator(bundle, engine=engine, threads=1) for engine in ENGINES}
    for sound in sounds:
        for beams in (1, BEAM) if sound.seconds <= _BEAM_SECONDS else (1,):
            segments, text, times = theirs.transcribe(sound, beams, beams == 1)
            for engine, translator in opened.items():
                by_word = beams == 1 and translator.engine.model.has_alignment
                (made,) = translator.transcribe(
                    [(sound.samples, RATE)], beam_size=beams, word_times=by_word
                )
                counts = found[engine]
                counts.compared += 1
                ours = [(s.start, s.end, [*s.tokens]) for s in made.segments]
                counts.segments += ours == segments
                counts.texts += made.text == text
                timed = [(word.text, word.start, word.end) for word in made.words]
                counts.words += timed == times if by_word else 0
                if ours != segments or made.text != text or (by_word and timed != times):
                    counts.different.append(
                        f"{sound.how}, beams of {beams}: {made.text!r}, {text!r}"
                    )
    return found


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice([*MODELS]), default=[*MODELS])
@click.option("--sounds", default=30, show_default=True, help="How many, the shortest first.")
@click.option("--skip", default=0, show_default=True, help="How many of these to leave out.")
def main(models: tuple[str, ...], sounds: int, skip: int) -> None:
    """Print how many sounds are equal; fail if any is not."""
    torch.set_num_threads(1)
    failed = 0
    click.echo("| model | engine | runs | segments | texts | words |")
    click.echo(f"|{'---|' * 6}")
    for model in models:
        try:
            found = compare(model, islice(make_sounds(sounds), skip, None))
        except NotFetchedError as error:
            click.echo(f"{model}: not to be had: {error}", err=True)
            continue
        for engine, counts in found.items():
            figures = (counts.compared, counts.segments, counts.texts, counts.words)
            click.echo(f"| {model} | {engine} | {' | '.join(map(str, figures))} |")
            for each in counts.different:
                click.echo(f"{model}, {engine}: {each}", err=True)
            failed += len(counts.different)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
