"""Scoring of targets, in a few threads."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfexport.errors import InputError
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scorer import Scorer
from tfexport.runtime.search import Request, ResolvedOptions
from tfexport.runtime.text.codec import LanguagePair
from tfexport.serve.call import Call
from tfexport.serve.failures import busy, late, spelled, wrong
from tfexport.serve.models import ServerModel

THREADS = 2
_PAIRS_AT_A_TIME = 32  # after each, the caller may have gone

Pairs = list[tuple[Request | None, list[int]]]


class ScoringPool:
    """A pool of threads that score pairs."""

    def __init__(self, max_queue: int) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tfexport-score")
        self._most, self._entered = THREADS + max_queue, 0

    async def score(
        self, model: ServerModel, pairs: Pairs, options: ResolvedOptions, call: Call
    ) -> list[Hypothesis]:
        """Score pairs of a call.

        Raises:
            RequestError: too many requests wait, or the deadline has passed.
        """
        if self._entered >= self._most:
            raise busy(f"{self._most - THREADS} requests are waiting", 1.0)
        gone = threading.Event()
        call.exits.callback(gone.set)
        self._entered += 1
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, _score, model, pairs, options, gone)
        job.add_done_callback(self._leave)
        done, _ = await asyncio.wait([job], timeout=call.left)
        if not done:
            raise late()
        return job.result()

    def _leave(self, job: "asyncio.Future[list[Hypothesis]]") -> None:
        self._entered -= 1
        if not job.cancelled():
            job.exception()  # read the error, even if the caller has gone

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(cancel_futures=True)


def prepare_pairs(
    model: ServerModel, sources: Sequence[str], targets: Sequence[str], given: Mapping[str, Any],
    language_pair: LanguagePair,
) -> tuple[Pairs, ResolvedOptions]:  # fmt: skip
    """Check and tokenize pairs.

    Raises:
        ConfigError: options are wrong.
        RequestError: pairs are wrong.
    """
    scorer = Scorer(model.engine)
    options = scorer.resolve(given, language_pair)
    pairs: Pairs = []
    problems = []
    for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
        try:
            pairs.append(scorer.request(source, target, place, options))
        except InputError as error:
            problems.append(f"pair {place}: {spelled(error)}")
    if problems:
        raise wrong(problems)
    model.check_lengths([request for request, _ in pairs], [ids for _, ids in pairs])
    return pairs, options


def _score(
    model: ServerModel, pairs: Pairs, options: ResolvedOptions, gone: threading.Event
) -> list[Hypothesis]:
    scorer, found = Scorer(model.engine), list[Hypothesis]()
    for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
        if gone.is_set():
            break
        requests, targets = zip(*pairs[begin : begin + _PAIRS_AT_A_TIME], strict=True)
        found += scorer.run(requests, targets, options)
    return found
