"""Comparison of a bundle, or of a graph that is a file by itself, with eager PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfexport.bundle import Manifest
from tfexport.errors import BundleError
from tfexport.export.parity.eager_run import Eager, EagerRun, compare_batches
from tfexport.export.parity.opened import OpenBundle, OpenFile
from tfexport.export.parity.plan import ComparisonPlan
from tfexport.export.parity.recognised import compare_native_decoder
from tfexport.export.parity.steps import compare_native
from tfexport.export.report import Comparison, ParityReport
from tfexport.graph_io import GraphSpec

# Of one graph: called with each batch and the open artifact.
CompareGraph = Callable[[EagerRun, Any], Iterable[Comparison]]


def compare_bundle(
    eager: Eager,
    folder: Path,
    manifest: Manifest,
    graphs: Mapping[str, CompareGraph],
    plan: ComparisonPlan,
) -> ParityReport:
    """Compare a bundle with eager PyTorch.

    Args:
        eager: the original that the bundle was exported from.
        folder: the folder of the bundle, whose files were checked.
        manifest: the manifest of the bundle.
        graphs: role to the comparison of that graph, in order. Those that the bundle lacks are
            left out.
        plan: what to compare.

    Raises:
        BundleError: the bundle has a graph without a comparison.
    """
    unknown = [role for role in manifest.graphs if role not in graphs]
    if unknown:
        raise BundleError(
            f"{folder}: holds graphs that this tfexport cannot compare with eager PyTorch: "
            f"{', '.join(unknown)}. Verify it with tfexport {manifest.tfexport_version}, which "
            "wrote it."
        )
    bundle = OpenBundle(folder, manifest)
    stages = [compare for role, compare in graphs.items() if role in manifest.graphs]
    stages += [compare_native, compare_native_decoder]

    def compare(run: EagerRun) -> Iterator[Comparison]:
        yield from eager.compare_programs(run)
        for stage in stages:
            yield from stage(run, bundle)

    return compare_batches(eager, plan, compare)


def compare_file(
    eager: Eager,
    path: Path,
    spec: GraphSpec,
    compare_graph: CompareGraph,
    plan: ComparisonPlan,
    decodes: bool = True,
) -> ParityReport:
    """Compare a graph that is a file by itself with eager PyTorch.

    Args:
        eager: the original that it was exported from.
        path: the path of the file.
        spec: its inputs and outputs.
        compare_graph: its comparison.
        plan: what to compare.
        decodes: whether the graph returns tokens.

    Raises:
        BundleError: the file cannot be opened, or has other inputs and outputs.
    """
    file = OpenFile(path, spec)

    def compare(run: EagerRun) -> Iterator[Comparison]:
        if decodes and eager.runs_own_code:
            yield from eager.compare_programs(run)
        yield from compare_graph(run, file)

    return compare_batches(eager, plan, compare, decodes)
