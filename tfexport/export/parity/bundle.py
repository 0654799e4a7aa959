"""Comparison of a bundle with eager PyTorch, graph by graph, over a grid of shapes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from tfexport.bundle import Manifest
from tfexport.errors import BundleError
from tfexport.export.parity.compare import compare_logits
from tfexport.export.parity.eager_run import THREADS, Case, Eager, EagerRun, Shape, run_grid
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.reference import ModuleReference
from tfexport.export.report import NATIVE, Comparison, ParityReport
from tfexport.graph_io import GraphSpec
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.runtime.model.native_engine import why_not_native
from tfexport.runtime.model.native_model import NativeModel
from tfexport.runtime.model.onnxruntime_model import OnnxModel
from tfexport.runtime.model.session import Graph


class OpenBundle:
    """An open bundle.

    Attributes:
        model: the bundle's model in onnxruntime.
        native: the model in the native engine; None if the engine cannot run it here.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.model = OnnxModel(folder, manifest, THREADS)
        self.native = None
        if not why_not_native(manifest):
            self.native = NativeModel(folder, manifest, THREADS)
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


CompareGraph = Callable[[Eager, EagerRun, OpenBundle], Iterable[Comparison]]


def compare_bundle(
    folder: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    comparisons: Mapping[str, CompareGraph],
    plan: ComparisonPlan | None = None,
) -> ParityReport:
    """Compare a bundle with eager PyTorch.

    Args:
        folder: the folder of the bundle, whose files were checked.
        manifest: the manifest of the bundle.
        checkpoint: the checkpoint that the bundle was exported from.
        comparisons: role to the comparison of that graph, in order; ``NATIVE`` to that of the
            native engine.
        plan: what to compare.

    Raises:
        BundleError: the bundle has a graph without a comparison.
    """
    unknown = [role for role in manifest.graphs if role not in comparisons]
    if unknown:
        raise BundleError(
            f"{folder}: holds graphs that this tfexport cannot compare with eager PyTorch: "
            f"{', '.join(unknown)}. Verify it with tfexport {manifest.tfexport_version}, which "
            "wrote it."
        )
    bundle = OpenBundle(folder, manifest)

    def compare(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        run = eager.run(batch)
        yield from compare_modules(eager, run)
        for role, compare_graph in comparisons.items():
            if role in (*manifest.graphs, NATIVE):
                yield from compare_graph(eager, run, bundle)

    return run_grid(checkpoint, compare, plan)


def compare_modules(eager: Eager, run: EagerRun) -> Iterator[Comparison]:
    """Compare the project's own modules with the original, if there is one."""
    if isinstance(eager.reference, ModuleReference):
        return
    prefix = torch.from_numpy(run.prefix)
    ours = eager.model(run.case.ids, run.case.mask, prefix, torch.ones(prefix.shape))
    noise = run.noise.logits
    yield compare_logits(eager, "eager modules", run.shape, ours.numpy(), run.logits, noise)
