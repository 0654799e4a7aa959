"""Progress of commands: bars on terminals that can redraw a line, now and then a line elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tfexport.errors import join_some

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 30.0  # seconds, where there is no bar
FileBar = Callable[[int, int], object]


def bar_console() -> "Console | None":
    """A console on stderr; None if that is no terminal, or a dumb one, which redraws nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class ProblemLines:
    """Tells on stderr of lines that could not be done; of many, the first few and which others."""

    _MOST, _MOST_ALIKE = 20, 5

    def __init__(self, file: str, unit: str = "") -> None:
        """Tell of nothing yet.

        Args:
            file: that has the lines.
            unit: before a line's number.
        """
        self._file, self._unit = file, unit
        self._said, self._alike = 0, dict[str, int]()
        self._others = list[list[int]]()  # the first and the last of each run of numbers

    def add(self, number: int, problem: str) -> None:
        """Tell of a line, or keep its number for the end."""
        alike = self._alike.get(problem, 0)
        if self._said < self._MOST and alike < self._MOST_ALIKE:
            self._said, self._alike[problem] = self._said + 1, alike + 1
            click.echo(f"{self._file}:{self._unit}{number}: {problem}", err=True)
        elif self._others and self._others[-1][1] == number - 1:
            self._others[-1][1] = number
        else:
            self._others.append([number, number])

    def end(self) -> None:
        """Tell which others there are."""
        if not self._others:
            return
        runs = [f"{first}" if first == last else f"{first}-{last}" for first, last in self._others]
        count = sum(last - first + 1 for first, last in self._others)
        click.echo(f"{self._file}: {count:,} more, lines {join_some(runs, 20)}", err=True)


def cut_lines(count: int, unit: str, longest: int | None) -> str:
    """A sentence about translations that have no end."""
    at = "" if longest is None else f" at {longest:,} tokens"
    many = f"1 {unit.removesuffix('s')} was" if count == 1 else f"{count:,} {unit} were"
    return f"{many} cut{at}, before the translation's end; see --max-length"


def unknown_tokens(tokens: int, lines: int, unit: str) -> str:
    """A sentence about source tokens that the model does not know."""
    what = "1 token" if tokens == 1 else f"{tokens:,} tokens"
    where = f"1 {unit.removesuffix('s')}" if lines == 1 else f"{lines:,} {unit}"
    return (
        f"{what} of the source, in {where}, unknown to the model, which reads them all alike: "
        "markup, another language or alphabet?"
    )


class LineTimer:
    """Says when the next line is due where there is no bar: every 30 seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is, from which the next one's time runs."""
        now = time.monotonic()
        if now - self._said < LINE_EVERY:
            return False
        self._said = now
        return True


@contextlib.contextmanager
def file_bar(title: str, total: Callable[[], int | None]) -> Iterator[FileBar]:
    """Give a callback that shows how far a file is, how many lines a second, and the time left.

    Args:
        title: shown until the first line is done.
        total: gives the size of the whole, None if it is unknown.

    Yields:
        a callback for a line's number, from 1, and how much of ``total`` is done.
    """
    start, first = time.monotonic(), -1

    def text(number: int) -> str:
        nonlocal first
        first = number - 1 if first < 0 else first  # a resumed run starts later
        rate = (number - first) / max(time.monotonic() - start, 0.001)
        return f"line {number:,}, {rate:,.0f} a second"

    console = bar_console()
    if console is None:
        yield _lines(text, total)
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


def _lines(text: Callable[[int], str], total: Callable[[], int | None]) -> FileBar:
    timer = LineTimer()

    def say(number: int, done: int) -> None:
        described = text(number)
        if timer.is_due():
            whole = total()
            share = f", {done / whole:.0%}" if whole else ""
            click.echo(f"{described}{share}", err=True)

    return say
