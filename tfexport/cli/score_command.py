"""``tfexport score``."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import check_new_file
from tfexport.cli.decoding_options import (
    SCORING,
    as_call,
    decoding_options,
    given,
    language_options,
)
from tfexport.cli.spelling import spell
from tfexport.runtime.parallel.thread_layout import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.runtime.files.scores import LineScore


@dataclass(frozen=True)
class _Call:
    """Arguments and options of the command; ``decoding`` has those of ``DecodingOptions``."""

    bundle: str
    source: str
    target: str
    output: str
    force: bool
    ids: bool
    jsonl: bool
    source_language: str | None
    target_language: str | None
    threads: int
    decoding: dict[str, Any]


@click.command(short_help="Log-probability of given translations. Needs no torch.")
@click.argument("bundle", type=click.Path())
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("-o", "--output", type=click.Path(), default="-", help="Default: stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--ids", is_flag=True, help="Lines are space-separated ids; sources as the encoder "
              "sees them, targets without start and end token.")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="One JSON object a line: score, tokens.")
@language_options
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0,
              help="Default: all cores.")  # fmt: skip
@decoding_options(SCORING)
@click.pass_context
def score(ctx: click.Context, /, **values: Any) -> None:
    """Score each line of TARGET as the translation of the same line of SOURCE; - is stdin.

    A score is the summed natural-log probability of the tokens, the end token included, divided by
    their number to the power of the length penalty. A pair that cannot be scored is reported with
    its line, its output line stays empty, and the exit status is 1.

    \b
    tfexport score de-en.bundle german.txt english.txt
    """
    from tfexport.runtime.engine import Engine
    from tfexport.runtime.files.scores import ScoreFormat, score_file
    from tfexport.runtime.parallel.thread_layout import ThreadLayout
    from tfexport.runtime.scorer import Scorer
    from tfexport.runtime.spoken import Spoken

    call = as_call(_Call, values)
    _check_files(call)
    engine = Engine(call.bundle, ThreadLayout(threads=call.threads))
    if not call.ids:
        engine.texts.encode("")  # raises if there is no tokenizer
    scorer = Scorer(engine)
    spoken = Spoken(call.source_language, call.target_language, call.ids)
    options = scorer.resolve(given(call.decoding, call.ids), spoken)

    def tell(line: "LineScore") -> None:
        if line.problem is not None:
            click.echo(f"{call.source}:{line.number}: {line.problem.spelled(spell)}", err=True)

    bad = score_file(
        scorer,
        (_stream(call.source), _stream(call.target)),
        sys.stdout if call.output == "-" else call.output,
        options,
        line_format=ScoreFormat(call.jsonl, call.ids, spell), force=call.force, tell=tell,
    )  # fmt: skip
    if bad:
        click.echo(f"{bad} pairs could not be scored; their output lines are empty.", err=True)
        ctx.exit(1)


def _stream(name: str) -> Any:
    return sys.stdin.buffer if name == "-" else name


def _check_files(call: _Call) -> None:
    if call.source == call.target == "-":
        raise click.UsageError("SOURCE and TARGET cannot both be stdin; name a file for one.")
    if call.output != "-":
        check_new_file(call.output, call.force)
