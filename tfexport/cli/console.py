"""Shared parts of the commands: flags in messages, progress on stderr, option sets, imports."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfexport.errors import (
    MissingDependencyError,
    Option,
    TfexportWarning,
    join_some,
    missing_dependency,
)
from tfexport.layout_names import LAYOUT_NAMES
from tfexport.typing import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressOfRich


LINE_EVERY = 30.0  # seconds, where there is no bar
FileBar = Callable[[int, int], object]
# Keywords whose option has another name.
_NAMES = {"layout": "format", "settings": "set", "output_attentions": "attention"}


def spell(option: Option) -> str:
    """An option of the library as a flag: ``force=True`` is ``--force``."""
    flag = "--" + _NAMES.get(option.name, option.name).replace("_", "-")
    if option.value is None or option.value is True:
        return flag
    if option.value is False:
        return f"--no-{flag[2:]}"
    if isinstance(option.value, list):  # a repeatable option
        return " ".join(f"{flag} {value}" for value in option.value)
    return f"{flag} {option.value}"


def bar_console() -> "Console | None":
    """A console on stderr; None if it is not a terminal that can redraw a line."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class ProblemLines:
    """Reports failed lines on stderr: the first few in full, the others by number."""

    _MOST, _MOST_ALIKE = 20, 5

    def __init__(self, file: str, unit: str = "") -> None:
        """Start without reports.

        Args:
            file: the file that has the lines.
            unit: the word before a line's number.
        """
        self._file, self._unit = file, unit
        self._said, self._alike = 0, dict[str, int]()
        self._others = list[list[int]]()  # the first and the last of each run of numbers

    def add(self, number: int, problem: str) -> None:
        """Report a line, or keep its number for the end."""
        alike = self._alike.get(problem, 0)
        if self._said < self._MOST and alike < self._MOST_ALIKE:
            self._said, self._alike[problem] = self._said + 1, alike + 1
            click.echo(f"{self._file}:{self._unit}{number}: {problem}", err=True)
        elif self._others and self._others[-1][1] == number - 1:
            self._others[-1][1] = number
        else:
            self._others.append([number, number])

    def end(self) -> None:
        """Report the numbers that were kept."""
        if not self._others:
            return
        runs = [f"{first}" if first == last else f"{first}-{last}" for first, last in self._others]
        count = sum(last - first + 1 for first, last in self._others)
        click.echo(f"{self._file}: {count:,} more, lines {join_some(runs, 20)}", err=True)


def cut_lines(count: int, unit: str, longest: int | None) -> str:
    """A sentence about translations that were cut."""
    at = "" if longest is None else f" at {longest:,} tokens"
    many = f"1 {unit.removesuffix('s')} was" if count == 1 else f"{count:,} {unit} were"
    return f"{many} cut{at}, before the translation's end; see --max-length"


def unknown_tokens(tokens: int, lines: int, unit: str) -> str:
    """A sentence about source tokens that the model does not know."""
    what = "1 token" if tokens == 1 else f"{tokens:,} tokens"
    where = f"1 {unit.removesuffix('s')}" if lines == 1 else f"{lines:,} {unit}"
    return (
        f"{what} of the source, in {where}, unknown to the model, which encodes all of them as the "
        "unknown token. Does the source contain markup, or another language or alphabet?"
    )


