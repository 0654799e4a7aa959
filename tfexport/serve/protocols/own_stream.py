"""Translation of one text as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi.responses import Response, StreamingResponse

from tfexport.errors import TfexportError
from tfexport.runtime.options import Step
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Submission
from tfexport.serve.call import Call
from tfexport.serve.failures import RequestError, as_failure
from tfexport.serve.live_text import LiveText
from tfexport.serve.metrics import Metrics
from tfexport.serve.models import Model
from tfexport.serve.protocols.own_results import to_json, translation
from tfexport.serve.texts import Asked, Rows, assemble
from tfexport.serve.translating import aside, begin, outcome, seen

HEARTBEAT = 15.0  # seconds of silence, after which proxies may close a connection
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_AT_ONCE = 64  # tokens of an event
_PING = ": ping\n\n"


async def stream(metrics: Metrics, model: Model, asked: Asked, call: Call) -> Response:
    """Begin to translate a text; what is wrong is said before the first event."""
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[Step]()

    def told(step: Step) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, step)

    rows, submission = await begin(model, asked, call, told)
    metrics.characters += call.characters
    events = _events(model, rows, submission, steps, call)
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)


async def _events(
    model: Model, rows: Rows, submission: Submission, steps: "asyncio.Queue[Step]", call: Call
) -> AsyncIterator[str]:
    token = None
    found = asyncio.ensure_future(outcome(submission, call))
    found.add_done_callback(seen)
    try:
        live = await aside(call, lambda: LiveText(model, rows))
        while not found.done():
            token = asyncio.ensure_future(steps.get())
            waiting = {token, found}
            await asyncio.wait(waiting, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            if token.done():
                for piece in _shown(live, token.result(), steps):
                    yield _event({"text": piece})
                continue
            token.cancel()
            if not found.done():
                yield _PING
        hypotheses = found.result()
        while not steps.empty():
            for piece in _shown(live, steps.get_nowait(), steps):
                yield _event({"text": piece})
        for piece in live.end():
            yield _event({"text": piece})
        last = await aside(call, lambda: _whole(model, rows, hypotheses, call))
        yield f'data: {{"done": true, "translation": {last}}}\n\n'
    except (RequestError, TfexportError) as error:
        failure = error if isinstance(error, RequestError) else as_failure(error)
        if failure is None:
            raise
        call.problem = failure.logged
        yield _event({"error": failure.message, "status": failure.status})
    finally:
        found.cancel()
        if token is not None:
            token.cancel()


def _shown(live: LiveText, step: Step, steps: "asyncio.Queue[Step]") -> Iterator[str]:
    """What a token shows; in one event with those after it if too many wait to keep up."""
    pieces = [*live.add(step)]
    if steps.qsize() >= _AT_ONCE:
        for _ in range(_AT_ONCE):
            pieces += live.add(steps.get_nowait())
    text = "".join(pieces)
    if text:
        yield text


def _whole(model: Model, rows: Rows, found: Sequence[list[Hypothesis]], call: Call) -> str:
    (made,) = assemble(model, rows, found)
    return to_json(translation(made, call)).decode()


def _event(values: dict[str, Any]) -> str:
    return f"data: {json.dumps(values)}\n\n"
