"""``tfexport score``."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import check_new_file
from tfexport.cli.console import ProblemLines, file_bar, spell
from tfexport.cli.decoding_options import (
    SCORING,
    DecodingCommand,
    as_call,
    decoding_options,
    engine_option,
    given,
    language_options,
    without_effect,
)
from tfexport.errors import ConfigError, Message, Problem, join_problems
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.runtime.files.scores import PairScore
    from tfexport.runtime.model.engine_name import EngineName


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
    as_json: bool
    source_language: str | None
    target_language: str | None
    threads: int
    engine: "EngineName"
    decoding: dict[str, Any]


@click.command(
    cls=DecodingCommand, short_help="Log-probability of given translations. Needs no torch."
)
@click.argument("bundle", type=click.Path())
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), default="-", help="File to write. Default: stdout."
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--ids", is_flag=True, help="Lines are space-separated ids; sources as the encoder "
              "sees them, targets without start and end token.")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="Write one JSON object per line: score, tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object of all pairs "
              "together, with the signature, and lines only into --output.")  # fmt: skip
@language_options
@click.option("--threads", type=click.IntRange(0, MOST_THREADS), default=0,
              help="Threads inside an operator. Default: all cores.")  # fmt: skip
@engine_option
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
    from tfexport.runtime.benchmark import of_artifact
    from tfexport.runtime.engine import Engine
    from tfexport.runtime.files.scores import ScoreFormat, score_file
    from tfexport.runtime.parallel.cpu import ThreadLayout
    from tfexport.runtime.scorer import Scorer
    from tfexport.runtime.text.codec import LanguagePair

    call = as_call(_Call, values)
    _check_files(call)
    engine = Engine(call.bundle, ThreadLayout(threads=call.threads), engine=call.engine)
    if not call.ids:
        engine.texts.encode("")  # raises if there is no tokenizer
    scorer = Scorer(engine)
    language_pair = LanguagePair(call.source_language, call.target_language, call.ids)
    options = scorer.resolve(given(call.decoding, call.ids), language_pair)

    sums, problems = _Sums(), ProblemLines(call.source)
    with _output(call) as output, file_bar("scoring", partial(_lines, call)) as advance:

        def tell(number: int, score: "PairScore") -> None:
            if isinstance(score, Message):
                problems.add(number, score.spelled(spell))
            sums.add(score)
            advance(number, number)

        bad = score_file(
            scorer,
            (_stream(call.source), _stream(call.target)),
            output,
            options,
            line_format=ScoreFormat(call.jsonl, call.ids, spell), force=call.force, on_result=tell,
        )  # fmt: skip
    problems.end()
    others = {"source_language": call.source_language, "target_language": call.target_language,
              "ids": call.ids or None}  # fmt: skip
    keywords = given(call.decoding, call.ids) | {k: v for k, v in others.items() if v is not None}
    signature = str(of_artifact(call.bundle, call.engine, threads=call.threads, options=keywords))
    if call.as_json:
        click.echo(json.dumps({**sums.to_dict(), "signature": signature}, indent=2))
    else:
        click.echo(f"signature: {signature}", err=True)
    if bad:
        click.echo(f"{bad} pairs could not be scored; their output lines are empty.", err=True)
        ctx.exit(1)


@dataclass
class _Sums:
    pairs: int = 0
    scored: int = 0
    score: float = 0.0

    def add(self, score: "PairScore") -> None:
        """Count one pair."""
        self.pairs += 1
        if not isinstance(score, Message):
            self.scored += 1
            self.score += score.score

    def to_dict(self) -> dict[str, Any]:
        """Pairs, how many of them were scored, and the mean of their scores."""
        mean = self.score / self.scored if self.scored else None
        return {"pairs": self.pairs, "scored": self.scored, "mean_score": mean}


@contextlib.contextmanager
def _output(call: _Call) -> Iterator[Any]:
    """Where lines go: with --json nowhere, unless a file is named."""
    if call.output != "-":
        yield call.output
    elif call.as_json:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            yield nowhere
    else:
        yield sys.stdout


def _lines(call: _Call) -> int | None:
    """Lines of the first of both that is a file; None if neither is."""
    for path in map(Path, (call.source, call.target)):
        if path.is_file():
            with path.open("rb") as file:
                return sum(1 for _ in file)
    return None


def _stream(name: str) -> Any:
    return sys.stdin.buffer if name == "-" else name


def _check_files(call: _Call) -> None:
    if call.source == call.target == "-":
        raise click.UsageError("SOURCE and TARGET cannot both be stdin; name a file for one.")
    problems = without_effect({**call.decoding, "force": call.force, "jsonl": call.jsonl}, {
        "force": call.output != "-", "jsonl": call.output != "-" or not call.as_json,
        "return_token_scores": call.jsonl, "return_attention": call.jsonl,
    })  # fmt: skip
    if call.decoding.get("return_end_token") and not call.jsonl:
        problems.append("--return-end-token needs --jsonl")
    if problems:
        raise ConfigError(join_problems("score", [Problem(None, text) for text in problems]))
    if call.output != "-":
        check_new_file(call.output, call.force)
