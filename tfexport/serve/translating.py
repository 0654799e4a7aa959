"""Translation within a call: its limits, its deadline, and threads for what takes long."""

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
from tfexport.serve.texts import Asked, Translated, assemble, prepare, submit

Result = TypeVar("Result")

LONG = 2000  # characters, whose tokenization would hold up other requests
LONG_BODY = 8 << 10  # bytes, likewise to be read
# Few, so that who asks for much has his turn after others, and not the event loop's.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tfexport-aside")


def check_size(settings: Settings, call: Call, *texts: Sequence[Sized]) -> None:
    """Count the texts of a call, and refuse too many.

    Raises:
        RequestError: naming what there is too much of.
    """
    call.texts = max(map(len, texts))
    call.characters = sum(len(text) for several in texts for text in several)
    problems = []
    if call.texts > settings.max_texts:
        problems.append(f"{call.texts} texts are more than the {settings.max_texts} of a request")
    if call.characters > settings.max_characters:
        problems.append(
            f"{call.characters} characters are more than the {settings.max_characters} of a request"
        )
    if problems:
        raise RequestError(413, problems)


async def translate(metrics: Metrics, model: Model, asked: Asked, call: Call) -> list[Translated]:
    """Translate the texts of a call with a model that it uses.

    Raises:
        RequestError: it is wrong, or its time is over.
        TfexportError: likewise, by the library.
    """
    rows = await aside(call, lambda: prepare(model, asked))
    submission = submit(model, rows, call.deadline)
    call.exits.callback(submission.cancel)
    found = await outcome(submission, call)
    metrics.characters += call.characters
    return await aside(call, lambda: assemble(model, rows, found))


async def outcome(submission: Submission, call: Call) -> list[list[Hypothesis]]:
    """The hypotheses of a submission.

    Raises:
        RequestError: the call's time is over.
    """
    future = asyncio.wrap_future(submission.future)
    future.add_done_callback(seen)
    done, _ = await asyncio.wait([future], timeout=max(call.left, 0.0))
    if not done:
        raise late()
    return future.result()


def seen(future: "asyncio.Future[Any]") -> None:
    """Look at a future's error, though its caller may have gone: asyncio logs those not seen."""
    if not future.cancelled():
        future.exception()


async def aside(call: Call, work: Callable[[], Result]) -> Result:
    """Do work on a call's body or texts, in a thread if they are long.

    Raises:
        RequestError: the call's time was over before it was done.
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
