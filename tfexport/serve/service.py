"""The state of a server, which all its protocols share."""

import os
from collections.abc import Sequence

from tfexport.serve.access import Keys
from tfexport.serve.bodies import BodyMemory
from tfexport.serve.call import Call
from tfexport.serve.glossaries import GlossaryFolder
from tfexport.serve.metrics import Metrics, ModelObserver
from tfexport.serve.models import ServerModels
from tfexport.serve.scoring import ScoringPool
from tfexport.serve.settings import Settings

_BYTES_OF_LONG_BODIES = 64 << 20  # of all requests together, at least


class Service:
    """The open models of a server, with its settings, keys and metrics.

    Attributes:
        settings: the settings of the server.
        keys: the keys of its callers.
        metrics: its metrics.
        models: by name.
        glossaries: those that callers have stored.
        scoring: the threads in which targets are scored.
        max_body: bytes of a request's body.
        bodies: the memory for bodies.
        stopping: whether new requests are refused.
        active: requests that were accepted and are not answered yet; the server stops after them.
        read: those of them whose bodies are complete.
    """

    def __init__(self, bundles: Sequence[str | os.PathLike[str]], settings: Settings) -> None:
        """Open bundles; see ``ServerModels``.

        Raises:
            ConfigError: settings, names or keys are wrong.
            TfexportError: a bundle cannot be used.
            OSError: the file of keys cannot be read.
        """
        self.settings, self.keys = settings, Keys.read(settings.key_file)
        self.glossaries = GlossaryFolder(settings.glossaries)
        self.metrics = Metrics(lambda: self.models.stats())
        self.models = ServerModels(
            bundles, settings, lambda name: ModelObserver(self.metrics, name)
        )
        self.scoring = ScoringPool(settings.max_queue)
        files = any(model.engine.manifest.media is not None for model in self.models)
        self.max_body = settings.max_body_of_files if files else settings.max_body
        self.bodies = BodyMemory(max(_BYTES_OF_LONG_BODIES, 4 * self.max_body))
        self._room = sum(model.max_queue + model.slots for model in self.models)
        self.stopping = False
        self.active, self.read = set[Call](), set[Call]()

    @property
    def overloaded(self) -> bool:
        """Whether as many requests are answered now as may run and wait.

        More are refused before they are read, which is faster. Requests with incomplete bodies do
        not count, so slow clients do not exclude others.
        """
        return len(self.read) >= self._room

    def seconds_to_clear(self) -> float:
        """An estimate of how long the waiting requests will take."""
        return max(model.scheduler.seconds_to_clear() for model in self.models)

    async def reload(self) -> None:
        """Open bundles that were replaced; see ``ServerModels.reload``."""
        await self.models.reload(
            lambda name, outcome: self.metrics.reloads.labels(name, outcome).inc()
        )

    def close(self) -> None:
        """Stop all threads."""
        self.scoring.close()
        self.models.close()
