"""A bundle in Ray Serve, with continuous batching in each replica.

serve run ray_serve:app bundle=/models/de-en.bundle threads=2
curl localhost:8000 -d '{"texts": ["Guten Morgen!"], "options": {"beam_size": 4}}'
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tfexport.errors import ConfigError, InputError, QueueFullError
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits

SLOTS = 32  # rows that a replica decodes at a time


@serve.deployment(max_ongoing_requests=2 * SLOTS, max_queued_requests=256)
class Translation:
    """One replica: an open bundle and its scheduler, which batches the requests of all callers."""

    def __init__(self, bundle: str, threads: int) -> None:
        self.engine = Engine(Path(bundle), ThreadLayout(threads=threads))
        self.scheduler = Scheduler(self.engine, SchedulerLimits(slots=SLOTS))

    async def __call__(self, request: Request) -> Response:
        """Answer an HTTP request."""
        try:
            body = await request.json()
            texts = await self.translate(body["texts"], body.get("options", {}))
        except (ConfigError, InputError) as error:
            return JSONResponse({"error": str(error)}, 422)
        except (AttributeError, LookupError, TypeError, ValueError):
            return JSONResponse({"error": 'send {"texts": [...], "options": {...}}'}, 422)
        except QueueFullError as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        return JSONResponse({"translations": texts})

    async def translate(self, texts: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """Translate texts; other deployments call this through a handle."""
        resolved, prefixes = self.engine.resolver.resolve_rows(options, None, len(texts))
        rows = [
            self.engine.request(text, number, prefix, resolved, as_ids=False)
            for number, (text, prefix) in enumerate(zip(texts, prefixes, strict=True))
        ]
        submission = self.scheduler.submit(rows, resolved)
        try:
            found = await asyncio.wrap_future(submission.future)
        finally:
            submission.cancel()  # whose caller has gone; nothing to do for one that is done
        return [self.engine.texts.decode(hypotheses[0].tokens) for hypotheses in found]


def app(args: Mapping[str, str]) -> serve.Application:
    """The application: a replica takes as many CPUs of the cluster as it has threads."""
    threads = int(args.get("threads", "1"))
    deployment: serve.Deployment = Translation  # type: ignore[assignment]
    sized = deployment.options(
        num_replicas=int(args.get("replicas", "1")), ray_actor_options={"num_cpus": threads}
    )
    return sized.bind(args["bundle"], threads)
