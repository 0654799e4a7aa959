"""``tfexport transcribe``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import new_file
from tfexport.cli.console import SoundBar, sound_bar, spell
from tfexport.cli.decoding_options import engine_option
from tfexport.errors import ConfigError
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.runtime.speech.transcriber import Transcriber
    from tfexport.runtime.speech.transcription import Transcription

_FORMATS = ("text", "srt", "vtt", "json")
_SUFFIX = {"text": "txt"}


@click.command(short_help="Text and times of sounds, with a Whisper bundle. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("sounds", type=click.Path(), nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(), default="-", help="File to write; for several "
              "sounds in srt or vtt a folder. Default: stdout.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace outputs that exist.")
@click.option("--format", "kind", type=click.Choice(_FORMATS), default="text", show_default=True,
              help="A line of text, subtitles, or JSON with segments and tokens.")  # fmt: skip
@click.option("--language", help="Of the sounds, as a code or a name.  [default: detected]")
@click.option("--task", type=click.Choice(("transcribe", "translate")),
              help="Translate is into English.  [default: the model's, or transcribe]")  # fmt: skip
@click.option(
    "--timestamps/--no-timestamps",
    default=None,
    help="Decode timestamps, which longer sounds than a window need.  [default: with]",
)
@click.option("--prompt", metavar="TEXT", help="Text before each window, for names and style.")
@click.option("--condition-on-previous/--no-condition-on-previous", default=None,
              help="Decode each window after the text before it.  [default: the model's, else "
              "not]")  # fmt: skip
@click.option("--fallback", is_flag=True,
              help="Decode doubtful windows again at temperatures up to 1, with the thresholds "
              "1.35 (compression), -1 (log-probability) and 0.6 (no speech).")  # fmt: skip
@click.option("--word-times", is_flag=True,
              help="Find the times of words; they are in the segments of JSON.")  # fmt: skip
@click.option("--beam-size", type=click.IntRange(1, 1024),
              help="Hypotheses that are followed.  [default: the model's, else 1]")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.0, show_default=True,
              help="Of sampling; 0 takes the most probable tokens.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True,
              help="Of sampling.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1, 1024), default=8, show_default=True,
              help="Sounds of which windows are decoded together.")  # fmt: skip
@click.option("--max-seconds", type=click.FloatRange(0, min_open=True), default=14_400.0,
              show_default=True, help="Longest sound that is read.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0,
              help="Threads inside an operator. Default: all cores.")  # fmt: skip
@engine_option
@click.pass_context
def transcribe(ctx: click.Context, /, bundle: str, sounds: tuple[str, ...], **values: Any) -> None:
    """Transcribe SOUNDS of any length: files that libsndfile reads (WAV, FLAC, Ogg, MP3).

    A sound that cannot be transcribed is reported, has no output, and the exit status is 1.

    \b
    tfexport transcribe tiny.bundle talk.wav
    tfexport transcribe tiny.bundle talk.wav --format srt -o talk.srt
    """
    from tfexport.runtime.engine import Engine
    from tfexport.runtime.parallel.cpu import ThreadLayout
    from tfexport.runtime.speech.transcriber import Transcriber
    from tfexport.runtime.speech.transcription import FALLBACK, TranscriptionOptions

    output, kind, force = values.pop("output"), values.pop("kind"), values.pop("force")
    most, threads, engine = (values.pop(name) for name in ("max_seconds", "threads", "engine"))
    if values["word_times"] and kind != "json":
        raise ConfigError(f"--word-times: --format {kind} shows no words; choose --format json")
    if values.pop("fallback"):
        if values["temperature"]:
            raise ConfigError("--fallback begins with temperature 0; give one of both")
        values |= FALLBACK
    options = TranscriptionOptions(**values)
    apart = kind in ("srt", "vtt") and len(sounds) > 1
    if apart and output == "-":
        raise ConfigError(f"--format {kind}: several sounds need --output FOLDER")
    if apart and output.endswith(f".{kind}") and not Path(output).is_dir():
        raise ConfigError(
            f"--output {output}: several sounds need a folder; this is named as a file"
        )
    opened = Engine(bundle, ThreadLayout(threads=threads), engine=engine)
    transcriber = Transcriber(opened, options, most)
    with sound_bar(sounds) as bar:
        writer = _Writer(sounds, kind, force, bar)
        if apart:
            writer.write_apart(transcriber, Path(output))
        elif output == "-":
            for text in writer.texts(transcriber):
                with bar.hidden():
                    click.echo(text, nl=False)
                    sys.stdout.flush()
        else:
            with new_file(Path(output), force) as path, path.open("w", encoding="utf-8") as file:
                file.writelines(writer.texts(transcriber))
    ctx.exit(1 if writer.failed else 0)


class _Writer:
    """Writes what was said in sounds, and reports those that failed."""

    def __init__(self, sounds: Sequence[str], kind: str, force: bool, bar: SoundBar) -> None:
        self._sounds, self._kind, self._force, self._bar = sounds, kind, force, bar
        self.failed = 0

    def texts(self, transcriber: "Transcriber") -> "Any":
        """The outputs of all sounds, one after the other."""
        for _, text in self._outputs(transcriber):
            yield text

    def write_apart(self, transcriber: "Transcriber", folder: Path) -> None:
        """Write a file of each sound into a folder."""
        names = [
            f"{Path(sound).stem}.{_SUFFIX.get(self._kind, self._kind)}" for sound in self._sounds
        ]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"--output: several sounds would be written to {twice[0]}")
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in self._outputs(transcriber):
            with new_file(folder / names[number], self._force) as path:
                path.write_text(text, encoding="utf-8")

    def _outputs(self, transcriber: "Transcriber") -> "Any":
        from tfexport.runtime.speech.transcription import Transcription

        for number, found in enumerate(transcriber.stream(self._sounds, self._bar.show)):
            if isinstance(found, Transcription):
                yield number, self._shown(self._sounds[number], found)
            else:
                self.failed += 1
                text, name = found.message.spelled(spell), self._sounds[number]
                with self._bar.hidden():
                    click.echo(text if name in text else f"{name}: {text}", err=True)

    def _shown(self, name: str, found: "Transcription") -> str:
        import json

        from tfexport.runtime.speech.subtitles import FORMATS

        if self._kind == "json":
            return json.dumps({"sound": name, **found.to_dict()}, ensure_ascii=False) + "\n"
        return FORMATS[self._kind](found)
