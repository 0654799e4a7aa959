"""``tfexport translate``."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

import click

from tfexport.atomic import check_new_file
from tfexport.errors import OutputExistsError


@click.command(short_help="Translate lines of text, or of ids, with a bundle. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("file", type=click.Path(), default="-")
@click.option("-o", "--output", type=click.Path(), default="-", help="Default: stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--ids",
    is_flag=True,
    help="Lines are space-separated ids, in (as the encoder sees them: no framing is added) and "
    "out (no start, no end token).",
)
@click.option("--jsonl", is_flag=True, help="One JSON object a line: text, tokens, score.")
@click.option("--max-length", type=click.IntRange(min=0), default=256, show_default=True,
              help="New tokens a line at most.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True,
              help="Lines decoded together; 1 answers every line as it comes.")  # fmt: skip
@click.option("--truncate", is_flag=True, help="Cut lines that are too long for the model.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="Default: all cores.")
@click.pass_context
def translate(
    ctx: click.Context,
    bundle: str,
    file: str,
    output: str,
    force: bool,
    ids: bool,
    jsonl: bool,
    max_length: int,
    batch_size: int,
    truncate: bool,
    threads: int,
) -> None:
    r"""Translate FILE (default: stdin) line by line, in UTF-8.

    An empty line stays empty. A line that cannot be decoded is reported with its number, its
    output line stays empty, and the exit status is 1.

    \b
    echo "Guten Morgen!" | tfexport translate de-en.bundle
    """
    from tfexport.runtime import DecodingOptions, Translator
    from tfexport.runtime.lines import translate_lines

    options = DecodingOptions(max_length, batch_size, truncate)
    _check_output(output, file, force)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_open_input(file))
        translator = Translator(bundle, threads=threads)
        if not ids:
            translator.encode("")  # says at once that there is no tokenizer
        # Opened last: what fails before leaves an old output as it was.
        sink = stack.enter_context(_open_output(output))
        # A person at a terminal wants an answer to every line.
        chunk = 1 if source.isatty() or batch_size == 1 else 16 * batch_size
        bad = 0
        with _line_progress(file, source, sink) as advance:
            for result in translate_lines(translator, source, options, ids, chunk):
                if result.problem is not None:
                    bad += 1
                    click.echo(f"{file}:{result.number}: {result.problem}", err=True)
                line = result.text
                if jsonl:
                    best = result.hypothesis
                    line = json.dumps(
                        {
                            "text": None if ids else result.text,
                            "tokens": best.tokens if best else None,
                            "score": best.score if best else None,
                            **({"error": result.problem} if result.problem else {}),
                        },
                        ensure_ascii=False,
                    )
                sink.write(line + "\n")
                sink.flush()
                advance(result.number)
    if bad:
        click.echo(f"{bad} lines could not be decoded; their output lines are empty.", err=True)
        ctx.exit(1)


def _open_input(file: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return open(file, "rb")  # noqa: PTH123 - an OSError here names the file as the user gave it


def _check_output(output: str, file: str, force: bool) -> None:
    if output == "-":
        return
    check_new_file(output, force)
    if (
        file != "-"
        and Path(output).exists()
        and Path(file).exists()
        and Path(file).samefile(output)
    ):
        raise OutputExistsError(f"{output}: is also the input. Name another output.")


@contextlib.contextmanager
def _open_output(output: str) -> Iterator[IO[str]]:
    if output == "-":
        yield sys.stdout
        return
    with open(output, "w", encoding="utf-8", newline="\n") as sink:  # noqa: PTH123
        yield sink


@contextlib.contextmanager
def _line_progress(file: str, source: BinaryIO, sink: IO[str]) -> Iterator[Callable[[int], object]]:
    """A bar on stderr where it disturbs nobody: a file in, and not a terminal out."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if file == "-" or sink.isatty() or not console.is_terminal:
        yield lambda number: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("translating", total=Path(file).stat().st_size)
        yield lambda number: bar.update(
            task, completed=source.tell(), description=f"translating, line {number}"
        )
