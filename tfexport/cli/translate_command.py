"""``tfexport translate``."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.cli.decoding_options import (
    MOST_THREADS,
    decoding_options,
    given,
    spelled,
    spelled_as_options,
)
from tfexport.errors import ConfigError

if TYPE_CHECKING:
    from tfexport.runtime import Translator
    from tfexport.runtime.files.line_format import Format, LineResult
    from tfexport.runtime.search import ResolvedOptions


@click.command(short_help="Translate lines of text, or of ids, with a bundle. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("file", type=click.Path(), default="-")
@click.option("-o", "--output", type=click.Path(), default="-", help="Default: stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--resume", is_flag=True, help="Go on with an output that was not finished.")
@click.option(
    "--ids",
    is_flag=True,
    help="Lines are space-separated ids, in (as the encoder sees them: no framing is added) and "
    "out (no start, no end token).",
)
@click.option("--jsonl", is_flag=True, help="One JSON object a line: text, tokens, score.")
@click.option("--alignment", is_flag=True, help="Write 'text ||| 0-0 1-2': source and target "
              "positions.")  # fmt: skip
@click.option("--attention-plot", type=click.Path(), metavar="IMAGE",
              help="Also draw the attention; IMAGE, then IMAGE-2, ...")  # fmt: skip
@click.option("--target-prefix", metavar="TEXT", help="Every translation begins so.")
@click.option("--target-prefix-file", type=click.Path(), metavar="FILE",
              help="The same, a line for each line.")  # fmt: skip
@click.option("--vocabulary-map", type=click.Path(), metavar="FILE",
              help="Target tokens that source tokens allow.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, MOST_THREADS),
              help="Threads inside an operator; 0: all cores.  [default: 0, or for FILE what "
              "bench --tune found]")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, MOST_THREADS),
              help="Batches decoded at a time, each with --threads.  [default: 1, or for FILE what "
              "bench --tune found]")  # fmt: skip
@decoding_options()
@click.pass_context
def translate(
    ctx: click.Context,
    /,
    bundle: str,
    file: str,
    output: str,
    force: bool,
    resume: bool,
    ids: bool,
    jsonl: bool,
    alignment: bool,
    attention_plot: str | None,
    target_prefix: str | None,
    target_prefix_file: str | None,
    vocabulary_map: str | None,
    threads: int | None,
    workers: int | None,
    **options: Any,
) -> None:
    """Translate FILE (default: stdin) line by line, in UTF-8.

    An empty line stays empty. A line that cannot be decoded is reported with its number, its
    output line stays empty, and the exit status is 1.

    \b
    tfexport translate de-en.bundle german.txt -o english.txt --beam-size 4
    tfexport translate de-en.bundle < german.txt > english.txt
    """
    from tfexport.cli.tuning import read_split
    from tfexport.runtime import Translator
    from tfexport.runtime.files.line_format import json_format, text_format
    from tfexport.runtime.files.resumable import check_output

    keywords = given(options, ids)
    if alignment or attention_plot:
        keywords["return_attention"] = True
    keywords["return_scores"] = jsonl  # lines of text say none
    if output != "-":
        check_output(None if file == "-" else Path(file), Path(output), force, resume)
    problems = _contradictions(
        file, output, resume, ids, jsonl, alignment, attention_plot, options,
        target_prefix, target_prefix_file,
    )  # fmt: skip
    if file != "-" and threads is None and workers is None:
        split = read_split(Path(bundle))
        if split is not None:
            threads, workers = split.threads, split.workers
    translator = Translator(
        bundle, threads or 0, workers=workers or 1, vocabulary_map=vocabulary_map
    )
    if not ids:
        translator.encode("")  # says at once that there is no tokenizer
    prefix: Any = None if target_prefix is None else _prefix(target_prefix, ids)
    with spelled_as_options():
        resolved, (start,) = translator.resolver.resolve(keywords, [prefix], problems)
    count = keywords.get("num_hypotheses", 1)
    write = json_format(ids, count > 1) if jsonl else text_format(count, alignment)
    run = _Run(translator, resolved, write, ids, start, target_prefix_file)
    if attention_plot:
        from tfexport.cli.attention_plot import Plotter

        run.plotter = Plotter(attention_plot, translator, ids)
    if output == "-":
        bad = run.to_stdout(file)
    else:
        bad = run.to_file(file, output, force, resume, jsonl, alignment)
    if bad:
        click.echo(f"{bad} lines could not be decoded; their output lines are empty.", err=True)
        ctx.exit(1)


def _contradictions(
    file: str,
    output: str,
    resume: bool,
    ids: bool,
    jsonl: bool,
    alignment: bool,
    attention_plot: str | None,
    options: dict[str, Any],
    target_prefix: str | None,
    target_prefix_file: str | None,
) -> list[str]:
    """What the command's own options contradict; the runtime adds what the others do."""
    problems = []
    if resume and "-" in (file, output):
        problems.append("--resume needs FILE and --output")
    if alignment and jsonl:
        problems.append("--alignment excludes --jsonl, which holds it with --return-attention")
    if target_prefix is not None and target_prefix_file is not None:
        problems.append("--target-prefix excludes --target-prefix-file")
    for name in ("return_token_scores", "return_attention"):
        if options.get(name) and not jsonl:
            problems.append(f"{name} needs --jsonl")
    if ids and options.get("replace_unknowns"):
        problems.append("replace_unknowns acts on text; with --ids there is none")
    return problems


