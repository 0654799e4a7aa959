"""``tfexport corpus``."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.console import LineTimer, bar_console, cut_lines, spell, unknown_tokens
from tfexport.cli.decoding_options import (
    DecodingCommand,
    as_call,
    decoding_options,
    given,
    language_options,
)
from tfexport.errors import ConfigError, join_some
from tfexport.runtime.options import GIVING_MORE, SPECS
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.corpus import Advance, CorpusReport
    from tfexport.corpus.run import CorpusEngine

# Options whose results have no column in a corpus.
_OPTIONS = {name for name, spec in SPECS.items() if spec.help is not None} - {
    *GIVING_MORE, "return_end_token", "min_alternative_probability",
}  # fmt: skip


@dataclass(frozen=True)
class _Call:
    """Arguments and options of the command; ``decoding`` has those of ``DecodingOptions``."""

    bundle: str
    input: str
    output: str
    column: str | None
    output_column: str | None
    include: tuple[str, ...]
    file_format: str | None
    engine: "CorpusEngine"
    address: str | None
    workers: str | None
    threads_per_worker: int
    batch_rows: int | None
    source_language: str | None
    target_language: str | None
    target_prefix: str | None
    vocabulary_map: str | None
    max_seconds: float | None
    task: str | None
    timestamps: bool | None
    prompt: str | None
    fallback: bool
    srt: str | None
    vtt: str | None
    force: bool
    as_json: bool
    decoding: dict[str, Any]


@click.command(
    cls=DecodingCommand,
    short_help="Translate folders of files, here or over a cluster. Needs no torch.",
)
@click.argument("bundle", type=click.Path())
@click.argument("input")
@click.argument("output")
@click.option("--column", metavar="NAME", help="Column of the texts, or of the names of files, in "
              "all formats except text.  [default: text, audio or image]")  # fmt: skip
@click.option("--output-column", metavar="NAME", help="Column for the translations; scores and "
              "errors are then written to NAME_score and NAME_error.  [default: translation, score "
              "and error]")  # fmt: skip
@click.option("--format", "file_format", metavar="[text|jsonl|parquet|csv|tsv]",
              type=click.Choice(["text", "jsonl", "parquet", "csv", "tsv"]),
              help="Format of all files.  [default: from each file's suffix]")  # fmt: skip
@click.option("--include", multiple=True, metavar="GLOB", help="Read only files of a folder whose "
              "name or relative path matches GLOB, such as 'page*.jsonl'. Repeatable.  "
              "[default: all with the suffix of a format]")  # fmt: skip
@click.option("--engine", type=click.Choice(["auto", "local", "ray"]), default="auto",
              show_default=True, help="What runs the workers: threads of this process, or Ray, "
              "which takes seconds to start and restarts lost workers. 'auto' is 'ray' with "
              "--address, otherwise 'local'.")  # fmt: skip
@click.option("--address", metavar="A", help="Address of a running Ray cluster, or 'auto'.  "
              "[default: this machine only]")  # fmt: skip
@click.option("--workers", metavar="N|MIN:MAX", help="Number of workers; MIN:MAX lets Ray start "
              "more as needed.  [default: as many as the cores allow]")  # fmt: skip
@click.option(
    "--threads-per-worker",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads of each worker, which share one set of weights.",
)
@click.option("--batch-rows", type=click.IntRange(1, 1 << 20),
              help="Rows that a worker sorts by length, decodes and writes together. A worker "
              "that dies loses these rows only; they are decoded again.  [default: 2048, of sounds "
              "and pictures 64]")  # fmt: skip
@click.option("--target-prefix", metavar="TEXT", help="Text that every translation starts with.")
@language_options
@click.option("--vocabulary-map", type=click.Path(), metavar="FILE",
              help="File with the target tokens that each source token allows.")  # fmt: skip
@click.option("--max-seconds", type=click.FloatRange(0, 86_400, min_open=True),
              help="The longest sound that is read.  [default: 60, by a Whisper model 14400]",
              )  # fmt: skip
@click.option("--task", type=click.Choice(("transcribe", "translate")),
              help="Of a Whisper model; translate is into English.  [default: the model's, or "
              "transcribe]")  # fmt: skip
@click.option("--timestamps/--no-timestamps", default=None,
              help="Of a Whisper model: decode timestamps, which longer sounds than a window need. "
              " [default: the model's, else with]")  # fmt: skip
@click.option("--prompt", metavar="TEXT",
              help="Of a Whisper model: text before each window, for names and style.")  # fmt: skip
@click.option("--fallback", is_flag=True, help="Of a Whisper model: decode doubtful windows again, "
              "as 'tfexport transcribe' does.")  # fmt: skip
@click.option("--srt", metavar="FOLDER", help="Of a Whisper model and a folder of sounds: folder "
              "for a file of subtitles, in SRT, of each sound.")  # fmt: skip
@click.option("--vtt", metavar="FOLDER", help="The same in WebVTT.")
@click.option("--force", is_flag=True, help="Replace files of OUTPUT that were changed after a run "
              "wrote them, or that no run wrote; write subtitles into a folder that holds other "
              "files.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@decoding_options(_OPTIONS)
@click.pass_context
def corpus(ctx: click.Context, /, **values: Any) -> None:
    """Translate INPUT into OUTPUT: a file into a file, a folder of files into a folder.

    Files are lines of text, JSON lines, Parquet, CSV or TSV, compressed or not; paths, or URIs such
    as s3://bucket/folder. All formats except text keep their columns, and get the columns
    'translation', 'score' and 'error'. If a row cannot be decoded, the reason is in 'error' (in
    text files, the line is empty), and the exit status is 1.

    With a bundle that reads sound or pictures, rows name files. Of a folder of sounds or pictures
    OUTPUT is one file, of JSON lines, CSV or TSV, with the name and the text of each. Sounds of any
    length are transcribed if the model is a Whisper model.

    A file of OUTPUT is complete or absent. After an interruption, run the same command again. It
    skips what was made from the same input by the same bundle with the same options.

    \b
    tfexport corpus de-en.bundle pages/ translated/
    tfexport corpus de-en.bundle pages/ translated/ --address auto --beam-size 4
    tfexport corpus speech.bundle sounds/ texts.jsonl
    """
    call = as_call(_Call, values)
    from tfexport.corpus import translate_corpus
    from tfexport.corpus.filesystem import public

    last = list["Advance"]()
    # Ray writes its messages to stdout, which is for the report only.
    with (
        _interruptible(last),
        _progress(last) as on_advance,
        contextlib.redirect_stdout(sys.stderr),
    ):
        report = translate_corpus(
            call.bundle, call.input, call.output, call.column,
            output_column=call.output_column, include=call.include,
            file_format=call.file_format, engine=call.engine, address=call.address,
            workers=_bounds(call.workers), threads_per_worker=call.threads_per_worker,
            batch_rows=call.batch_rows,
            source_language=call.source_language, target_language=call.target_language,
            target_prefix=call.target_prefix, vocabulary_map=call.vocabulary_map,
            max_seconds=call.max_seconds, transcription=_transcription(call),
            subtitles={kind: folder for kind in ("srt", "vtt") if (folder := getattr(call, kind))},
            force=call.force, on_advance=on_advance, spell=spell, **given(call.decoding),
        )  # fmt: skip
    if call.as_json:
        click.echo(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    _print(report, public(call.output))
    if not report.complete:
        ctx.exit(1)


def _transcription(call: _Call) -> dict[str, Any]:
    """The options that were given for a Whisper model."""
    from tfexport.runtime.speech.transcription import FALLBACK

    names = ("task", "timestamps", "prompt")
    values = {name: value for name in names if (value := getattr(call, name)) is not None}
    if not call.fallback:
        return values
    if call.decoding.get("temperature"):
        raise ConfigError("--fallback begins with temperature 0; give one of both")
    return {**values, **FALLBACK}


def _bounds(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    numbers = text.split(":")
    if len(numbers) > 2 or not all(word.isascii() and word.isdigit() for word in numbers):
        raise ConfigError(f"--workers: {text!r} is neither N nor MIN:MAX")
    found = [int(word) for word in numbers]
    return (found[0], found[1]) if len(found) == 2 else found[0]


def _print(report: "CorpusReport", output: str) -> None:
    for name, found in sorted(report.row_errors.items()):
        for row, error in found:
            click.echo(f"{name}:{row}: {error}", err=True)
    if more := report.with_errors - len(report.row_errors):
        click.echo(f"{_files(more)} more with errors of rows", err=True)
    for name, reason in sorted(report.failed.items()):
        click.echo(f"{name}: {reason.rstrip('.')}. It was not translated.", err=True)
    if more := report.failures - len(report.failed):
        click.echo(f"{_files(more)} more that were not translated", err=True)
    click.echo(
        f"{output}: {report.finished + report.already:,} of {report.partitions:,} files, "
        f"{report.rows:,} rows, {report.errors:,} of them with an error",
        err=True,
    )
    for text in _counts(report):
        click.echo(text, err=True)


def _counts(report: "CorpusReport") -> Iterator[str]:
    values = report.to_dict()
    if report.already:
        yield f"{_files(report.already)} already complete, from the same input, bundle and options"
    if report.outdated:
        made = "made from other input, bundle or options"
        yield f"{_files(report.outdated)} replaced, {made}"
    if report.cut:
        yield cut_lines(report.cut, "rows", None)
    if report.unknown:
        yield unknown_tokens(report.unknown, report.with_unknown, "rows")
    if report.decoded_rows:
        yield (
            f"{report.decoded_rows:,} rows and {report.tokens:,} tokens in "
            f"{report.seconds:,.1f} s: {values['tokens_per_second']:,.0f} tokens a second, "
            f"{values['tokens_per_second_and_core']:,.0f} a core"
        )
    if report.passed_over:
        shown = join_some(report.passed_over, 3)
        yield f"{_files(len(report.passed_over))} skipped: {shown} (--format, --include)"
    if report.failures:
        yield f"{_files(report.failures)} could not be translated; the reasons are above."
    if report.unfinished:
        yield f"{_files(report.unfinished)} not started or not finished"
    if report.stopped is not None:
        yield f"Stopped: {report.stopped}. Run the same command again to continue."


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


@contextlib.contextmanager
def _interruptible(last: "list[Advance]") -> Iterator[None]:
    """Print how far a run has come if it is interrupted or terminated."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        done = f"{last[0].done:.0%} of the input is done. " if last else ""
        click.echo(f"{done}Run the same command again to continue.", err=True)
        raise


