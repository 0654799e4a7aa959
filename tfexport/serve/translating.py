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
from tfexport.serve.texts import Asked, OnStep, Rows, Translated, assemble, prepare, submit

Result = TypeVar("Result")

LONG = 2000  # characters, whose tokenization would hold up other requests
LONG_BODY = 8 << 10  # bytes, likewise to be read
# Few, so that who asks for much has his turn after others, and not the event loop's.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tfexport-aside")


def check_size(
    settings: Settings, call: Call, *texts: Sequence[Sized], prefixes: Sequence[Sized] = ()
) -> None:
    """Count the texts of a call, and refuse too many.

    Args:
        settings: of the server.
        call: that gets the numbers.
        *texts: lists of texts, or of rows of ids.
        prefixes: of translations, which have the limit of the texts together with them.

    Raises:
        RequestError: naming what there is too much of.
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
    """Translate the texts of a call with a model that it uses.

    Raises:
        RequestError: it is wrong, or its time is over.
        TfexportError: likewise, by the library.
    """
    rows, submission = await begin(model, asked, call)
    found = await outcome(submission, call)
    metrics.characters += call.characters
    return await aside(call, lambda: assemble(model, rows, found))


async def begin(
    model: Model, asked: Asked, call: Call, on_step: OnStep | None = None
) -> tuple[Rows, Submission]:
    """Make rows of texts and hand them to the model's scheduler, where the call's end cancels them.

    Raises:
        RequestError: the call is wrong, or its time is over.
        TfexportError: likewise, by the library; or too many requests wait.
    """
    made = list[Submission]()

    def leave() -> None:
        call.ended = True
        for submission in made:
            submission.cancel()

    def work() -> Rows:
        rows = prepare(model, asked)
        made.append(submit(model, rows, call.deadline, on_step))
        if call.ended:  # meanwhile: whoever comes second of both cancels
            made[0].cancel()
        return rows

    call.exits.callback(leave)
    return await aside(call, work), made[0]


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
