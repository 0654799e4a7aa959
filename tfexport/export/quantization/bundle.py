"""Quantisation of a bundle to int8, int4 or bf16 weights, with a quality check. Needs no torch."""

import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tfexport.bundle import (
    WEIGHTS,
    Manifest,
    check_output,
    new_bundle,
    open_bundle,
    without_links,
    write_manifest,
)
from tfexport.errors import (
    BundleError,
    ConfigError,
    Message,
    Option,
    Problem,
    QualityError,
    shown,
)
from tfexport.export.ir_tools.nodes import read_role
from tfexport.export.passes.weights import record_weights, share_weights
from tfexport.export.quantization.graphs import KINDS, find_weight_uses, quantize_graphs
from tfexport.export.quantization.quality import (
    Quality,
    QualityCheck,
    open_quality_check,
    require_samples,
)
from tfexport.runtime import Translator
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair
from tfexport.typing import PathLike, Progress, silent
from tfexport.weight_table import read_weight_table

MOST_KEPT = 8  # parameters that may stay float32; if more had to, the check fails


@dataclass(frozen=True)
class QuantizedBundle:
    """A bundle that was quantised.

    Attributes:
        path: the quantised bundle.
        manifest: the manifest of the quantised bundle.
        quality: the comparison with the original; None without samples.
        kept: parameters that stayed float32 so that the quality check passed.
    """

    path: Path
    manifest: Manifest
    quality: Quality | None
    kept: tuple[str, ...]


