"""The metadata of an exported artifact: written by the export, read by verify and inspect.

A graph has it in its ``metadata_props``, a torch file in the extra file ``METADATA``, a bundle in
its manifest. Reading it executes nothing from the artifact.
"""

import dataclasses
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tfexport import __version__
from tfexport.bundle import WEIGHTS, Manifest, find_part
from tfexport.errors import BundleError, join_problems, shown
from tfexport.export.artifacts.option_rules import BUNDLE, TORCH_EXPORT, TORCHSCRIPT
from tfexport.export.forms import file_forms
from tfexport.export.report import ParityReport
from tfexport.model_src.config import TransformerConfig
from tfexport.typing import PathLike

METADATA = "tfexport.json"
_MOST_METADATA = 2**22  # bytes
# Config keys that must be equal in an artifact and its checkpoint; otherwise tensors and tokens
# cannot be compared.
_OF_ONE_MODEL = (
    "source_vocab_size", "target_vocab_size", "d_model", "d_ff", "decoder_d_ff",
    "num_encoder_layers", "num_decoder_layers", "max_positions", "pad_id", "bos_id", "eos_id",
    "start_id",
)  # fmt: skip
# In display order. Torch files are never quantised, and do not name inputs or outputs.
_OF_GRAPHS = (
    "kind", "tfexport_version", "needs", "opset", "inputs", "outputs", "config", "parity",
    "quantization",
)  # fmt: skip
_OF_TORCH_FILES = ("kind", "tfexport_version", "written_with", "config", "parity")


