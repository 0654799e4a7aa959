"""A server with one way of batching, in a separate process.

python -m benchmarks.serving_system BUNDLE SETUP, where SETUP is a JSON object of Setup's fields;
prints its port. All ways have the same HTTP layer.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.runtime.engine import Engine
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.results import Hypothesis
from tfexport.runtime.scheduler import Observer, Scheduler, SchedulerLimits, scheduler
from tfexport.runtime.scheduler.dynamic import DynamicBatch
from tfexport.runtime.scheduler.scheduler import BatchWorkers
from tfexport.runtime.scheduler.submission import Ended
from tfexport.serve import models, server
from tfexport.serve.service import Service
from tfexport.serve.settings import Settings

QUEUE = 100_000


@dataclass(frozen=True)
class Setup:
    """One way of batching.

    Attributes:
        kind: "continuous"; "static", batches that are decoded to their end; or "CTranslate2", the
            same with its translator.
        workers: batches at a time.
        threads: of each; more than 1 for CTranslate2 only.
        slots: rows of all batches together.
        engine: of the bundle.
        options: of CTranslate2's translator.
    """

    kind: str
    workers: int = 2
    threads: int = 1
    slots: int = 64
    engine: EngineName = "auto"
    options: dict[str, Any] = field(default_factory=dict)


class _PeerBatch(DynamicBatch):
    """Rows that CTranslate2 decodes, to their end."""

    def __init__(self, engine: Engine, capacity: int, observer: Observer, peer: Any) -> None:
        super().__init__(engine, capacity, observer)
        self._peer = peer

    def step(self) -> Ended:
        """See ``RunningBatch``."""
        rows, self.rows = self.rows, []
        found = self._peer.translate_batch(
            [[f"t{i}" for i in row.request.ids] for row in rows], beam_size=1,
            max_decoding_length=max(row.options.max_length for row in rows),
            min_decoding_length=0,
        )  # fmt: skip
        tokens = [[int(token[1:]) for token in result.hypotheses[0]] for result in found]
        return [(row, [Hypothesis(ids, 0.0)]) for row, ids in zip(rows, tokens, strict=True)]


def _peer_scheduler(setup: Setup, folder: Path) -> type[Scheduler]:
    import ctranslate2

    peer = ctranslate2.Translator(
        str(folder / "ctranslate2"), device="cpu", inter_threads=setup.workers,
        intra_threads=setup.threads, **setup.options,
    )  # fmt: skip

    class PeerScheduler(Scheduler):
        def __init__(self, engine: Engine, limits: SchedulerLimits, observer: Observer) -> None:
            super().__init__(engine, limits, observer)
            self.continuous = False
            share = limits.slots // setup.workers
            batches = [_PeerBatch(engine, share, observer, peer) for _ in range(setup.workers)]
            self._batch_workers = [BatchWorkers("peer", batches, observer)]

    return PeerScheduler


def main(bundle: Path, setup: Setup) -> None:
    """Serve until a signal ends it."""
    if setup.kind != "continuous":
        scheduler._why_not = lambda engine: "batches are static"
    if setup.kind == "CTranslate2":
        models.Scheduler = _peer_scheduler(setup, bundle.parent)  # type: ignore[attr-defined]
    settings = Settings(
        threads=setup.workers, max_queue=QUEUE, slots=setup.slots, timeout=3600.0,
        engine=setup.engine,
    )  # fmt: skip
    service = Service([bundle], settings)
    bound = server.bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    server.run(service, bound, lambda: print(port, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Setup(**json.loads(sys.argv[2])))