def quantize_bundle(
    bundle: PathLike,
    output: PathLike,
    weights: str = "int8",
    *,
    samples: PathLike | None = None,
    language_pair: LanguagePair = NO_LANGUAGES,
    accept_loss: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> QuantizedBundle:
    """Quantise a bundle's weights; see ``artifacts.quantize``."""
    progress = progress or silent
    check_weights(weights)
    if samples is None:
        languages = {
            "source_language": language_pair.source, "target_language": language_pair.target,
        }  # fmt: skip
        require_samples("quantize", languages)
    check_output(output, force)
    path, manifest = Path(bundle), open_bundle(bundle)
    if accept_loss and samples is None and manifest.media is None:
        raise ConfigError(Message(
            Option("accept_loss"), " requires ", Option("samples"), f": without them nothing of "
            f"{path} is compared.",
        ))  # fmt: skip
    with without_links(path, manifest.files) as files:
        original = _Original(path, files, manifest, weights)
        original.check()
        check = None
        if samples is not None or manifest.media is not None:
            progress("reading samples", 0, 1)
            file = None if samples is None else Path(samples)
            check = open_quality_check(Translator(path), file, language_pair)
        with new_bundle(output, force) as folder:
            if check is None:
                progress("quantising", 0, 1)
                quantized = _Quantized(original.write(folder))
            else:
                quantized = _quantise_until_accepted(original, check, folder, accept_loss, progress)
            final = write_manifest(
                folder,
                dataclasses.replace(quantized.manifest, quantization=quantized.record(weights)),
            )
    return QuantizedBundle(Path(output), final, quantized.quality, quantized.kept)


def check_weights(weights: str, option: str = "weights") -> None:
    """Refuse unknown kinds of weights.

    Raises:
        ConfigError: the kind is unknown; the message names ``option``.
    """
    if weights not in KINDS:
        known = ", ".join(KINDS)
        raise ConfigError(Message(Problem(option, f"{shown(weights)} is not one of {known}")))


@dataclass(frozen=True)
class _Original:
    """The float32 bundle that is to be quantised.

    Attributes:
        path: the folder of the bundle.
        files: a folder with its files, without links, which onnx_ir refuses.
        manifest: the manifest of the bundle.
        weights: the kind to quantise to, one of ``KINDS``.
    """

    path: Path
    files: Path
    manifest: Manifest
    weights: str

    def check(self) -> None:
        """Refuse a bundle that cannot be quantised.

        Raises:
            BundleError: it is quantised already, or its graphs record no roles of weights.
        """
        if self.manifest.quantization is not None:
            already = self.manifest.quantization["weights"]
            raise BundleError(f"{self.path}: its weights are {already} already.")
        graphs = (self._graph(file).graph for file in self.manifest.graphs.values())
        if not any(read_role(value) for graph in graphs for value in graph.initializers.values()):
            raise BundleError(
                f"{self.path}: its graphs do not contain the roles of their weights: there "
                "is nothing to quantise."
            )

    def _graph(self, file: str) -> ir.Model:
        return ir.load(self.files / file)

    def write(self, folder: Path, keep: Collection[str] = ()) -> Manifest:
        """Write the quantised bundle.

        Args:
            folder: may hold the files of an earlier call, which are replaced.
            keep: names of parameters that stay float32.

        Returns:
            The manifest that was written.
        """
        graphs = {file: self._graph(file) for file in self.manifest.graphs.values()}
        quantize_graphs(list(graphs.values()), self.weights, keep)
        (folder / WEIGHTS).unlink(missing_ok=True)
        share_weights(list(graphs.values()), folder)
        domains = dict(self.manifest.opset)
        for file, graph in graphs.items():
            ir.save(graph, folder / file)
            domains |= graph.opset_imports
        # No engine but onnxruntime reads int4.
        if self.weights != "int4" and self.manifest.transformer is not None:
            record_weights(list(graphs.values()), folder, self._parameters(), self.weights)
        for entry in self.manifest.tokenizers.values():
            shutil.copyfile(self.files / entry.file, folder / entry.file)
        quantization = {"weights": self.weights}
        manifest = dataclasses.replace(self.manifest, opset=domains, quantization=quantization)
        return write_manifest(folder, manifest)

    def _parameters(self) -> dict[str, NDArray[Any]]:
        file = np.memmap(self.files / WEIGHTS, np.uint8, "r")
        table = read_weight_table(self.path, file.size)
        return {name: weight.values(file) for name, weight in table.items()}

    def sensitivities(self, check: QualityCheck, progress: Progress) -> dict[str, float]:
        """Measure how much quantising each parameter alone changes the next-token distributions.

        Returns:
            Parameter to mean Kullback-Leibler divergence, the largest first.
        """
        files = {role: self.manifest.graphs[role] for role in ("encoder", "decoder")}
        manifest = dataclasses.replace(self.manifest, graphs=files)
        graphs = [self._graph(file) for file in files.values()]
        names = {use.role.parameter for uses in find_weight_uses(graphs) for use in uses}
        found: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # Parameters that stay float32 are read from a copy: links are refused for security.
            shutil.copyfile(self.files / WEIGHTS, folder / WEIGHTS)
            for done, parameter in enumerate(sorted(names)):
                progress("measuring each parameter", done, len(names))
                models = {file: self._graph(file) for file in files.values()}
                quantize_graphs(list(models.values()), self.weights, names - {parameter})
                for file, model in models.items():
                    ir.save(model, folder / file)
                found[parameter] = check.distance(folder, manifest)
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class _Quantized:
    """A quantised bundle that was written, and its quality.

    Attributes:
        manifest: the manifest of the bundle.
        quality: the comparison with the original; None if there was none.
        kept: parameters that stay float32.
        sensitivity: see ``_Original.sensitivities``; empty if it was not measured.
    """

    manifest: Manifest
    quality: Quality | None = None
    kept: tuple[str, ...] = ()
    sensitivity: Mapping[str, float] = field(default_factory=dict)

    def record(self, weights: str) -> dict[str, Any]:
        """The ``quantization`` entry of its manifest."""
        return {
            "weights": weights,
            "kept": list(self.kept),
            "gate": self.quality.to_dict() if self.quality is not None else "not gated",
            "sensitivity": dict(self.sensitivity),
        }


def _quantise_until_accepted(
    original: _Original, check: QualityCheck, folder: Path, accept_loss: bool, progress: Progress
) -> _Quantized:
    """Quantise; keep more of the most sensitive weights in float32 until the check passes.

    Built-in samples pass without a measurement of each parameter, which takes long.
    """
    keep: list[str] = []
    ranking: dict[str, float] = {}
    while True:
        progress("quantising", 0, 1)
        manifest = original.write(folder, keep)
        progress("comparing", 0, 1)
        quality = check.judge(folder, manifest)
        if not ranking and not (quality.built_in and quality.passed):
            ranking = original.sensitivities(check, progress)
        worst = [name for name in ranking if name not in keep]
        last = len(keep) == MOST_KEPT or not worst
        if quality.passed or (last and accept_loss):
            return _Quantized(manifest, quality, tuple(keep), ranking)
        if last:
            other = "int8" if original.weights == "int4" else "the float32 bundle"
            own = ", give samples of your own" if quality.built_in else ""
            raise QualityError(Message(
                f"{original.path}: {original.weights} weights change too much: {quality}; expected "
                f"{quality.limits}, with {', '.join(keep) or 'nothing'} kept in float32. "
                f"Take {other}{own}, or write it nevertheless with ", Option("accept_loss"), ".",
            ))  # fmt: skip
        keep.append(worst[0])
