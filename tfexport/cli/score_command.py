"""``tfexport score``."""

import contextlib
import json
import sys
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any

import click

from tfexport.atomic import new_file
from tfexport.cli.decoding_options import SCORING, decoding_options, given, spelled_as_options
from tfexport.errors import InputError


@click.command(short_help="Log-probability of given translations. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("-o", "--output", type=click.Path(), default="-", help="Default: stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--ids", is_flag=True, help="Lines are space-separated ids; sources as the encoder "
              "sees them, targets without start and end token.")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="One JSON object a line: score, tokens.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="Default: all cores.")
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
    r"""Score each line of TARGET as the translation of the same line of SOURCE.

    A score is the summed natural-log probability of the tokens, the end token included, divided by
    their number to the power of the length penalty. A pair that cannot be scored is reported with
    its line, its output line stays empty, and the exit status is 1.

    \b
    tfexport score de-en.bundle german.txt english.txt
    """
    from tfexport.runtime import Translator
    from tfexport.runtime.batches import rows_ahead

    keywords = given(options, ids)
    translator = Translator(bundle, threads)
    if not ids:
        translator.encode("")  # says at once that there is no tokenizer
    with spelled_as_options():
        settings = translator.scorer.settings(keywords)
    bad = 0
    with contextlib.ExitStack() as stack:
        sources = stack.enter_context(Path(source).open("rb"))
        targets = stack.enter_context(Path(target).open("rb"))
        sink = stack.enter_context(_open(output, force))
        pairs = enumerate(zip_longest(sources, targets), start=1)
        while chunk := list(islice(pairs, rows_ahead(settings.options))):
            requests, wanted, problems = [], [], {}
            for number, lines in chunk:
                request, tokens = None, list[int]()
                try:
                    found = [_read(line, name, number, ids) for line, name in zip(
                        lines, (source, target), strict=True)]  # fmt: skip
                    request, tokens = translator.scorer.request(
                        found[0], found[1], number - 1, settings
                    )
                except InputError as error:
                    problems[number] = str(error)
                requests.append(request)
                wanted.append(tokens)
            scored = translator.scorer.run(requests, wanted, settings)
            for (number, _), made in zip(chunk, scored, strict=True):
                problem = problems.get(number)
                if problem is not None:
                    bad += 1
                    click.echo(f"{source}:{number}: {problem}", err=True)
                if jsonl:
                    values: dict[str, Any] = {"score": None, "error": problem}
                    if problem is None:
                        values = {"score": made.score, "tokens": made.tokens}
                        if made.token_scores is not None:
                            values["token_scores"] = made.token_scores
                        if made.attention is not None:
                            values["attention"] = made.attention.round(6).tolist()
                    line = json.dumps(values)
                else:
                    line = "" if problem is not None else f"{made.score:.6f}"
                sink.write(line + "\n")
    if bad:
        click.echo(f"{bad} pairs could not be scored; their output lines are empty.", err=True)
        ctx.exit(1)


def _read(line: bytes | None, name: str, number: int, ids: bool) -> str | list[int]:
    from tfexport.runtime.lines import read_line, read_numbers

    if line is None:
        raise InputError(f"{name} has no such line")
    text = read_line(line, first=number == 1)
    return read_numbers(text) if ids else text


def _open(output: str, force: bool) -> contextlib.AbstractContextManager[IO[str]]:
    if output == "-":
        return contextlib.nullcontext(sys.stdout)
    return _file(output, force)


@contextlib.contextmanager
def _file(output: str, force: bool) -> Iterator[IO[str]]:
    with new_file(output, force) as partial, partial.open("w", encoding="utf-8") as sink:
        yield sink
