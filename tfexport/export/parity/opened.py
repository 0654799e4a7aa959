"""An artifact that is open for its comparison: a bundle, or a graph that is a file by itself."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.bundle import WEIGHTS, Manifest
from tfexport.export.parity.eager_run import THREADS, EagerRun, Floats
from tfexport.graph_io import GraphSpec
from tfexport.model_src.build import build_decoder, build_encoder
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.interface import Generated
from tfexport.runtime.model.native_decoder import NativeDecoder
from tfexport.runtime.model.native_engine import why_not_native
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.model.onnxruntime_model import ModuleModel, OnnxModel
from tfexport.runtime.model.session import Graph
from tfexport.weight_table import read_weight_table


class OpenBundle:
    """An open bundle.

    Attributes:
        manifest: the manifest of the bundle.
        model: the bundle's model in onnxruntime.
        native: the model in the native engine; None if the engine cannot run it here.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest, self._folder = manifest, folder
        of_module = manifest.module is not None
        self.model = (ModuleModel if of_module else OnnxModel)(folder, manifest, THREADS)
        self.native: NativeModel | None = None
        if not why_not_native(manifest):
            kind = NativeDecoder if of_module else NativeModel
            self.native = kind(folder, manifest, THREADS)
        self._files = {role: folder / name for role, name in manifest.graphs.items()}
        self._graphs: dict[str, Graph] = {}

    def graph(self, spec: GraphSpec) -> Graph:
        """The session of the graph with the role ``spec.name``, checked against the spec.

        Raises:
            BundleError: it cannot be opened, or has other inputs and outputs.
        """
        if spec.name not in self._graphs:
            self._graphs[spec.name] = Graph(self._files[spec.name], spec, THREADS)
        return self._graphs[spec.name]

    def generate(self, run: EagerRun) -> Generated:
        """A greedy search over the rows of a run, of as many steps."""
        return self.model.generate(run.rows, run.steps)

    def memory(self, run: EagerRun) -> list[Floats]:
        """What the encoder gives for the rows of a run without padding: see ``EagerRun.memory``."""
        if isinstance(self.model, ModuleModel):
            tensors = self.model.encode(run.rows).memory.values()
            return [tensor.numpy().astype(np.float32) for tensor in tensors]
        return [unpadded(self.model.hidden_states(run.rows), run.rows)]

    @cached_property
    def stored_decoder(self) -> Transformer:
        """A module's recognised decoder: the weights of ``weights.json`` as our own modules."""
        config = TransformerConfig.from_dict(self.manifest.transformer or {})
        decoder = build_decoder(config, int(self.manifest.states[0].axes[-1])).eval()
        decoder.load_state_dict(self._stored(of_layers=False), assign=True)
        return decoder

    @cached_property
    def stored_layers(self) -> nn.Module:
        """The layers of the recognised encoder, likewise."""
        assert self.manifest.embedded_encoder is not None
        config, _ = self.manifest.embedded_encoder
        layers = build_encoder(TransformerConfig.from_dict(config)).eval()
        layers.load_state_dict(self._stored(of_layers=True), assign=True)
        return layers

    def _stored(self, of_layers: bool) -> dict[str, Tensor]:
        file = np.memmap(self._folder / WEIGHTS, np.uint8, "r")
        table = read_weight_table(self._folder, file.size)
        return {
            name: torch.tensor(weight.values(file))
            for name, weight in table.items()
            if name.startswith("encoder.") == of_layers
        }

    def attended(self, run: EagerRun) -> tuple[Tensor, Tensor]:
        """The memory of a recognised decoder, (B, S, W), and which of it is kept, (B, S)."""
        model = self.model
        assert isinstance(model, ModuleModel)
        if self.manifest.embedded_encoder is not None:
            states = self.stored_layers(torch.from_numpy(model.embeddings(run.rows)))
            return states, torch.ones(states.shape[:2], dtype=torch.int64)
        states, kept = map(torch.from_numpy, model.states(run.rows))
        return states, kept.long()


class OpenFile:
    """An open graph that is a file by itself.

    Attributes:
        spec: its inputs and outputs.
    """

    def __init__(self, path: Path, spec: GraphSpec) -> None:
        self.spec, self._graph = spec, Graph(path, spec, THREADS)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Run the graph on inputs by name; return all outputs."""
        return self._graph.run([tensor.name for tensor in self.spec.outputs], feeds)

    def generate(self, run: EagerRun) -> Generated:
        """A greedy search over the rows of a run, of as many steps."""
        feeds = run.eager.feeds(run.rows) | {graph_io.MAX_LENGTH: np.array(run.steps)}
        return Generated(*self.run(feeds))


def unpadded(states: Floats, rows: Sequence[Sequence[int]]) -> Floats:
    """Encoder states (B, S, E) of rows of ids at positions that are not padding, (N, E)."""
    return np.concatenate([of_row[: len(row)] for of_row, row in zip(states, rows, strict=True)])
