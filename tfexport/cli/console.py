"""Shared parts of the commands: progress on stderr, option sets, optional imports."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfexport.cli.bars import bar_console
from tfexport.cli.spelling import spell
from tfexport.errors import MissingDependencyError, TfexportWarning, missing_dependency
from tfexport.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from tfexport.export import ParityReport

Command = TypeVar("Command", bound=Callable[..., Any])


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Give a progress callback that shows a bar for each step, or a line if not on a terminal."""
    console = bar_console()
    with _lines() if console is None else _bars(console) as tell:
        yield tell


@contextlib.contextmanager
def _lines() -> Iterator[Progress]:
    current, start = "", 0.0

    def end() -> None:
        if current:
            click.echo(f"{time.monotonic() - start:.1f} s", err=True)

    def say(step: str, done: int, total: int) -> None:
        nonlocal current, start
        if step != current:
            end()
            current, start = step, time.monotonic()
            click.echo(f"{step} … ", nl=False, err=True)

    try:
        yield say
    finally:
        end()


@contextlib.contextmanager
def _bars(console: "Console") -> Iterator[Progress]:
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console) as bar:
        current, task = "", bar.add_task("starting", total=None)

        def end() -> None:
            whole = bar.tasks[-1].total or 1
            bar.update(task, completed=whole, total=whole)
            bar.stop_task(task)

        def show(step: str, done: int, total: int) -> None:
            nonlocal current, task
            if step != current:
                if current:
                    end()
                    task = bar.add_task(step, total=None)
                current = step
            bar.update(task, description=step, completed=done, total=total if total > 1 else None)

        yield show
        end()


def _layout_names() -> str:
    """Every layout, as its file is called: the command line may not load torch to ask them."""
    folder = Path(__file__).parents[1] / "model_src" / "checkpoint" / "layouts"
    names = sorted(found.name.replace("_", "-") for found in iter_modules([str(folder)]))
    return " or ".join([", ".join(names[:-1]), *names[-1:]])


def checkpoint_options(command: Command) -> Command:
    """Add the options for reading a checkpoint."""
    for option in (
        click.option(
            "--format",
            "layout",
            metavar="NAME",
            help=f"Force a checkpoint layout instead of detecting it: {_layout_names()}.",
        ),
        click.option(
            "--set",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set one config value, e.g. --set num_heads=8. Repeatable; the last one wins.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(),
            help="JSON file with config values. Default: config.json next to the checkpoint.",
        ),
    ):
        command = option(command)
    return command


reference_option = click.option(
    "--reference",
    metavar="PACKAGE.FILE:FUNCTION",
    help="Your own code to compare with. It is imported (from the current folder first) and run as "
    "FUNCTION(input_ids, decoder_input_ids) -> logits, on rows without padding.",
)


def verify_options(command: Command) -> Command:
    """Add ``--verify LEVEL``, and ``--no-verify`` for its "none"."""
    for option in (
        click.option(
            "--no-verify",
            is_flag=True,
            help="Skip the comparison with eager PyTorch, as --verify none.",
        ),
        click.option(
            "--verify",
            type=click.Choice(["full", "quick", "none"]),
            default="full",
            show_default=True,
            help="How much is compared with eager PyTorch. quick: one random batch, and the real "
            "inputs if there are any.",
        ),
    ):
        command = option(command)
    return command


expect_option = click.option(
    "--expect",
    metavar="FILE",
    type=click.Path(),
    help="Lines of a source, a tab, and the text that your own code gives for it. A bundle that "
    "gives another text differs, near ties aside.",
)


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Name the extra to install if an import inside the block fails.

    Raises:
        MissingDependencyError: naming the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        # A package that names its own extra does so because of another error.
        cause = error.__cause__ if isinstance(error, MissingDependencyError) else error
        name = cause.name if isinstance(cause, ImportError) else None
        if name is None or name.partition(".")[0] == "tfexport":
            raise
        need = f"this needs {name}, which is not installed; the extra {extra!r} brings it"
        raise missing_dependency(need, extra) from error


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of tfexport behind the block, as lines on stderr with options as flags."""
    told: list[TfexportWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", TfexportWarning)
        others = warnings.showwarning

        def show(message: Warning | str, *details: Any, **more: Any) -> None:
            if isinstance(message, TfexportWarning):
                told.append(message)
            else:
                others(message, *details, **more)

        warnings.showwarning = show
        try:
            yield
        finally:
            for warning in told:
                click.echo(f"warning: {warning.message.spelled(spell)}", err=True)


def human_size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def print_result(output: str, size: int | None, report: "ParityReport | None") -> None:
    """Print an output's path, its size unless None, and the result of the comparison."""
    from tfexport.cli.tables import print_parity, verdict

    proof = "not compared with eager PyTorch (--no-verify)"
    if report is not None:
        print_parity(report, output, stderr=True)
        print_remarks(report, stderr=True)
        proof = verdict(report)
    click.echo(f"{output}: {'' if size is None else human_size(size) + ', '}{proof}")


def print_remarks(report: "ParityReport", stderr: bool = False) -> None:
    """Say what is doubtful, and if no code of the user's own was run what only settings say."""
    from tfexport.cli.tables import settings_lines

    if report.doubt is not None:
        click.echo(f"warning: {report.doubt}", err=stderr)
    if report.own_code is None:
        return
    click.echo(report.own_code.spelled(spell), err=stderr)
    if report.settings:
        click.echo("Your weights do not show these settings; check each of them:", err=stderr)
    for line in settings_lines(report.settings):
        click.echo(f"  {line}", err=stderr)
