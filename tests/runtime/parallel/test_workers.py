"""Threads of a translator: callbacks that call it, closing it, and forks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import VERSION_1
from tfexport.errors import ConfigError
from tfexport.runtime import Translator
from tfexport.runtime.parallel.workers import ClosedError, Workers

TEXTS = ["w5 w6", "w7", "w8 w9 w4"]


def run_in_time(code: str, *, seconds: int = 60) -> str:
    """A program's output; one that hangs is killed, and fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(VERSION_1)],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_callback_may_call_its_translator(asynchronous: bool) -> None:
    """With a queue of one, which the callback's own batch fills."""
    out = run_in_time(f"""
import sys
from tfexport.runtime import Translator
translator = Translator(sys.argv[1], 1, workers=2, queue_size=1)
expected = [r.text for r in translator.translate({TEXTS}, max_length=4)]
def call(step):
    found = translator.translate({TEXTS}, max_length=4, asynchronous={asynchronous}, batch_size=1)
    found = found.result() if {asynchronous} else found
    assert [r.text for r in found] == expected
for each in (False, True):
    made = translator.translate({TEXTS}, max_length=4, batch_size=1, callback=call,
                                asynchronous=each)
    made = made.result() if each else made
    assert [r.text for r in made] == expected
print("done")
translator.close()
""")
    assert out == "done\n"


def test_a_worker_that_closes_its_workers_does_not_wait_for_itself() -> None:
    workers = Workers(1, 1)
    workers.submit(workers.close).result(timeout=30)
    with pytest.raises(ClosedError):
        workers.submit(print)


def test_closing_loses_nothing_that_another_thread_submits() -> None:
    translator = Translator(VERSION_1, 1, workers=2)
    expected = [result.text for result in translator.translate(TEXTS, max_length=3)]
    found: list[list[str | None]] = []
    errors: list[BaseException] = []
    until = time.monotonic() + 1.5

    def call() -> None:
        try:
            while time.monotonic() < until:
                made = translator.translate(TEXTS, max_length=3, batch_size=1)
                found.append([result.text for result in made])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        translator.close()
    assert not errors
    assert len(found) > 10
    assert all(made == expected for made in found)
    translator.close()


def test_closing_lets_a_callback_finish_that_calls_its_translator() -> None:
    translator = Translator(VERSION_1, 1, workers=1)
    inside, closing = threading.Event(), threading.Event()

    def call(step: Any) -> None:
        inside.set()
        closing.wait(30)
        time.sleep(0.1)  # until close waits for this worker
        translator.translate(TEXTS[:1], max_length=2)

    made: Future[Any] = translator.translate(
        TEXTS[:1], max_length=1, callback=call, asynchronous=True
    )
    assert inside.wait(30)
    closer = threading.Thread(target=translator.close, daemon=True)
    closer.start()
    closing.set()
    closer.join(30)
    assert not closer.is_alive()
    assert made.result(timeout=30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("options", "before", "outcome"),
    [
        ("1, workers=2", "translator.translate(['w5', 'w6'], batch_size=1)", "ForkError"),
        ("1", "translator.translate(['w5'], asynchronous=True).result()", "ForkError"),
        ("4", "translator.translate(['w5'])", "ForkError"),
        ("1", "translator.translate(['w5'])", "decoded"),  # it has no threads
    ],
)
def test_a_fork_is_told_to_open_its_own(options: str, before: str, outcome: str) -> None:
    """Without, the child waits for threads that it does not have, or crashes in them."""
    out = run_in_time(f"""
import os, sys, warnings
from tfexport.errors import ForkError
from tfexport.runtime import Translator
warnings.simplefilter("ignore")  # newer Pythons warn of forks
translator = Translator(sys.argv[1], {options})
{before}
child = os.fork()
if child == 0:
    for asynchronous in (False, True):
        try:
            made = translator.translate(["w5", "w6"], batch_size=1, asynchronous=asynchronous)
            print("decoded", len(made.result() if asynchronous else made), flush=True)
        except ForkError as error:
            assert "Open the translator after the fork" in str(error)
            print("ForkError", flush=True)
    translator.close()
    with Translator(sys.argv[1], 2, workers=2) as own:
        own.translate(["w5", "w6"], batch_size=1)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
translator.translate(["w5"])
""")
    assert [line.split()[0] for line in out.splitlines()] == [outcome] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 100_000}, "threads: 100000 is not an integer from 0 to 1024"),
        ({"threads": 10**30}, "threads: 10{30} is not"),
        ({"workers": 10**6}, "workers: 1000000 is not"),
        ({"queue_size": -(10**5000)}, "queue_size: a number of more than 60 digits"),
        ({"queue_size": 0}, "from 1 to 1000000"),
        ({"threads": 64, "workers": 64}, "64 workers of 64 threads are more than 1024"),
        ({"threads": "4"}, "threads: '4' is not"),
    ],
)
def test_numbers_of_threads_have_bounds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Translator(VERSION_1, **options)


def test_a_translator_says_what_it_is(tmp_path: Path) -> None:
    shown = repr(Translator(VERSION_1, 2, workers=3))
    assert str(VERSION_1) in shown
    assert "3 workers" in shown


def test_trying_to_submit_takes_all_jobs_or_none() -> None:
    workers = Workers(1, 3)
    go_on = threading.Event()
    running = workers.try_submit(go_on.wait, [(60,)])
    assert running is not None
    assert workers.try_submit(int, [(1,), (2,), (3,)]) is None
    taken = workers.try_submit(int, [(1,), (2,)])
    assert taken is not None
    assert workers.try_submit(int, [(1,)]) is None
    assert workers.try_submit(int, []) == []
    go_on.set()
    assert [job.result(60) for job in taken] == [1, 2]
    workers.close()
    with pytest.raises(ClosedError):
        workers.try_submit(int, [(1,)])


def test_a_worker_that_tries_to_submit_does_it_at_once() -> None:
    workers = Workers(1, 1)

    def inner() -> list[int]:
        jobs = workers.try_submit(int, [(1,), (2,)])
        return [job.result(0) for job in jobs or []]

    assert workers.submit(inner).result(60) == [1, 2]
    workers.close()


def test_a_start_that_fails_gives_all_its_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, held = Workers(1, 4), threading.Event()
    running = workers.submit(held.wait, 60)
    start, started = workers._pool.submit, list[Future[int]]()

    def fail_at_the_third(work: Callable[..., Any], *arguments: Any) -> Any:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(start(work, *arguments))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(workers._pool, "submit", fail_at_the_third)
        with pytest.raises(RuntimeError, match="new thread"):
            workers.try_submit(int, [(1,), (2,), (3,)])
    assert all(job.cancelled() for job in started)
    again = workers.try_submit(int, [(1,), (2,), (3,)])
    assert again is not None
    assert workers.try_submit(int, [(1,)]) is None
    held.set()
    assert running.result(60)
    assert [job.result(60) for job in again] == [1, 2, 3]
    workers.close()
