"""The native engine, ``tfexport-native``: whether it can run a bundle, its weights, opening it."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfexport import atomic
from tfexport.bundle import WEIGHTS, Manifest, open_bundle
from tfexport.errors import BundleError, ConfigError, TfexportWarning
from tfexport.runtime.model.mapped_memory import release_mapped_pages
from tfexport.runtime.model.native_config import native_config, uncovered
from tfexport.weight_table import WEIGHT_TABLE, read_weight_table

if TYPE_CHECKING:
    import tfexport_native

DISTRIBUTION = "tfexport-native"


def why_not_native(manifest: Manifest) -> str:
    """Why the native engine cannot run a bundle; empty if it can, as far as the manifest says."""
    if manifest.module is not None:
        return "the bundle contains a custom module"
    if (manifest.quantization or {}).get("weights") == "int4":
        return "the native engine reads no int4 weights"
    for name in (WEIGHT_TABLE, WEIGHTS):
        if name not in manifest.files or not manifest.files[name].size:
            return f"the bundle has no {name}"
    if missing := uncovered(manifest.config):
        return f"the native engine does not cover the model: {missing}"
    return why_not_here()


def why_not_here() -> str:
    """Why there is no native engine; empty if there is one."""
    try:
        import tfexport_native
    except ImportError as error:
        if error.name == "tfexport_native":
            return "tfexport-native is not installed"
        return f"tfexport-native cannot be loaded: {error}"
    try:
        tfexport_native.instruction_sets()
    except tfexport_native.NativeError as error:
        return str(error)
    return ""


def version() -> str:
    """Of the installed engine."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # a folder that is on the path only
        return "unknown"


def instruction_set() -> str:
    """The instruction set that the installed engine uses here."""
    import tfexport_native

    return tfexport_native.instruction_sets()[0]


def describe() -> str:
    """The installed engine and its instruction set in one line; or that there is none."""
    return why_not_here() or f"{DISTRIBUTION} {version()}, {instruction_set()}"


def packed_file(folder: Path, manifest: Manifest) -> tfexport_native.PackedFile:
    """Where weights that are packed for this machine lie, beside the bundle."""
    import tfexport_native

    path = folder.parent / f"{folder.name}.{instruction_set()}.packed"
    digests = [manifest.files[name].sha256 for name in (WEIGHTS, WEIGHT_TABLE)]
    return tfexport_native.PackedFile(path, ".".join(digests))


def pack_weights(bundle: str | os.PathLike[str], force: bool = False) -> Path:
    """Write a bundle's weights as the native engine needs them on this machine.

    The file lies beside the bundle. Processes that open the bundle map it, instead of packing the
    weights each for itself.

    Args:
        bundle: its folder.
        force: replace a file that is there.

    Returns:
        The file.

    Raises:
        BundleError: the bundle is damaged, or the engine cannot read it.
        ConfigError: the native engine cannot run it.
        OutputExistsError: the file is there.
    """
    folder = Path(os.path.normpath(bundle))
    manifest = open_bundle(folder)
    if reason := why_not_native(manifest):
        raise ConfigError(f"{folder}: there is nothing to pack for onnxruntime: {reason}")
    import tfexport_native

    packed = packed_file(folder, manifest)
    atomic.check_free(packed.path, force)
    try:
        model = tfexport_native.Model(native_config(manifest), _tensors(folder))
        model.save(packed)
    except tfexport_native.NativeError as error:
        raise BundleError(f"{folder}: the native engine refuses: {error}") from None
    return packed.path


def _tensors(folder: Path) -> dict[str, tfexport_native.Tensor]:
    """The parameters of a bundle, which stay in its file."""
    import tfexport_native

    file = np.memmap(folder / WEIGHTS, np.uint8, "r")
    table = read_weight_table(folder, file.size)
    return {
        name: tfexport_native.Tensor(weight.values(file), weight.row_scales(file), mapped=True)
        for name, weight in table.items()
    }


def open_native(folder: Path, manifest: Manifest, threads: int) -> tfexport_native.Model:
    """Open a bundle's weights; those that ``pack_weights`` wrote are mapped.

    Args:
        folder: of the bundle.
        manifest: for which ``why_not_native`` is empty.
        threads: of every call.

    Raises:
        NativeError: the engine cannot read it.
    """
    try:
        return _open(folder, manifest, threads)
    finally:
        release_mapped_pages(folder / WEIGHTS)  # read to be packed; tables are read again in part


def _open(folder: Path, manifest: Manifest, threads: int) -> tfexport_native.Model:
    import tfexport_native

    packed = packed_file(folder, manifest)
    make = partial(tfexport_native.Model, native_config(manifest), _tensors(folder), threads)
    if packed.path.exists():
        try:
            return make(packed=packed)
        except tfexport_native.PackedFileError as error:
            warnings.warn(TfexportWarning(f"{error}: 'tfexport optimize'"), stacklevel=2)
    return make()
