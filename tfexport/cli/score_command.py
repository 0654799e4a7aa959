"""``tfexport score``."""

import contextlib
import json
import sys
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import IO, TYPE_CHECKING, Any

import click

from tfexport.atomic import check_new_file, new_file
from tfexport.cli.decoding_options import (
    MOST_THREADS,
    SCORING,
    decoding_options,
    given,
    spelled,
    spelled_as_options,
)
from tfexport.errors import InputError

if TYPE_CHECKING:
    from tfexport.runtime.results import Hypothesis


@click.command(short_help="Log-probability of given translations. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("-o", "--output", type=click.Path(), default="-", help="Default: stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--ids", is_flag=True, help="Lines are space-separated ids; sources as the encoder "
              "sees them, targets without start and end token.")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="One JSON object a line: score, tokens.")
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0,
              help="Default: all cores.")  # fmt: skip
@decoding_options(SCORING)
@click.pass_context
def score(
    ctx: click.Context,
    /,
    bundle: str,
    source: str,
    target: str,
    output: str,
    force: bool,
    ids: bool,
    jsonl: bool,
    threads: int,
    **options: Any,
) -> None:
    """Score each line of TARGET as the translation of the same line of SOURCE; - is stdin.

    A score is the summed natural-log probability of the tokens, the end token included, divided by
    their number to the power of the length penalty. A pair that cannot be scored is reported with
    its line, its output line stays empty, and the exit status is 1.

    \b
    tfexport score de-en.bundle german.txt english.txt
    """
    from tfexport.runtime import Translator
    from tfexport.runtime.files.line_stream import open_lines
    from tfexport.runtime.parallel.batches import rows_ahead

    _check_files(source, target, output, force)
    keywords = given(options, ids)
    translator = Translator(bundle, threads)
    if not ids:
        translator.encode("")  # says at once that there is no tokenizer
    with spelled_as_options():
        resolved = translator.scorer.resolve(keywords)
    bad = 0
    with contextlib.ExitStack() as stack:
        sources, targets = (
            stack.enter_context(open_lines(sys.stdin.buffer if name == "-" else name))
            for name in (source, target)
        )
        sink = stack.enter_context(_open(output, force))
        pairs = enumerate(zip_longest(sources, targets), start=1)
        while chunk := list(islice(pairs, rows_ahead(resolved))):
            requests, wanted, problems = [], [], {}
            for number, lines in chunk:
                request, tokens = None, list[int]()
                try:
                    found = [_read(line, name, number, ids) for line, name in zip(
                        lines, (source, target), strict=True)]  # fmt: skip
                    request, tokens = translator.scorer.request(
                        found[0], found[1], number - 1, resolved
                    )
                except InputError as error:
                    problems[number] = str(error)
                requests.append(request)
                wanted.append(tokens)
            scored = translator.scorer.run(requests, wanted, resolved)
            for (number, _), made in zip(chunk, scored, strict=True):
                problem = problems.get(number)
                if problem is not None:
                    bad += 1
                    click.echo(f"{source}:{number}: {spelled(problem)}", err=True)
                sink.write(_describe(made, problem, jsonl) + "\n")
            sink.flush()
    if bad:
        click.echo(f"{bad} pairs could not be scored; their output lines are empty.", err=True)
        ctx.exit(1)


def _check_files(source: str, target: str, output: str, force: bool) -> None:
    if source == target == "-":
        raise click.UsageError("SOURCE and TARGET cannot both be stdin; name a file for one.")
    if output != "-":
        check_new_file(output, force)


def _describe(made: "Hypothesis", problem: str | None, jsonl: bool) -> str:
    """The output line of a pair."""
    if not jsonl:
        return "" if problem is not None else f"{made.score:.6f}"
    values: dict[str, Any] = {"score": None, "error": problem}
    if problem is None:
        values = {"score": made.score, "tokens": made.tokens}
        if made.token_scores is not None:
            values["token_scores"] = made.token_scores
        if made.attention is not None:
            values["attention"] = made.attention.round(6).tolist()
    return json.dumps(values)


def _read(line: bytes | None, name: str, number: int, ids: bool) -> str | list[int]:
    from tfexport.runtime.files.line_format import read_line, read_numbers

    if line is None:
        raise InputError(f"{name} has no such line")
    text = read_line(line, first=number == 1)
    return read_numbers(text) if ids else text


@contextlib.contextmanager
def _open(output: str, force: bool) -> Iterator[IO[str]]:
    if output == "-":
        yield sys.stdout
        return
    with new_file(output, force) as partial, partial.open("w", encoding="utf-8") as sink:
        yield sink
