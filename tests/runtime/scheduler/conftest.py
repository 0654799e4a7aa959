"""An engine and schedulers over it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Observer, Scheduler, SchedulerLimits


@pytest.fixture
def engine(tiny_bundle: Path) -> Engine:
    return Engine(tiny_bundle, ThreadLayout(threads=1))


@pytest.fixture
def schedule(engine: Engine) -> Iterator[Callable[..., Scheduler]]:
    made: list[Scheduler] = []

    def make(observer: Observer | None = None, **limits: int) -> Scheduler:
        made.append(Scheduler(engine, SchedulerLimits(**limits), observer))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()
