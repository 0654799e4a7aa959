"""Progress bars of commands, on terminals that can redraw a line."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FileBar = Callable[[int, int], object]


def bar_console() -> "Console | None":
    """A console on stderr; None if that is no terminal, or a dumb one, which redraws nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


@contextlib.contextmanager
def file_bar(title: str, total: Callable[[], int | None]) -> Iterator[FileBar]:
    """Give a callback that shows how far a file is, how many lines a second, and the time left.

    Args:
        title: shown until the first line is done.
        total: gives the size of the whole, None if it is unknown; not called without a bar.

    Yields:
        a callback for a line's number, from 1, and how much of ``total`` is done.
    """
    from rich import progress

    console = bar_console()
    if console is None:
        yield lambda number, done: None
        return
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeElapsedColumn(), "left:",
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total())
        start, first = time.monotonic(), 0

        def advance(number: int, done: int) -> None:
            nonlocal first
            first = first or number  # a resumed run starts later
            rate = (number - first + 1) / max(time.monotonic() - start, 0.001)
            bar.update(task, completed=done, description=f"line {number:,}, {rate:,.0f} a second")

        yield advance
