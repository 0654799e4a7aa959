"""Calls of a scheduler."""

import threading
from collections.abc import Callable
from typing import Any

from tfexport.runtime.engine import Engine
from tfexport.runtime.options import Step
from tfexport.runtime.scheduler import Scheduler, Submission

LONG = {"max_length": 60, "min_length": 59}


def submit(
    scheduler: Scheduler,
    engine: Engine,
    rows: int = 1,
    on_step: Callable[[Step], object] | None = None,
    deadline: float | None = None,
    **keywords: Any,
) -> Submission:
    options, (prefix,) = engine.resolver.resolve(keywords, [None])
    requests = [
        engine.request([5 + i % 9, 7, 9], i, prefix, options, as_ids=True) for i in range(rows)
    ]
    return scheduler.submit(requests, options, deadline=deadline, on_step=on_step)


class Gate:
    """Holds up the scheduler at a row's first token until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, step: Step) -> None:
        self.reached.set()
        assert self.open.wait(30)
