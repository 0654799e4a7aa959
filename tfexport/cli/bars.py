"""Progress of commands: bars on terminals that can redraw a line, now and then a line elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 30.0  # seconds, where there is no bar
FileBar = Callable[[int, int], object]


def bar_console() -> "Console | None":
    """A console on stderr; None if that is no terminal, or a dumb one, which redraws nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


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
    start, first = time.monotonic(), 0

    def text(number: int) -> str:
        nonlocal first
        first = first or number  # a resumed run starts later
        rate = (number - first + 1) / max(time.monotonic() - start, 0.001)
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