@dataclass(frozen=True)
class ArtifactInfo:
    """The metadata of an artifact.

    Attributes:
        kind: ``BUNDLE``, the name of a graph form, ``TORCHSCRIPT`` or ``TORCH_EXPORT``.
        config: the config of the model, as ``TransformerConfig.to_dict`` returns it.
        parity: summary of the comparison with eager PyTorch; None if there was none. Not
            checked, so any JSON value is possible; the same for ``quantization``.
        quantization: kind of weights, parameters that stayed float32, and the result of the
            quality check; None for float32.
        tfexport_version: the tfexport version that exported it.
        needs: library to the oldest version that reads the artifact.
        written_with: library to the version that wrote it.
        opset: operator domain to version.
        inputs: the inputs of a graph: name to axes.
        outputs: the outputs of a graph: name to axes.
    """

    kind: str
    config: dict[str, Any]
    parity: Any = None
    quantization: Any = None
    tfexport_version: str = __version__
    needs: Mapping[str, str] = field(default_factory=dict)
    written_with: Mapping[str, str] = field(default_factory=dict)
    opset: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, list[int | str]] = field(default_factory=dict)
    outputs: Mapping[str, list[int | str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The attributes that an artifact of this kind has, as JSON values."""
        if self.kind in file_forms():
            names: tuple[str, ...] = _OF_GRAPHS
        elif self.kind == BUNDLE:
            names = tuple(each.name for each in dataclasses.fields(self))
        else:
            names = _OF_TORCH_FILES
        return {name: getattr(self, name) for name in names}

    def to_metadata(self) -> dict[str, str]:
        """The ``metadata_props`` of a graph, without what the graph has anyway (opset, inputs)."""
        return {
            "tfexport_graph": self.kind,
            "tfexport_version": self.tfexport_version,
            "tfexport_minimum_onnxruntime": self.needs["onnxruntime"],
            "tfexport_config": json.dumps(self.config),
            "tfexport_parity": json.dumps(self.parity),
            "tfexport_quantization": json.dumps(self.quantization),
        }

    def to_json(self) -> str:
        """The content of a torch file's ``METADATA``."""
        return json.dumps(self.to_dict())

    def require_same_model(self, path: Path, config: TransformerConfig) -> None:
        """Refuse to compare an artifact with the checkpoint of another model.

        Raises:
            BundleError: sizes or special ids differ; the message lists all of them.
        """
        theirs = config.to_dict()
        unlike = [
            f"{key} is {shown(self.config[key])} here and {shown(theirs[key])} in the checkpoint"
            for key in _OF_ONE_MODEL
            if key in self.config and self.config[key] != theirs[key]
        ]
        if unlike:
            subject = f"{path}: this {self.kind} was not exported from that checkpoint"
            raise BundleError(
                join_problems(subject, unlike, "Pass the checkpoint that it was exported from.")
            )

    def refuse_quantized(self, path: Path) -> None:
        """Refuse to compare a quantised artifact with eager PyTorch.

        Raises:
            BundleError: the artifact is quantised.
        """
        if self.quantization is not None:
            record = self.quantization if isinstance(self.quantization, dict) else {}
            raise BundleError(
                f"{path}: has {record.get('weights')} weights, which differ from "
                "eager PyTorch's by design. They were compared before quantising; "
                "verify a float32 export of the same checkpoint."
            )

    def note_own_code(self, report: ParityReport) -> ParityReport:
        """The report with a word about the user's code that this export was compared with.

        It is as it was if that code was run this time too, or was not run at the export.
        """
        before = self.parity if isinstance(self.parity, dict) else {}
        code = before.get("reference")
        if report.not_run is None or "own_code" in before or code in (None, report.reference):
            return report
        told = f"the export was compared with {code}, which was not given here"
        return dataclasses.replace(report, not_run="; ".join(filter(None, [told, report.not_run])))


def describe_export(
    kind: str, config: TransformerConfig, report: ParityReport | None, **others: Any
) -> ArtifactInfo:
    """The metadata for an artifact that is being written.

    Args:
        kind: the kind of the artifact.
        config: the config of the model.
        report: the report of the comparison with eager PyTorch; None if there was none.
        others: other attributes of ``ArtifactInfo``.
    """
    parity = report.summary() if report is not None else None
    return ArtifactInfo(kind, config.to_dict(), parity, **others)


def info_of_bundle(manifest: Manifest) -> ArtifactInfo:
    """The metadata of a bundle, from its manifest."""
    return ArtifactInfo(
        BUNDLE,
        manifest.config,
        manifest.parity,
        manifest.quantization,
        manifest.tfexport_version,
        needs={"onnxruntime": manifest.minimum_onnxruntime},
        opset=manifest.opset,
    )


def read_info(path: PathLike) -> ArtifactInfo | None:
    """Read the metadata of a single file; None if tfexport did not write it."""
    path = Path(path)
    try:
        return read_graph_info(path) if path.suffix == ".onnx" else read_torch_info(path)
    except BundleError:
        return None


def read_graph_info(path: PathLike) -> ArtifactInfo:
    """Read the metadata of an .onnx file that tfexport wrote.

    Raises:
        BundleError: tfexport did not write the file, or it is damaged.
    """
    path = _existing(path)
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf raises various errors for invalid bytes
        raise BundleError(f"{path}: not an ONNX file, or damaged: {error}") from None
    if model.metadata_props.get("tfexport_graph") not in file_forms():
        if (part := find_part(path)) is not None:
            raise BundleError(f"{path}: {part.what} of the bundle {part.bundle}; pass that folder.")
        if _reads_weights_of_a_bundle(model):
            raise BundleError(
                f"{path}: the graph {model.graph.name!r} of a bundle that tfexport wrote, without "
                f"the bundle's other files: it reads {WEIGHTS} beside it. Pass the bundle's folder."
            )
        raise BundleError(f"{path}: an ONNX file that tfexport did not write.")
    try:
        return _info_of_graph(model)
    except (LookupError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: its metadata is damaged: {error}") from None


def _reads_weights_of_a_bundle(model: ir.Model) -> bool:
    values = (value.const_value for value in model.graph.initializers.values())
    return any(isinstance(it, ir.ExternalTensor) and it.location == WEIGHTS for it in values)


def _info_of_graph(model: ir.Model) -> ArtifactInfo:
    metadata = model.metadata_props
    config = json.loads(metadata["tfexport_config"])
    if not isinstance(config, dict):
        raise ValueError("its config is not an object")
    return ArtifactInfo(
        metadata["tfexport_graph"],
        config,
        parity=json.loads(metadata["tfexport_parity"]),
        quantization=json.loads(metadata["tfexport_quantization"]),
        tfexport_version=metadata["tfexport_version"],
        needs={"onnxruntime": metadata["tfexport_minimum_onnxruntime"]},
        opset=dict(model.opset_imports),
        inputs={value.name or "": _axes(value) for value in model.graph.inputs},
        outputs={value.name or "": _axes(value) for value in model.graph.outputs},
    )


def _axes(value: ir.Value) -> list[int | str]:
    axes = value.shape or ()
    return [axis if isinstance(axis, int) else str(axis.value) for axis in axes]


def read_torch_info(path: PathLike) -> ArtifactInfo:
    """Read the metadata of a torch file that tfexport wrote.

    Raises:
        BundleError: tfexport did not write the file, or it is damaged.
    """
    path = _existing(path)
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(f"extra/{METADATA}")]
            if archive.getinfo(name).file_size > _MOST_METADATA:
                raise ValueError("the metadata is too large")
            values = json.loads(archive.read(name))
        found = ArtifactInfo(**{name: values[name] for name in _OF_TORCH_FILES})
        objects = isinstance(found.config, dict) and isinstance(found.written_with, dict)
        if found.kind in (TORCHSCRIPT, TORCH_EXPORT) and objects:
            return found
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, LookupError, TypeError):
        pass
    except (RuntimeError, RecursionError):  # encrypted, unknown compression, or nested too deeply
        pass
    raise BundleError(f"{path}: not a file that 'tfexport torchscript' wrote, or damaged.")


def _existing(path: PathLike) -> Path:
    path = Path(path)
    if not path.is_file():
        raise BundleError(f"{path}: no such file.")
    return path
