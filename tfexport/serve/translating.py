"""Translation within a call: limits, deadline, and threads for long work."""

import asyncio
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Submission
from tfexport.serve.call import Call
from tfexport.serve.failures import RequestError, late
from tfexport.serve.metrics import Metrics
from tfexport.serve.models import Model
from tfexport.serve.settings import Settings
from tfexport.serve.texts import Asked, OnStep, Rows, Translated, assemble, prepare, submit

Result = TypeVar("Result")

LONG = 2000  # characters; tokenizing more would delay other requests
LONG_BODY = 8 << 10  # bytes; parsing more would delay other requests
# Few threads, so that large requests wait for each other and not the event loop.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tfexport-aside")


def check_size(
    settings: Settings, call: Call, *texts: Sequence[Sized], prefixes: Sequence[Sized] = ()
) -> None:
    """Count the texts of a call, and refuse too many.

    Args:
        settings: the settings of the server.
        call: the call, which gets the numbers.
        *texts: lists of texts, or of rows of ids.
        prefixes: the prefixes of translations, which count towards the limit of the texts.

    Raises:
        RequestError: naming what is too large.
    """
    call.texts = max(map(len, texts))
    call.characters = sum(len(text) for several in texts for text in several)
    problems = []
    if call.texts > settings.max_texts:
        problems.append(f"{call.texts} texts are more than the {settings.max_texts} of a request")
    characters = call.characters + sum(map(len, prefixes))
    if characters > settings.max_characters:
        problems.append(
            f"{characters} characters are more than the {settings.max_characters} of a request"
        )
    if problems:
        raise RequestError(413, problems)


async def translate(metrics: Metrics, model: Model, asked: Asked, call: Call) -> list[Translated]:
    """Translate the texts of a call.

    Raises:
        RequestError: it is invalid, or its deadline has passed.
        TfexportError: likewise, by the library.
    """
    rows, submission = await submit_texts(model, asked, call)
    found = await outcome(submission, call)
    metrics.characters += call.characters
    return await in_thread(call, lambda: assemble(model, rows, found))


async def submit_texts(
    model: Model, asked: Asked, call: Call, on_step: OnStep | None = None
) -> tuple[Rows, Submission]:
    """Submit the rows of texts to the model's scheduler; the end of the call cancels them.

    Raises:
        RequestError: the call is invalid, or its deadline has passed.
        TfexportError: the library refuses it, or too many requests wait.
    """
    made = list[Submission]()

    def leave() -> None:
        call.ended = True
        for submission in made:
            submission.cancel()

    def work() -> Rows:
        rows = prepare(model, asked)
        made.append(submit(model, rows, call.deadline, on_step))
        if call.ended:  # if the call has ended meanwhile, cancel here
            made[0].cancel()
        return rows

    call.exits.callback(leave)
    return await in_thread(call, work), made[0]


async def outcome(submission: Submission, call: Call) -> list[list[Hypothesis]]:
    """The hypotheses of a submission.

    Raises:
        RequestError: the call's deadline has passed.
    """
    future = asyncio.wrap_future(submission.future)
    future.add_done_callback(seen)
    done, _ = await asyncio.wait([future], timeout=max(call.left, 0.0))
    if not done:
        raise late()
    return future.result()


def seen(future: "asyncio.Future[Any]") -> None:
    """Read a future's error, even if its caller has gone: asyncio logs errors that are not read."""
    if not future.cancelled():
        future.exception()


async def in_thread(call: Call, work: Callable[[], Result]) -> Result:
    """Run work on a call's body or texts, in a thread if they are long.

    Raises:
        RequestError: the deadline passed before it was done.
    """
    if call.characters < LONG and len(call.body) < LONG_BODY:
        return work()

    def checked() -> Result:
        call.check()
        return work()

    job = asyncio.get_running_loop().run_in_executor(_threads, checked)
    job.add_done_callback(seen)
    done, _ = await asyncio.wait([job], timeout=max(call.left, 0.0))
    if not done:
        job.cancel()
        raise late()
    return job.result()