class _Run:
    """One run of the command."""

    def __init__(
        self,
        translator: "Translator",
        options: "ResolvedOptions",
        write: "Format",
        ids: bool,
        prefix: tuple[int, ...],
        prefix_file: str | None,
    ) -> None:
        self.translator, self.options, self.write, self.ids = translator, options, write, ids
        self.prefix, self.prefix_file = prefix, prefix_file
        self.plotter: Callable[[LineResult], object] = lambda line: None

    def to_file(
        self, file: str, output: str, force: bool, resume: bool, jsonl: bool, alignment: bool
    ) -> int:
        """Translate into a file that a later run could go on with; how many lines were bad."""
        from tfexport.runtime.files.resumable import describe_run, translate_file

        count = self.options.num_hypotheses
        with _progress(Path(file)) as advance:

            def tell(line: "LineResult", offset: int) -> None:
                self.report(file, line)
                advance(line, offset)

            summary = translate_file(
                self.translator, sys.stdin.buffer if file == "-" else file, output,
                self.options, self.write,
                ids=self.ids, prefix=self.prefix, prefix_file=self.prefix_file,
                described=describe_run(self.options, jsonl, alignment, self.ids),
                lines_each=1 if jsonl else count,
                resume=resume, force=force, tell=tell,
            )  # fmt: skip
        if summary.resumed:
            click.echo(
                f"{output}: {summary.resumed} of {summary.lines} lines were there.", err=True
            )
        return len(summary.bad)

    def to_stdout(self, file: str) -> int:
        """Translate into a pipe or onto a terminal; how many lines were bad."""
        from tfexport.runtime.files.line_format import translate_lines
        from tfexport.runtime.files.line_stream import open_lines
        from tfexport.runtime.parallel.batches import rows_ahead

        bad = 0
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open_lines(sys.stdin.buffer if file == "-" else file))
            prefixes: Any = repeat(self.prefix)
            if self.prefix_file is not None:
                prefixes = stack.enter_context(open_lines(self.prefix_file))
            options = self.options
            # A person at a terminal wants an answer to every line.
            at_once = source.is_terminal or options.batch_size == 1
            chunk = 1 if at_once else rows_ahead(options)
            for line in translate_lines(
                self.translator, source, self.options, ids=self.ids, prefixes=prefixes, chunk=chunk
            ):
                bad += line.problem is not None
                self.report(file, line)
                sys.stdout.writelines(f"{text}\n" for text in self.write(line))
                sys.stdout.flush()
        return bad

    def report(self, file: str, line: "LineResult") -> None:
        """Say what is wrong with a line, or draw it."""
        if line.problem is not None:
            click.echo(f"{file}:{line.number}: {spelled(line.problem)}", err=True)
        else:
            self.plotter(line)


def _prefix(text: str, ids: bool) -> str | list[int]:
    if not ids:
        return text
    words = text.split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--target-prefix: {text!r} is not a list of ids, which --ids asks for")
    return [int(word) for word in words]


@contextlib.contextmanager
def _progress(source: Path) -> Iterator[Callable[["LineResult", int], object]]:
    """On a terminal, a bar on stderr with lines a second and the time that is left."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line, offset: None
        return
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeElapsedColumn(), "left:",
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as bar:
        # Of a pipe nobody knows how much is to come.
        task = bar.add_task(
            "translating", total=source.stat().st_size if source.is_file() else None
        )
        start, first = time.monotonic(), 0

        def advance(line: "LineResult", offset: int) -> None:
            nonlocal first
            first = first or line.number  # of this run: those before it took it no time
            rate = (line.number - first + 1) / max(time.monotonic() - start, 0.001)
            told = f"line {line.number:,}, {rate:,.0f} a second"
            bar.update(task, completed=offset, description=told)

        yield advance
