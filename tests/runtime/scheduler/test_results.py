"""Rows through the scheduler are those of ``Translator``, whatever else runs."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.scheduler.drawn import Job, draw_jobs, same
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits, Submission

COUNT = int(os.environ.get("SCHEDULED_REQUESTS", "150"))


def open_engine(bundle: Path, workers: int = 1) -> Engine:
    return Engine(bundle, ThreadLayout(workers, threads=1))


def submit(scheduler: Scheduler, engine: Engine, job: Job) -> Submission:
    rows, keywords, _ = job
    options, (prefix,) = engine.resolver.resolve(keywords, [None])
    requests = [
        engine.request(row, number, prefix, options, as_ids=True) for number, row in enumerate(rows)
    ]
    return scheduler.submit(requests, options)


@pytest.mark.parametrize(("slots", "workers"), [(4, 1), (32, 1), (16, 2)])
def test_drawn_requests_are_as_each_alone(tiny_bundle: Path, slots: int, workers: int) -> None:
    jobs = draw_jobs(Translator(tiny_bundle, threads=1), COUNT, seed=slots)
    engine, draw = open_engine(tiny_bundle, workers), random.Random(slots)
    scheduler = Scheduler(engine, SchedulerLimits(max_queue=len(jobs), slots=slots))
    assert scheduler.continuous, scheduler.reason
    submitted = []
    for job in jobs:
        submitted.append(submit(scheduler, engine, job))
        if draw.random() < 0.2:
            time.sleep(draw.random() * 0.01)
    for job, submission in zip(jobs, submitted, strict=True):
        assert same(submission.future.result(60), job[2]), job[1]
    stats = scheduler.stats()
    assert (stats.waiting_requests, stats.waiting_rows) == (0, 0)
    assert scheduler.drain(10)
    assert scheduler.stats().running_rows == 0
    scheduler.close()


def test_texts_with_prefixes(tiny_bundle: Path) -> None:
    translator, engine = Translator(tiny_bundle, threads=1), open_engine(tiny_bundle)
    texts = [f"w{4 + i % 13} w7 w{5 + i % 3}" for i in range(12)]
    prefixes = [["w5 w6", None, "w9"][i % 3] for i in range(12)]
    scheduler = Scheduler(engine)
    ways: list[dict[str, Any]] = [
        {}, {"beam_size": 3}, {"sampling": True, "seed": 3, "num_hypotheses": 2},
    ]  # fmt: skip
    for keywords in ways:
        expected = translator.translate(texts, target_prefix=prefixes, **keywords)
        options, given = engine.resolver.resolve(keywords, prefixes)
        requests = [
            engine.request(text, number, prefix, options, as_ids=False)
            for number, (text, prefix) in enumerate(zip(texts, given, strict=True))
        ]
        found = scheduler.submit(requests, options).future.result(60)
        assert same(found, [result.hypotheses for result in expected])
    scheduler.close()


def test_blank_rows_have_an_empty_hypothesis(tiny_bundle: Path) -> None:
    engine = open_engine(tiny_bundle)
    scheduler = Scheduler(engine)
    options, _ = engine.resolver.resolve({}, [None])
    blank = engine.request("  ", 0, (), options, as_ids=False)
    full = engine.request("w5 w6", 1, (), options, as_ids=False)
    first, second = scheduler.submit([blank, full], options).future.result(60)
    assert first[0].tokens == []
    assert second[0].tokens
    assert scheduler.submit([blank], options).future.result(0)[0][0].tokens == []
    scheduler.close()
