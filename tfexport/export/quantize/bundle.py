"""A bundle to one with int8 or int4 weights, held against the original. Needs no torch."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tfexport.bundle import (
    WEIGHTS,
    Manifest,
    check_output,
    new_bundle,
    open_bundle,
    write_manifest,
)
from tfexport.errors import BundleError, ConfigError, QualityError
from tfexport.export.ir_tools.roles import read_role
from tfexport.export.passes.share_weights import share_weights
from tfexport.export.quantize.graphs import KINDS, find_weight_uses, quantize_graphs
from tfexport.export.quantize.quality import (
    LEAST_AGREEMENT,
    MOST_BLEU_LOSS,
    Gate,
    Quality,
    read_samples,
)
from tfexport.runtime import Translator

Progress = Callable[[str, int, int], None]
MOST_KEPT = 8  # parameters that may stay float32 before the gate is held to have failed


@dataclass(frozen=True)
class QuantizeResult:
    """What was made.

    Attributes:
        path: the bundle.
        manifest: of it.
        quality: None if there were no samples.
        kept: parameters that stay float32, because they hurt.
    """

    path: Path
    manifest: Manifest
    quality: Quality | None
    kept: tuple[str, ...]

    @property
    def size(self) -> int:
        """Of the bundle, in bytes."""
        return sum(entry.size for entry in self.manifest.files.values())


def quantize_bundle(
    bundle: str | os.PathLike[str],
    output: str | os.PathLike[str],
    weights: str = "int8",
    *,
    samples: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantise a bundle's weights; nothing is left behind if the quality gate fails.

    Args:
        bundle: with float32 weights; its parity with eager PyTorch is not looked at again.
        output: the new bundle's folder.
        weights: "int8" or "int4".
        samples: a text a line, with a reference behind a tab if there is one; ids if the bundle
            holds no tokenizer. The quantised bundle must choose the original's tokens at 97 % of
            the positions, and lose no more than 0.3 BLEU against the references; up to eight
            parameters stay float32 to get there, those that change the distribution most first.
            Without samples the bundle is not gated, and its manifest says so.
        force: replace a bundle that exists.
        progress: told what is being done, and how far it is.

    Raises:
        QualityError: the gate failed.
        BundleError: the bundle is unusable or is quantised already.
        ConfigError: unknown kind of weights.
        InputError: a sample that cannot be used.
    """
    tell = progress or (lambda step, done, total: None)
    check_weights(weights)
    check_output(output, force)
    source = Path(bundle)
    manifest = open_bundle(source)
    if manifest.quantization is not None:
        raise BundleError(f"{source}: its weights are {manifest.quantization['weights']} already.")
    gate = None
    if samples is not None:
        tell("reading samples", 0, 1)
        original = Translator(source)
        gate = Gate(original, read_samples(Path(samples), original))
    with new_bundle(output, force) as folder:
        keep: list[str] = []
        ranking: dict[str, float] = {}
        while True:
            tell("quantising", 0, 1)
            made = _write(source, manifest, folder, weights, keep)
            if gate is None:
                break
            tell("comparing", 0, 1)
            quality = gate.judge(folder, made)
            ranking = ranking or _sensitivities(source, manifest, weights, gate, tell)
            if quality.passed:
                break
            worst = [name for name in ranking if name not in keep]
            if len(keep) == MOST_KEPT or not worst:
                raise QualityError(
                    f"{source}: {weights} weights change too much: {quality}; at least "
                    f"{LEAST_AGREEMENT:.0%} and a loss of at most {MOST_BLEU_LOSS} were expected, "
                    f"with {', '.join(keep) or 'nothing'} kept in float32. "
                    + ("Try int8." if weights == "int4" else "Ship the float32 bundle.")
                )
            keep.append(worst[0])
        record = {
            "weights": weights,
            "kept": keep,
            "gate": quality.to_dict() if gate is not None else "not gated",
            "sensitivity": ranking,
        }
        final = write_manifest(folder, dataclasses.replace(made, quantization=record))
    return QuantizeResult(Path(output), final, quality if gate else None, tuple(keep))


def check_weights(weights: str) -> None:
    """Refuse unknown kinds of weights.

    Raises:
        ConfigError: it is one.
    """
    if weights not in KINDS:
        raise ConfigError(f"weights: {weights!r} is not one of {', '.join(KINDS)}")


def refuse_quantized(path: Path, quantization: Mapping[str, Any] | None) -> None:
    """Say why a quantised artifact is not compared with eager PyTorch.

    Raises:
        BundleError: it is one.
    """
    if quantization is not None:
        raise BundleError(
            f"{path}: holds {quantization.get('weights')} weights, which differ from eager "
            "PyTorch's on purpose. It was compared before they were quantised: verify a float32 "
            "export of the same checkpoint."
        )


def _write(
    source: Path, manifest: Manifest, folder: Path, weights: str, keep: Collection[str]
) -> Manifest:
    """Fill a folder with the quantised bundle."""
    graphs = {name: ir.load(source / name) for name in manifest.graphs.values()}
    weights_of = (graph.graph.initializers.values() for graph in graphs.values())
    if not any(read_role(value) for values in weights_of for value in values):
        raise BundleError(
            f"{source}: its graphs do not say what their weights are, as those of older "
            "versions do not. Export the checkpoint again, and quantise that."
        )
    quantize_graphs(list(graphs.values()), weights, keep)
    (folder / WEIGHTS).unlink(missing_ok=True)
    share_weights(list(graphs.values()), folder)
    domains = dict(manifest.opset)
    for name, graph in graphs.items():
        ir.save(graph, folder / name)
        domains |= graph.opset_imports
    for entry in manifest.tokenizers.values():
        shutil.copyfile(source / entry.file, folder / entry.file)
    return write_manifest(
        folder, dataclasses.replace(manifest, opset=domains, quantization={"weights": weights})
    )


def _sensitivities(
    source: Path, manifest: Manifest, weights: str, gate: Gate, tell: Progress
) -> dict[str, float]:
    """How far each parameter alone, quantised, moves the next-token distributions; most first."""
    roles = ("encoder", "decoder")
    names = {
        use.role.parameter
        for role in roles
        for use in find_weight_uses(ir.load(source / manifest.graphs[role]))
    }
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What stays float32 is read from a copy; links are refused, as an attack could be one.
        shutil.copyfile(source / WEIGHTS, folder / WEIGHTS)
        for done, parameter in enumerate(sorted(names)):
            tell("measuring each parameter", done, len(names))
            graphs = {role: manifest.graphs[role] for role in roles}
            models = {file: ir.load(source / file) for file in graphs.values()}
            others = names - {parameter}
            quantize_graphs(list(models.values()), weights, others)
            for file, model in models.items():
                ir.save(model, folder / file)
            found[parameter] = gate.distance(folder, dataclasses.replace(manifest, graphs=graphs))
    return dict(sorted(found.items(), key=lambda item: -item[1]))
