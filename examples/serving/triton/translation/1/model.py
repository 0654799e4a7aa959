"""A bundle as a model of Triton's Python backend: texts in, translations out.

Requests that Triton hands over together share a batch; one that is wrong costs the others nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from tfexport.errors import TfexportError
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits, Submission


class TritonPythonModel:
    """Triton makes one of it for each instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle that config.pbtxt names."""
        config = json.loads(args["model_config"])
        given = {name: held["string_value"] for name, held in config["parameters"].items()}
        self.options: dict[str, Any] = json.loads(given.get("options", "{}"))
        self.engine = Engine(Path(given["bundle"]), ThreadLayout(threads=int(given["threads"])))
        slots = int(config["max_batch_size"])
        self.scheduler = Scheduler(self.engine, SchedulerLimits(slots=slots))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Translate the texts of some requests; one response each."""
        submitted = [self._submit(request) for request in requests]
        return [self._respond(request, found)
                for request, found in zip(requests, submitted, strict=True)]  # fmt: skip

    def finalize(self) -> None:
        """Stop the threads."""
        self.scheduler.close()
        self.engine.close()

    def _submit(self, request: Any) -> Submission | TfexportError:
        texts = [value.decode(errors="replace") for value in _texts(request).reshape(-1)]
        try:
            options, prefixes = self.engine.resolver.resolve_rows(self.options, None, len(texts))
            rows = [
                self.engine.request(text, number, prefix, options, as_ids=False)
                for number, (text, prefix) in enumerate(zip(texts, prefixes, strict=True))
            ]
            return self.scheduler.submit(rows, options)
        except TfexportError as error:
            return error

    def _respond(self, request: Any, submitted: Submission | TfexportError) -> Any:
        try:
            if isinstance(submitted, TfexportError):
                raise submitted
            found = submitted.future.result()
        except TfexportError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        texts = [self.engine.texts.decode(hypotheses[0].tokens) for hypotheses in found]
        made = np.array([text.encode() for text in texts], object).reshape(_texts(request).shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("translation", made)])


def _texts(request: Any) -> Any:
    return pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
