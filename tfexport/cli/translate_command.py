"""``tfexport translate``."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import naming
from tfexport.bundle import check_ahead
from tfexport.cli.console import ProblemLines, cut_lines, file_bar, needs, spell, unknown_tokens
from tfexport.cli.decoding_options import (
    DecodingCommand,
    as_call,
    decoding_options,
    engine_option,
    given,
    language_options,
    without_effect,
)
from tfexport.cli.terms_option import (
    check_terms_call,
    read_terms,
    terms_options,
    unmet,
    unmet_terms,
)
from tfexport.errors import ConfigError, InputError, Problem
from tfexport.runtime.files.input_lines import read_numbers
from tfexport.runtime.parallel.cpu import MOST_THREADS

if TYPE_CHECKING:
    from tfexport.markup.dialects import Dialect
    from tfexport.markup.files import FileFormat
    from tfexport.runtime.engine import Engine
    from tfexport.runtime.files.line_stream import LineResult, LineTask
    from tfexport.runtime.media.limits import MediaLimits
    from tfexport.runtime.model.engine_name import EngineName
    from tfexport.runtime.parallel.cpu import ThreadLayout
    from tfexport.runtime.text.codec import TextCodec


# The formats of files that tfexport.markup.files reads, which needs an extra.
MARKDOWN_DIALECTS = ("commonmark", "gfm", "mkdocs", "kramdown", "mdx", "obsidian")
FORMATS = ("text", "html", "xml", "markdown", "srt", "vtt", "po", "json-strings")


@dataclass(frozen=True)
class _Call:
    """Arguments and options of the command; ``decoding`` has those of ``DecodingOptions``."""

    bundle: str
    files: tuple[str, ...]
    inputs: str | None
    output: str
    force: bool
    resume: bool
    ids: bool
    jsonl: bool
    alignment: bool
    attention_plot: str | None
    format: "FileFormat | None"
    placeholders: str | None
    placeholder_pattern: tuple[str, ...]
    terms: str | None
    languages: str | None
    ignore_tags: str | None
    markdown_dialect: "Dialect | None"
    fuzzy: bool
    report: str | None
    strict: bool
    target_prefix: str | None
    target_prefix_file: str | None
    source_language: str | None
    target_language: str | None
    vocabulary_map: str | None
    threads: int | None
    workers: int | None
    engine: "EngineName"
    max_seconds: float | None
    decoding: dict[str, Any]

    @property
    def file(self) -> str:
        """The file of lines."""
        return self.files[0] if self.files else "-"


@click.command(
    cls=DecodingCommand,
    short_help="Translate lines of text, or of ids, with a bundle. Needs no torch.",
)
@click.argument("bundle", type=click.Path())
@click.argument("files", type=click.Path(), nargs=-1, metavar="[FILE]...")
@click.option(
    "-o", "--output", type=click.Path(), default="-", help="File to write. Default: stdout."
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--resume", is_flag=True, help="Continue an unfinished output.")
@click.option(
    "--ids",
    is_flag=True,
    help="Input and output lines are space-separated ids. No special tokens are added to the "
    "input; the output has no start and no end token.",
)
@click.option(
    "--inputs",
    type=click.Path(),
    metavar="ROWS.npz",
    help="Instead of FILE: arrays, for a bundle of a custom module. One array per input, with the "
    "rows on the first axis, or one per row: NAME/0, NAME/1, ... For a bundle that reads sound or "
    "pictures also a text file, with the path of a file on each line.",
)
@click.option("--max-seconds", type=click.FloatRange(0, 86_400, min_open=True),
              help="The longest sound that is read.  [default: 60]")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="Write one JSON object per line: text, tokens, score.")
@click.option("--alignment", is_flag=True, help="Write 'text ||| 0-0 1-2': source and target "
              "positions.")  # fmt: skip
@click.option("--attention-plot", type=click.Path(), metavar="IMAGE",
              help="Also draw the attention of every line: IMAGE, then IMAGE-2, ...")  # fmt: skip
@click.option("--format", type=click.Choice(FORMATS),
              help="Read not lines but this format: its words are translated, all else stays "
              "as it is.")  # fmt: skip
@click.option("--placeholders", metavar="KIND,...",
              help="With --format: what stays letter for letter, of url, email, printf, braces, "
              "icu, emoji, number; an empty text for nothing.  "
              "[default: all but number]")  # fmt: skip
@click.option("--placeholder-pattern", metavar="REGEX", multiple=True,
              help="With --format: a regular expression of what stays too.")  # fmt: skip
@terms_options
@click.option("--ignore-tags", metavar="NAME,...",
              help="With --format: elements of HTML and XML whose content stays.")  # fmt: skip
@click.option("--markdown-dialect", type=click.Choice(MARKDOWN_DIALECTS),
              help="With --format markdown: what the file has besides CommonMark.  "
              "[default: what any dialect has]")  # fmt: skip
@click.option("--fuzzy", is_flag=True,
              help="With --format po: mark the translations as drafts (fuzzy).")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False), metavar="FILE",
              help="With --format: write what stays as it is and why, as lines of JSON, or as a "
              "page if FILE ends in .html.")  # fmt: skip
@click.option("--strict", is_flag=True,
              help="With --format: exit status 1 if anything stays that has words.")  # fmt: skip
@click.option("--target-prefix", metavar="TEXT", help="Text that every translation starts with.")
@click.option("--target-prefix-file", type=click.Path(), metavar="FILE",
              help="File with the start of each line's translation.")  # fmt: skip
@language_options
@click.option("--vocabulary-map", type=click.Path(), metavar="FILE",
              help="File with the target tokens that each source token allows.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, MOST_THREADS),
              help="Threads inside an operator; 0: all cores.  [default: 0, or for FILE what "
              "bench --tune found]")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, MOST_THREADS),
              help="Batches decoded at a time, each with --threads.  [default: 1, or for FILE what "
              "bench --tune found]")  # fmt: skip
@engine_option
@decoding_options()
@click.pass_context
def translate(ctx: click.Context, /, **values: Any) -> None:
    """Translate FILE (default: stdin) line by line, in UTF-8.

    Of a bundle that reads sound or pictures, each FILE is one, and gives one line.

    An empty line stays empty. A line that cannot be decoded is reported with its number, its
    output line stays empty, and the exit status is 1.

    \b
    tfexport translate de-en.bundle german.txt -o english.txt --beam-size 4
    tfexport translate de-en.bundle < german.txt > english.txt
    tfexport translate de-en.bundle page.html --format html -o english.html
    tfexport translate de-en.bundle german.txt --terms terms.tsv
    tfexport translate speech.bundle one.wav two.flac --jsonl
    """
    call = as_call(_Call, values)
    check = check_ahead(call.bundle)  # while the following are imported
    from tfexport.cli.document_files import (
        check_document_call,
        named_format,
        translate_document,
    )
    from tfexport.cli.input_rows import check_files, check_inputs_call, read_rows, translate_rows
    from tfexport.runtime.engine import Engine
    from tfexport.runtime.files.resumable import check_output

    check_terms_call(call)
    check_document_call(call)
    if call.inputs is not None:
        check_inputs_call(call)
    if call.output != "-":
        source = None if call.file == "-" else Path(call.file)
        check_output(source, Path(call.output), call.force, call.resume)
    engine = Engine(
        call.bundle, _layout(call), call.vocabulary_map, call.engine, _media_limits(call), check
    )
    check_files(call, engine.manifest.media)
    rows = read_rows(call, engine)
    if rows is not None:
        if bad := translate_rows(call, engine, rows):
            click.echo(f"{bad} rows could not be decoded; their output is empty.", err=True)
            ctx.exit(1)
        return
    engine.manifest.require_ids()
    if not call.ids:
        engine.texts.encode("")  # raises if there is no tokenizer
    terms = read_terms(call, engine)
    if call.format is not None:
        if not translate_document(call, engine, terms) and call.strict:
            ctx.exit(1)
        return
    if kind := named_format(call):
        click.echo(
            f"{call.file}: translated line by line, with its syntax; --format {kind} translates "
            "its words alone", err=True,
        )  # fmt: skip
    task = replace(_task(call, engine), terms=terms)
    report = _Reporter(call, engine, task)
    run = _to_stdout if call.output == "-" else _to_file
    try:
        bad = run(call, engine, task, report)
    except (KeyboardInterrupt, SystemExit):  # SIGTERM
        report.end()
        click.echo(_how_far(call, report.lines), err=True)
        raise
    report.end()
    if bad:
        click.echo(f"{bad} lines could not be decoded; their output lines are empty.", err=True)
        ctx.exit(1)


def _media_limits(call: _Call) -> "MediaLimits | None":
    from tfexport.runtime.media.limits import MediaLimits

    return None if call.max_seconds is None else MediaLimits(seconds=call.max_seconds)


def _layout(call: _Call) -> "ThreadLayout":
    """The numbers of workers and threads: as given, or for a file those of ``bench --tune``."""
    from tfexport.cli.tuning import read_layout
    from tfexport.runtime.parallel.cpu import ThreadLayout

    if call.file != "-" and call.threads is None and call.workers is None:
        return read_layout(Path(call.bundle)) or ThreadLayout()
    return ThreadLayout(call.workers or 1, call.threads or 0)


def _task(call: _Call, engine: "Engine") -> "LineTask":
    """Resolve the options; all problems are reported in one message."""
    from tfexport.runtime.files.line_stream import LineFormat, LineTask
    from tfexport.runtime.text.codec import LanguagePair

    keywords = given(call.decoding, call.ids)
    if call.alignment or call.attention_plot:
        keywords["return_attention"] = True
    keywords["return_scores"] = call.jsonl  # lines of text have no scores
    prefix = None if call.target_prefix is None else _prefix(call.target_prefix, call.ids)
    language_pair = LanguagePair(call.source_language, call.target_language, call.ids)
    options, (start,) = engine.resolver.resolve(
        keywords, [prefix], _contradictions(call), language_pair
    )
    line_format = LineFormat(call.jsonl, call.alignment, call.ids, options.num_hypotheses, spell)
    return LineTask(options, line_format, start, call.target_prefix_file)


def _contradictions(call: _Call) -> list[Problem]:
    """Contradictions that involve options of the command line; the runtime finds the others."""
    problems = []
    if call.resume and "-" in (call.file, call.output):
        problems.append("--resume needs FILE and --output")
    if call.alignment and call.jsonl:
        problems.append("--alignment excludes --jsonl, which contains it with --return-attention")
    if call.target_prefix is not None and call.target_prefix_file is not None:
        problems.append("--target-prefix excludes --target-prefix-file")
    problems += without_effect({**call.decoding, "force": call.force}, {
        "force": call.output != "-", "return_token_scores": call.jsonl,
        "return_attention": call.jsonl, "return_end_token": call.jsonl or call.ids,
    })  # fmt: skip
    if call.ids and call.decoding.get("replace_unknowns"):
        problems.append("--replace-unknowns needs text, and --ids gives ids")
    return [Problem(None, text) for text in problems]


class _Reporter:
    """Reports problems of lines, draws attention, and counts finished lines for the summary."""

    def __init__(self, call: _Call, engine: "Engine", task: "LineTask") -> None:
        self.lines = self._cut = self._unknown = self._with_unknown = 0
        self._unmet = self._with_unmet = 0
        self._count_unknowns = engine.texts.count_unknowns
        self._problems, self._longest = ProblemLines(call.file), task.options.max_length
        self._plot: Callable[[LineResult], object] | None = None
        if call.attention_plot:
            self._plot = Plotter(call.attention_plot, engine.texts, call.ids)

    def __call__(self, line: "LineResult") -> None:
        self.lines += 1
        if line.problem is not None:
            self._problems.add(line.number, line.problem.spelled(spell))
            return
        if line.result is not None:
            self._cut += not line.result.hypotheses[0].finished
            unknown = self._count_unknowns(line.result.source_tokens)
            self._unknown += unknown
            self._with_unknown += unknown > 0
            if missing := line.result.unmet_terms:
                self._problems.add(line.number, unmet(missing))
                self._unmet, self._with_unmet = self._unmet + len(missing), self._with_unmet + 1
        if self._plot is not None:
            self._plot(line)

    def end(self) -> None:
        """Print the summary of all lines."""
        self._problems.end()
        if self._unmet:
            click.echo(unmet_terms(self._unmet, self._with_unmet, "lines"), err=True)
        if self._cut:
            click.echo(cut_lines(self._cut, "lines", self._longest), err=True)
        if self._unknown:
            click.echo(unknown_tokens(self._unknown, self._with_unknown, "lines"), err=True)


def _how_far(call: _Call, lines: int) -> str:
    """A sentence about the work of an interrupted run, and how to continue."""
    if call.output == "-":
        return f"{call.file}: {lines:,} lines were translated."
    done = f"{call.output}: {lines:,} lines were translated by this run."
    if call.file != "-" and Path(call.file).is_file():
        how = " with --resume in place of --force" if call.force else " with --resume"
        return f"{done} To continue, run the same command{'' if call.resume else how}."
    return f"{done} {call.file} can be read only once: start again with --force."


def _source(call: _Call) -> Any:
    return sys.stdin.buffer if call.file == "-" else call.file


def _to_file(call: _Call, engine: "Engine", task: "LineTask", report: _Reporter) -> int:
    """Translate into a resumable file; return the number of lines that could not be decoded."""
    from tfexport.runtime.files.resumable import translate_file

    def size() -> int | None:
        path = Path(call.file)
        return path.stat().st_size if path.is_file() else None  # the size of a pipe is unknown

    with file_bar("translating", size) as advance:
        summary = translate_file(
            engine, _source(call), call.output, task,
            resume=call.resume, force=call.force, on_result=report, advance=advance,
        )  # fmt: skip
    if summary.resumed:
        text = f"{summary.resumed} of {summary.lines} lines were already translated."
        click.echo(f"{call.output}: {text}", err=True)
    return len(summary.bad)


def _to_stdout(call: _Call, engine: "Engine", task: "LineTask", report: _Reporter) -> int:
    """Translate to stdout; return the number of lines that could not be decoded."""
    from tfexport.runtime.files.resumable import translate_stream

    return translate_stream(engine, _source(call), sys.stdout, task, on_result=report)


def _prefix(text: str, ids: bool) -> str | list[int]:
    if not ids:
        return text
    try:
        return read_numbers(text)
    except InputError as error:
        raise ConfigError(f"--target-prefix: {error}; with --ids, it must be ids") from None


MAX_IMAGES = 100  # images of one run
IMAGE_FORMATS = (".png", ".svg", ".pdf")


class Plotter:
    """A callback that draws one image of cross-attention for each line."""

    def __init__(self, image: str, texts: "TextCodec", ids: bool) -> None:
        with needs("plot"):
            import matplotlib

        matplotlib.use("agg")  # files, not windows
        self._path, self._texts, self._ids = Path(image), texts, ids
        if self._path.suffix not in IMAGE_FORMATS:
            raise ConfigError(
                f"--attention-plot: {image!r} does not end in {', '.join(IMAGE_FORMATS)}"
            )

    def __call__(self, line: "LineResult") -> None:
        """Draw the attention of a line's best hypothesis, unless that is empty."""
        if line.result is None or line.number > MAX_IMAGES:
            return
        best = line.result.hypotheses[0]
        if best.attention is None or not best.attention.size:
            return
        from matplotlib.figure import Figure

        rows, columns = best.attention.shape
        figure = Figure(figsize=(1.5 + 0.4 * columns, 1.2 + 0.32 * rows), layout="constrained")
        axes = figure.add_subplot()
        picture = axes.imshow(best.attention, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        texts = self._texts
        source = [str(i) if self._ids else texts.source.piece(i) for i in line.result.source_tokens]
        target = [str(i) if self._ids else texts.target.piece(i) for i in best.tokens]
        axes.set_xticks(range(columns), source, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(rows), target)
        axes.xaxis.tick_top()
        axes.set_xlabel("source")
        axes.set_ylabel("target")
        figure.colorbar(picture, label="attention")
        path = self._name(line.number)
        with naming(path):
            figure.savefig(path, dpi=150)
        if line.number == MAX_IMAGES:
            click.echo(f"--attention-plot: drew the first {MAX_IMAGES} lines.", err=True)

    def _name(self, number: int) -> Path:
        if number == 1:
            return self._path
        return self._path.with_stem(f"{self._path.stem}-{number}")