@contextlib.contextmanager
def _progress(last: "list[Advance]") -> Iterator[Callable[["Advance"], object]]:
    """Give a callback that shows a bar on stderr, or a line now and then without a terminal."""
    from rich import progress

    console = bar_console()

    def kept(show: Callable[["Advance"], object]) -> Callable[["Advance"], object]:
        def on_advance(advance: "Advance") -> None:
            last[:] = [advance]
            show(advance)

        return on_advance

    if console is None:
        yield kept(_liner())
        return
    columns = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeElapsedColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting workers", total=None)

        def show(advance: "Advance") -> None:
            bar.update(task, total=1.0, completed=advance.done, description=_text(advance))

        yield kept(show)


def _liner() -> Callable[["Advance"], object]:
    timer = LineTimer()

    def say(advance: "Advance") -> None:
        if timer.is_due():
            click.echo(f"{_text(advance)}, {advance.done:.1%}", err=True)

    return say


def _text(advance: "Advance") -> str:
    parts = [f"{advance.rows:,} rows", f"{advance.tokens:,} tokens"]
    if advance.errors:
        parts.append(f"{advance.errors:,} errors")
    if advance.seconds_left is not None:
        left = advance.seconds_left
        parts.append(f"{left:.0f} s left" if left < 100 else f"{left / 60:,.0f} min left")
    return ", ".join(parts)
