"""The engine beneath the public calls: requests, batches and workers."""

import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.combinations import few_of
from tfexport.errors import BundleError, InputError
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine, Hypotheses, Job, requests_of
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Scheduler

ROWS = [[5, 6], [7], [8, 9, 4]]


@pytest.fixture(name="engine")
def _engine(tiny_bundle: Path) -> Iterator[Engine]:
    engine = Engine(tiny_bundle, ThreadLayout(workers=1, threads=1, queue_size=2))
    yield engine
    engine.close()


def submit(engine: Engine, rows: list[list[int]], **keywords: Any) -> "Future[Hypotheses] | None":
    options, prefixes = engine.resolver.resolve_rows(keywords, None, len(rows))
    requests = requests_of(engine, rows, prefixes, options, as_ids=True)
    return engine.try_submit(requests, options, lambda found: found)


def test_what_finds_room_is_decoded(engine: Engine, tiny_bundle: Path) -> None:
    found = submit(engine, [*ROWS, []], max_length=5)
    assert found is not None
    expected = Translator(tiny_bundle, threads=1).generate([*ROWS, []], max_length=5)
    assert [row[0].tokens for row in found.result(60)] == [
        result.hypotheses[0].tokens for result in expected
    ]


def test_a_full_queue_refuses_at_once_and_takes_again_when_it_is_empty(engine: Engine) -> None:
    inside, go_on = threading.Event(), threading.Event()
    decoded: list[int] = []

    def hold(step: Any) -> None:
        decoded.append(step.row)
        inside.set()
        assert go_on.wait(60)

    running = submit(engine, ROWS[:1], max_length=1, callback=hold)
    assert running is not None
    assert inside.wait(60)
    # One batch runs, one more may wait.
    assert submit(engine, ROWS, max_length=1, batch_size=1) is None
    waiting = submit(engine, ROWS[:1], max_length=1)
    assert waiting is not None
    assert submit(engine, ROWS[:1], max_length=1) is None
    go_on.set()
    assert len(running.result(60)) == len(waiting.result(60)) == 1
    assert decoded == [0], "what was refused is not decoded"
    for _ in range(3):  # a refusal keeps no room
        again = submit(engine, ROWS[:2], max_length=1, batch_size=1)
        assert again is not None
        again.result(60)


def test_more_batches_than_the_queue_takes_are_never_taken(engine: Engine) -> None:
    assert submit(engine, ROWS, max_length=1, batch_size=1) is None


def test_a_closed_engine_starts_other_workers(engine: Engine) -> None:
    for _ in range(2):
        found = submit(engine, ROWS, max_length=1)
        assert found is not None
        engine.close()
        assert found.done(), "closing waits for what was submitted"


def test_bad_input_is_named_before_anything_is_submitted(engine: Engine) -> None:
    with pytest.raises(InputError, match=r"(?s)row 0: id 99 .*row 2: 'x' is not"):
        submit(engine, [[99], [5], ["x"]])  # type: ignore[list-item]


def test_a_translator_stands_on_one(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, 1, workers=2, queue_size=3) as translator:
        assert translator.engine.layout == ThreadLayout(2, 1, 3)
        assert translator.engine.manifest is translator.manifest


def test_first_results_of_a_stream_come_before_much_is_read(engine: Engine) -> None:
    options, _ = engine.resolver.resolve({"max_length": 2, "batch_size": 4})
    told, read = list[int](), 0

    def jobs() -> Iterator[Job]:
        nonlocal read
        for number in range(300):
            read += 1
            yield Job(number, engine.request([5 + number % 9], number, (), options, as_ids=True))

    stream = engine.decode_stream(jobs(), options, 64, told.append)
    next(stream)
    assert read == 4 + 8  # a batch, and two of the next chunk
    assert 1 + sum(1 for _ in stream) == 300
    assert sum(told) == 300
    assert max(told) == 4


USES: dict[str, Callable[[Translator], object]] = {
    "greedy": lambda opened: opened.generate(ROWS, max_length=4),
    "beams": lambda opened: opened.generate(ROWS, max_length=4, beam_size=2),
    "steps": lambda opened: opened.generate(ROWS, max_length=4, return_attention=True),
    "submitted": lambda opened: opened.generate(ROWS, max_length=4, asynchronous=True).result(60),
    "streamed": lambda opened: list(opened.stream("w5 w6", max_length=4)),
    "scored": lambda opened: opened.score(["w5"], ["w6"]),
    "scheduled": lambda opened: _schedule(opened.engine),
}


def _schedule(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    for keywords in ({}, {"return_attention": True}):  # of both kinds of batches
        options, prefixes = engine.resolver.resolve_rows({"max_length": 4, **keywords}, None, 3)
        scheduler.submit(requests_of(engine, ROWS, prefixes, options, as_ids=True), options)
    assert scheduler.drain(60)
    scheduler.close()


@pytest.fixture(name="counted")
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many models or graphs are in memory that were opened here, without a collector."""
    made: list[weakref.ref[object]] = []

    def count(where: str, name: str) -> None:
        module = import_module(where)
        make = getattr(module, name)

        def watched(*arguments: Any, **keywords: Any) -> object:
            found = make(*arguments, **keywords)
            made.append(weakref.ref(found))
            return found

        monkeypatch.setattr(module, name, watched)

    count("tfexport.runtime.model.session", "open_session")
    count("tfexport.runtime.model.native_model", "open_native")
    gc.collect()
    gc.disable()
    yield lambda: sum(each() is not None for each in made)
    gc.enable()


@pytest.mark.parametrize("use", few_of(USES, "greedy", "streamed", "scheduled"))
@pytest.mark.parametrize("ended", ["closed", "left to nobody"])
def test_the_model_leaves_the_memory_at_once(
    use: str, ended: str, counted: Callable[[], int], tiny_bundle: Path
) -> None:
    translator = Translator(tiny_bundle, 1)
    USES[use](translator)
    assert counted() > 0
    if ended == "closed":
        translator.close()
    else:
        del translator
    for _ in range(100):  # a worker's thread may be about to end
        if not counted():
            break
        time.sleep(0.05)
    assert counted() == 0


def test_what_was_closed_opens_again_unless_it_was_replaced(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_bundle, tmp_path / "a.bundle")
    translator = Translator(path, 1)
    before = translator.generate(ROWS, max_length=6)
    translator.close()
    assert translator.generate(ROWS, max_length=6) == before
    translator.close()
    os.utime(path / "weights.bin", ns=(1, 1))
    with pytest.raises(BundleError, match=r"was replaced or changed .* Open it again"):
        translator.generate(ROWS, max_length=6)


@pytest.mark.onnxruntime
def test_a_graph_that_is_loaded_late_is_of_the_bundle_that_was_opened(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    path, other = (shutil.copytree(tiny_bundle, tmp_path / name) for name in ("a", "b"))
    translator = Translator(path, 1)
    translator.generate(ROWS, max_length=6)
    path.rename(tmp_path / "aside")
    other.rename(path)
    with pytest.raises(BundleError, match="was replaced"):
        translator.generate(ROWS, max_length=6, beam_size=2)