class LineTimer:
    """Tells when the next progress line is due if there is no bar: every 30 seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def is_due(self) -> bool:
        """Whether a line is due; if so, the time starts again."""
        now = time.monotonic()
        if now - self._said < LINE_EVERY:
            return False
        self._said = now
        return True


@contextlib.contextmanager
def file_bar(title: str, total: Callable[[], int | None]) -> Iterator[FileBar]:
    """Give a callback that shows a file's progress, lines per second, and the time left.

    Args:
        title: shown until the first line is done.
        total: returns the total size, None if it is unknown.

    Yields:
        a callback that takes a line's number, from 1, and how much of ``total`` is done.
    """
    start, first = time.monotonic(), -1

    def text(number: int) -> str:
        nonlocal first
        first = number - 1 if first < 0 else first  # a resumed run starts later
        rate = (number - first) / max(time.monotonic() - start, 0.001)
        return f"line {number:,}, {rate:,.0f} a second"

    console = bar_console()
    if console is None:
        yield _file_lines(text, total)
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeElapsedColumn(), "left:",
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total())
        yield lambda number, done: bar.update(task, completed=done, description=text(number))


def _file_lines(text: Callable[[int], str], total: Callable[[], int | None]) -> FileBar:
    timer = LineTimer()

    def say(number: int, done: int) -> None:
        described = text(number)
        if timer.is_due():
            whole = total()
            share = f", {done / whole:.0%}" if whole else ""
            click.echo(f"{described}{share}", err=True)

    return say


class SoundBar:
    """Shows how much of a sound has been transcribed: a bar, or now and then a line."""

    def __init__(self, names: Sequence[str], bar: "ProgressOfRich | None") -> None:
        """Show the first sound.

        Args:
            names: of all sounds.
            bar: None where stderr is no terminal.
        """
        self._names, self._bar, self._timer = names, bar, LineTimer()
        self._task = None if bar is None else bar.add_task(Path(names[0]).name, total=None)

    def show(self, number: int, seconds: float, duration: float) -> None:
        """Show that some seconds of a sound are done."""
        times = " of ".join(str(timedelta(seconds=int(each))) for each in (seconds, duration))
        count = f", sound {number + 1} of {len(self._names)}" if len(self._names) > 1 else ""
        text = f"{Path(self._names[number]).name}: {times}{count}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=seconds, total=duration, description=text)
        elif self._timer.is_due():
            click.echo(text, err=True)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """No bar, while something else is written to the terminal."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()


@contextlib.contextmanager
def sound_bar(names: Sequence[str]) -> Iterator[SoundBar]:
    """Give a ``SoundBar``."""
    console = bar_console()
    if console is None:
        yield SoundBar(names, None)
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeElapsedColumn(), "left:",
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield SoundBar(names, bar)


Command = TypeVar("Command", bound=Callable[..., Any])


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Give a progress callback that shows a bar for each step, or a line if not on a terminal."""
    console = bar_console()
    with _lines() if console is None else _bars(console) as progress:
        yield progress


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


_LAYOUTS = sorted(LAYOUT_NAMES)


def checkpoint_options(command: Command) -> Command:
    """Add the options for reading a checkpoint."""
    for option in (
        click.option(
            "--format",
            "layout",
            metavar="NAME",
            help=f"Force a checkpoint layout instead of detecting it: {', '.join(_LAYOUTS[:-1])} "
            f"or {_LAYOUTS[-1]}.",
        ),
        click.option(
            "--rename",
            metavar="FILE",
            type=click.Path(),
            help="JSON file with a table of other names for the keys of a checkpoint that no "
            "layout reads. A config may contain it.",
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


no_pack_option = click.option(
    "--no-pack",
    is_flag=True,
    help="Write nothing next to the bundle. Default: files that let a large bundle open fast on "
    "this machine, as tfexport optimize does.",
)

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
        MissingDependencyError: an import failed; the message has the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        # A package names its own extra only because of another error.
        cause = error.__cause__ if isinstance(error, MissingDependencyError) else error
        name = cause.name if isinstance(cause, ImportError) else None
        if name is None or name.partition(".")[0] == "tfexport":
            raise
        need = f"this needs {name}, which is not installed and is part of the extra {extra!r}"
        raise missing_dependency(need, extra) from error


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of tfexport after the block, as lines on stderr with options as flags."""
    warnings_shown: list[TfexportWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", TfexportWarning)
        others = warnings.showwarning

        def show(message: Warning | str, *details: Any, **more: Any) -> None:
            if isinstance(message, TfexportWarning):
                warnings_shown.append(message)
            else:
                others(message, *details, **more)

        warnings.showwarning = show
        try:
            yield
        finally:
            for warning in warnings_shown:
                click.echo(f"warning: {warning.message.spelled(spell)}", err=True)


def human_size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
